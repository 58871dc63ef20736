/** Label values come from closed lists, never from callers, so that the number of series is bounded. */
import { Counter, Gauge, Histogram, Registry } from 'prom-client'
import { MICRO_PER_TOKEN, type Micro } from '../../../core/pricing/amount.ts'
import { SESSION_STATES } from '../../../protocol/service/sessions.ts'
import { type ApiVersion, ITEM_STATUS, type ItemStatus } from '../../../protocol/service/status.ts'
import { PAUSED_BY, type PausedBy } from '../../runtime/clock-guard.ts'
import type { Answered } from '../../http/operation.ts'
import type { EventWatcher } from '../../events/publish-events.ts'
import type { InstanceFigures } from '../../devices/watch-fleet.ts'
import type { SyncOutcome } from '../../sync/receive-segment.ts'
import type { DeliverySums } from '../../storage/device-records.ts'
import type { UsageRecord } from '../../storage/records.ts'
import type { Totals } from '../../storage/records.ts'
import type { StoreWatcher } from '../../storage/watch-store.ts'
import type { ArchiveState } from '../../usage/archive/archive-daily.ts'
import { within } from '../system/within.ts'
import { collectProcessMetrics } from './process-metrics.ts'

const OF_NODE: ReadonlySet<string> = new Set([
  'http_requests_total',
  'http_request_duration_seconds',
  'http_bodies_incomplete_total',
  'http_device_requests_waiting',
  'config_last_reload_successful',
  'last_backup_timestamp_seconds',
  'certificate_expiry_timestamp_seconds',
  'build_info',
])
export interface MetricsDeps {
  /** Absent: the metrics are of the node and its only store. Else of a cell, or only of the node. */
  readonly part?: { readonly cell: string } | 'NODE'
  readonly version: string
  readonly totals: () => Promise<Totals>
  /** POSIX ms of the last good backup, read at each scrape; null: unknown. */
  readonly lastBackupAt: () => number | null
  readonly paused: () => readonly PausedBy[]
  /** Requests of devices that wait for their turn. */
  readonly waiting: () => number
  /** Longest wait for the totals, ms; after it the scrape omits them. */
  readonly totalsTimeoutMs: number
}

export type MetricsSource = Pick<Metrics, 'text' | 'contentType'>

/** The lines of each metric together, as the format requires. */
export function merged(sources: readonly [MetricsSource, ...MetricsSource[]]): MetricsSource {
  return {
    contentType: sources[0].contentType,
    async text() {
      const metrics = new Map<string, string[]>()
      for (const text of await Promise.all(sources.map((source) => source.text()))) {
        for (const metric of text.split(/^(?=# HELP )/m)) {
          const [help = '', type = '', ...samples] = metric.trimEnd().split('\n')
          const head = `${help}\n${type}`
          metrics.set(head, [...(metrics.get(head) ?? []), ...samples])
        }
      }
      return [...metrics].map(([head, samples]) => [head, ...samples, ''].join('\n')).join('\n')
    },
  }
}

/** Label for requests without a route: paths are unbounded. */
const NO_ROUTE = 'none'

/** Each begins at 0. */
const SYNC_OUTCOMES = Object.keys({
  MERGE: 0,
  REPEAT: 0,
  KNOWN: 0,
  BEHIND: 0,
  FORK: 0,
  UNREADABLE: 0,
  REJECTED: 0,
} satisfies Record<SyncOutcome, 0>)

const SOURCES: readonly UsageRecord['source']['kind'][] = ['one-off', 'session', 'device']

/** Seconds. A commit takes 0.1 to 10 ms depending on the disk; waiting for locks takes longer. */
const BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]

export class Metrics implements StoreWatcher, EventWatcher {
  readonly #registry = new Registry()
  readonly #archived = this.#counter(
    'usage_archived_records_total',
    'Usage records that this node has moved to archives.',
  )
  readonly #archiveFailed = this.#gauge(
    'usage_archive_failed',
    'Whether the last archiving of usage by this node failed.',
  )
  readonly #archivedAt = this.#gauge(
    'usage_archive_last_success_timestamp_seconds',
    'When all usage older than the retention was last archived.',
  )
  readonly #requests = this.#counter('http_requests_total', 'HTTP requests answered.', ['method', 'route', 'status'])
  readonly #requestSeconds = this.#seconds(
    'http_request_duration_seconds',
    'Time from the request head to the end of the response.',
    ['method', 'route'],
  )
  readonly #brokenBodies = this.#counter(
    'http_bodies_incomplete_total',
    'Requests whose connection ended before the body was complete.',
  )
  readonly #waiting = this.#gauge('http_device_requests_waiting', 'Requests of devices that wait for their turn.')
  readonly #decisions = this.#counter(
    'decisions_total',
    'Items decided on access requests, by result and status code of API v1.1.',
    ['result', 'code'],
  )
  readonly #usage = this.#counter(
    'usage_records_total',
    'Usage records committed, by operation, status, and where the request came from.',
    ['operation', 'status', 'source'],
  )
  readonly #tokensCharged = this.#counter('tokens_charged_total', 'Tokens charged by committed usage records.', [
    'source',
  ])
  readonly #tokensRefunded = this.#counter('tokens_refunded_total', 'Tokens refunded by committed usage records.', [
    'source',
  ])
  readonly #automaticCharges = this.#counter('automatic_charges_total', 'Due session charges, by result.', [
    'result',
    'source',
  ])
  readonly #refunds = this.#counter('refunds_total', 'Refunds of prepaid session time that was not used.', ['source'])
  readonly #syncs = this.#counter('edge_syncs_total', 'Segments received from devices, by outcome.', ['outcome'])
  readonly #transactionSeconds = this.#seconds(
    'store_transaction_duration_seconds',
    'Duration of store transactions including waiting, by result.',
    ['result'],
  )
  readonly #sessions = this.#gauge('sessions', 'Sessions in the store, counted up to 100000.', ['state'])
  readonly #outbox = this.#gauge(
    'outbox_backlog',
    'Change notifications waiting to be published, counted up to 100000.',
  )
  readonly #tokensOnDevices = this.#gauge('tokens_on_devices', 'Tokens granted to devices and not returned.')
  readonly #totalsUp = this.#gauge('store_totals_up', 'Whether the store returned its totals for this scrape.')
  readonly #reloaded = this.#gauge(
    'config_last_reload_successful',
    'Whether the last reload of the settings succeeded.',
  )
  readonly #lastBackup = this.#gauge(
    'last_backup_timestamp_seconds',
    'Time of the last successful backup of the store.',
  )
  readonly #certificateExpiry = this.#gauge(
    'certificate_expiry_timestamp_seconds',
    'When the TLS certificate of this node expires.',
  )
  readonly #paused = this.#gauge('sweeps_paused', 'Whether irreversible background work is paused, by reason.', [
    'code',
  ])
  readonly #events = this.#counter('events_total', 'Events sent, by sink and outcome.', ['sink', 'outcome'])
  readonly #sinksFailing = this.#gauge('event_sink_failing', 'Whether the last attempt to send events failed.', [
    'sink',
  ])
  readonly #devices = this.#gauge(
    'devices',
    'Devices of the first 50 instances by contact, counted up to 10000, once a minute.',
    ['instance_id', 'contact'],
  )
  readonly #tokensLeft = this.#gauge(
    'instance_tokens_left_ratio',
    'Part of the tokens that is left in the scarcest line item of the instance, once a minute.',
    ['instance_id'],
  )
  readonly #deps: MetricsDeps
  readonly #cell: Readonly<Record<'up' | 'behind', Gauge>> | null
  #looking: Promise<void> | undefined

  constructor(deps: MetricsDeps) {
    this.#deps = deps
    this.#gauge('build_info', 'Version of the running service; always 1.', ['version', 'node']).set(
      { version: deps.version, node: process.versions.node },
      1,
    )
    this.#startSeries()
    this.#cell = this.#keepOnly(deps.part)
  }

  #counter<L extends string = never>(name: string, help: string, labelNames: readonly L[] = []): Counter<L> {
    return new Counter({ name: `tallygate_${name}`, help, labelNames, registers: [this.#registry] })
  }

  #gauge<L extends string = never>(name: string, help: string, labelNames: readonly L[] = []): Gauge<L> {
    return new Gauge({ name: `tallygate_${name}`, help, labelNames, registers: [this.#registry] })
  }

  #seconds<L extends string>(name: string, help: string, labelNames: readonly L[]): Histogram<L> {
    return new Histogram({ name: `tallygate_${name}`, help, labelNames, registers: [this.#registry], buckets: BUCKETS })
  }

  /** Counters at zero: Prometheus sees no increase in a series that begins with its first event, so alerts would miss that event. */
  #startSeries(): void {
    this.#reloaded.set(1)
    // Without a retention there are no values.
    this.#archiveFailed.remove()
    this.#archivedAt.remove()
    // Only a node that serves TLS has a certificate.
    this.#certificateExpiry.remove()
    for (const outcome of SYNC_OUTCOMES) this.#syncs.inc({ outcome: outcome.toLowerCase() }, 0)
    for (const labels of LABELS_OF_CODE['v1.1'].values()) this.#decisions.inc(labels, 0)
    for (const source of SOURCES) {
      this.#tokensCharged.inc({ source }, 0)
      this.#tokensRefunded.inc({ source }, 0)
    }
  }

  #keepOnly(part: MetricsDeps['part']): Readonly<Record<'up' | 'behind', Gauge>> | null {
    const isOfNode = part === undefined || part === 'NODE'
    if (isOfNode) collectProcessMetrics(this.#registry)
    else this.#registry.setDefaultLabels({ cell: part.cell })
    for (const { name } of part === undefined ? [] : this.#registry.getMetricsAsArray()) {
      const own = /^tallygate_(.*)$/.exec(name)?.[1]
      if (own !== undefined && OF_NODE.has(own) !== isOfNode) this.#registry.removeSingleMetric(name)
    }
    if (isOfNode) return null
    return {
      up: this.#gauge('cell_up', 'Whether the database of the cell responds to this node.'),
      behind: this.#gauge('cell_behind', 'Whether the cell may lack changes of rate tables, keys or configuration.'),
    }
  }

  cell(isUp: boolean, isBehind: boolean): void {
    this.#cell?.up.set(isUp ? 1 : 0)
    this.#cell?.behind.set(isBehind ? 1 : 0)
  }

  readonly archive = {
    archived: (records: number): void => this.#archived.inc(records),
    state: ({ finishedAt, failed }: ArchiveState): void => {
      this.#archiveFailed.set(failed ? 1 : 0)
      if (finishedAt !== null) this.#archivedAt.set(finishedAt / 1_000)
    },
  }

  get contentType(): string {
    return this.#registry.contentType
  }

  async text(): Promise<string> {
    await this.#look()
    const backupAt = this.#deps.lastBackupAt()
    if (backupAt === null) this.#lastBackup.remove()
    else this.#lastBackup.set(backupAt / 1_000)
    this.#waiting.set(this.#deps.waiting())
    const paused = this.#deps.paused()
    for (const code of PAUSED_BY) this.#paused.set({ code }, paused.includes(code) ? 1 : 0)
    return this.#registry.metrics()
  }

  reloaded(successfully: boolean): void {
    this.#reloaded.set(successfully ? 1 : 0)
  }

  /** @param expiresAt POSIX ms */
  certificate(expiresAt: number): void {
    this.#certificateExpiry.set(expiresAt / 1_000)
  }

  request({ method, route, status, ms }: Answered): void {
    const labels = { method, route: route ?? NO_ROUTE }
    quietly(() => {
      this.#requests.inc({ ...labels, status: String(status) })
      this.#requestSeconds.observe(labels, ms / 1_000)
    })
  }

  brokenBody(): void {
    quietly(() => this.#brokenBodies.inc())
  }

  decision(version: ApiVersion, code: string): void {
    const labels = LABELS_OF_CODE[version].get(code)
    if (labels !== undefined) quietly(() => this.#decisions.inc(labels))
  }

  sync(outcome: SyncOutcome): void {
    quietly(() => this.#syncs.inc({ outcome: outcome.toLowerCase() }))
  }

  transaction(committed: boolean, ms: number): void {
    this.#transactionSeconds.observe({ result: committed ? 'committed' : 'failed' }, ms / 1_000)
  }

  usage(records: readonly UsageRecord[]): void {
    const refunded = new Set<string>()
    const renewed = new Set<string>()
    // Requests that share a transaction are mostly alike, and each count takes most of a microsecond.
    const alike = Map.groupBy(records, ({ operation, status, source }) => `${operation} ${status} ${source.kind}`)
    for (const some of alike.values()) {
      const [{ operation, status, source }] = some as [UsageRecord]
      const from = { source: source.kind }
      this.#usage.inc({ operation: operation.toLowerCase(), status: status.toLowerCase(), ...from }, some.length)
      if (status !== 'GRANTED') continue
      const tokens = some.reduce((sum, each) => (each.tokens > 0n ? sum + each.tokens : sum), 0n)
      if (tokens > 0n) this.#tokensCharged.inc(from, inTokens(tokens))
    }
    for (const { operation, source, tokens, correlationId } of records) {
      const from = { source: source.kind }
      if (tokens < 0n) this.#tokensRefunded.inc(from, inTokens(-tokens))
      if (operation === 'REFUND' && !refunded.has(correlationId)) {
        refunded.add(correlationId)
        this.#refunds.inc(from)
      }
      if (operation === 'AUTOMATIC_CHARGE' && !renewed.has(correlationId)) {
        renewed.add(correlationId)
        // Sessions charge all items or none: the first item that was not granted decides.
        const granted = records.every((one) => one.correlationId !== correlationId || one.status === 'GRANTED')
        this.#automaticCharges.inc({ result: granted ? 'charged' : 'refused', ...from })
      }
    }
  }

  delivery({ lines, refunds, automaticCharges }: DeliverySums): void {
    const source = 'device'
    for (const { operation, status, records, tokens } of lines) {
      this.#usage.inc({ operation: operation.toLowerCase(), status: status.toLowerCase(), source }, records)
      if (tokens > 0n && status === 'GRANTED') this.#tokensCharged.inc({ source }, inTokens(tokens))
      if (tokens < 0n) this.#tokensRefunded.inc({ source }, inTokens(-tokens))
    }
    if (refunds > 0) this.#refunds.inc({ source }, refunds)
    for (const result of ['charged', 'refused'] as const) {
      if (automaticCharges[result] > 0) this.#automaticCharges.inc({ result, source }, automaticCharges[result])
    }
  }

  eventsDelivered(sink: string, count: number): void {
    quietly(() => {
      this.#events.inc({ sink, outcome: 'delivered' }, count)
      this.#sinksFailing.set({ sink }, 0)
    })
  }

  eventRejected(sink: string): void {
    quietly(() => this.#events.inc({ sink, outcome: 'rejected' }))
  }

  sinkFailing(sink: string, failing: boolean): void {
    quietly(() => {
      this.#sinksFailing.set({ sink }, failing ? 1 : 0)
      for (const outcome of ['delivered', 'rejected']) this.#events.inc({ sink, outcome }, 0)
    })
  }

  fleet(figures: readonly InstanceFigures[]): void {
    this.#devices.reset()
    this.#tokensLeft.reset()
    for (const { instanceId, devices, leastLeft } of figures) {
      for (const [contact, number] of devices) {
        this.#devices.set({ instance_id: instanceId, contact: contact.toLowerCase() }, number)
      }
      if (leastLeft !== null) this.#tokensLeft.set({ instance_id: instanceId }, leastLeft)
    }
  }

  /** Concurrent scrapes share one query. */
  #look(): Promise<void> {
    this.#looking ??= this.#sample().finally(() => {
      this.#looking = undefined
    })
    return this.#looking
  }

  async #sample(): Promise<void> {
    const totals = await within(this.#deps.totalsTimeoutMs, this.#deps.totals()).catch(() => undefined)
    this.#totalsUp.set(totals === undefined ? 0 : 1)
    if (totals === undefined) {
      this.#sessions.reset()
      this.#outbox.remove()
      this.#tokensOnDevices.remove()
      return
    }
    for (const state of SESSION_STATES) {
      this.#sessions.set({ state: state.toLowerCase() }, totals.sessions.get(state) ?? 0)
    }
    this.#outbox.set(totals.outbox)
    this.#tokensOnDevices.set(inTokens(totals.grantedOut))
  }
}

type DecisionLabels = { readonly result: string; readonly code: string }

const LABELS_OF_CODE: Readonly<Record<ApiVersion, ReadonlyMap<string, DecisionLabels>>> = {
  'v1.0': labelsByCode('v1.0'),
  'v1.1': labelsByCode('v1.1'),
}

function labelsByCode(version: ApiVersion): ReadonlyMap<string, DecisionLabels> {
  const statuses = Object.keys(ITEM_STATUS) as ItemStatus[]
  return new Map(statuses.map((status) => [ITEM_STATUS[status][version], labelsOf(status)]))
}

function labelsOf(status: ItemStatus): DecisionLabels {
  const result = status === 'GRANTED' || status === 'NOT_CHARGED' ? status.toLowerCase() : 'refused'
  return { result, code: ITEM_STATUS[status]['v1.1'] }
}

/** Prometheus values are floating-point: exact up to 9 billion tokens. */
function inTokens(amount: Micro): number {
  return Number(amount) / Number(MICRO_PER_TOKEN)
}

/** Ignores errors: the counted work is done and its client is waiting. */
function quietly(count: () => void): void {
  try {
    count()
  } catch {
    // Ignored: later events are counted again.
  }
}
