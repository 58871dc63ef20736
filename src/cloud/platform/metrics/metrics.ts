/** Label values come from closed lists, never from callers, so that the number of series is bounded. */
import { Counter, Gauge, Histogram, Registry } from 'prom-client'
import { MICRO_PER_TOKEN, type Micro } from '../../../core/pricing/amount.ts'
import type { SessionState } from '../../../core/sessions/session.ts'
import { type ApiVersion, ITEM_STATUS, type ItemStatus } from '../../../protocol/service/status.ts'
import { PAUSED_BY, type PausedBy } from '../../runtime/clock-guard.ts'
import type { EventWatcher } from '../../events/publish-events.ts'
import type { InstanceFigures } from '../../devices/watch-fleet.ts'
import type { SyncOutcome } from '../../sync/sync.ts'
import type { DeliverySums } from '../../storage/device-records.ts'
import type { UsageRecord } from '../../storage/records.ts'
import type { Totals } from '../../storage/records.ts'
import type { StoreWatcher } from '../../storage/watch-store.ts'
import { ArchiveMetrics } from './archive-metrics.ts'
import { CellMetrics } from './cell-metrics.ts'
import { collectProcessMetrics } from './process-metrics.ts'

const OF_NODE: ReadonlySet<string> = new Set([
  'http_requests_total',
  'http_request_duration_seconds',
  'http_bodies_incomplete_total',
  'config_last_reload_successful',
  'last_backup_timestamp_seconds',
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

const SYNC_OUTCOMES: Readonly<Record<SyncOutcome, string>> = {
  MERGE: 'merge',
  REPEAT: 'repeat',
  KNOWN: 'known',
  BEHIND: 'behind',
  FORK: 'fork',
  UNREADABLE: 'unreadable',
  REJECTED: 'rejected',
}

const SOURCES: readonly UsageRecord['source']['kind'][] = ['one-off', 'session', 'device']

const SESSION_STATES: readonly SessionState[] = ['IDLE', 'ACTIVE', 'LOCKED', 'TERMINATED', 'DISCONNECTED', 'FAILED']

/** Seconds. A commit takes 0.1 to 10 ms depending on the disk; waiting for locks takes longer. */
const BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]

export class Metrics implements StoreWatcher, EventWatcher {
  readonly #registry = new Registry()
  readonly archive = new ArchiveMetrics(this.#registry)
  readonly #deps: MetricsDeps
  readonly #requests: Counter<'method' | 'route' | 'status'>
  readonly #requestSeconds: Histogram<'method' | 'route'>
  readonly #brokenBodies: Counter
  readonly #decisions: Counter<'result' | 'code'>
  readonly #usage: Counter<'operation' | 'status' | 'source'>
  readonly #tokensCharged: Counter<'source'>
  readonly #tokensRefunded: Counter<'source'>
  readonly #automaticCharges: Counter<'result' | 'source'>
  readonly #refunds: Counter<'source'>
  readonly #syncs: Counter<'outcome'>
  readonly #transactionSeconds: Histogram<'result'>
  readonly #sessions: Gauge<'state'>
  readonly #outbox: Gauge
  readonly #tokensOnDevices: Gauge
  readonly #totalsUp: Gauge
  readonly #reloaded: Gauge
  readonly #lastBackup: Gauge
  readonly #paused: Gauge<'code'>
  readonly #events: Counter<'sink' | 'outcome'>
  readonly #sinksFailing: Gauge<'sink'>
  readonly #devices: Gauge<'instance_id' | 'contact'>
  readonly #tokensLeft: Gauge<'instance_id'>
  readonly #cell: CellMetrics | null
  #looking: Promise<void> | undefined

  constructor(deps: MetricsDeps) {
    this.#deps = deps
    const registers = [this.#registry]
    const counter = <L extends string = never>(name: string, help: string, ...labelNames: L[]): Counter<L> =>
      new Counter({ name: `tallygate_${name}`, help, labelNames, registers })
    const gauge = <L extends string = never>(name: string, help: string, ...labelNames: L[]): Gauge<L> =>
      new Gauge({ name: `tallygate_${name}`, help, labelNames, registers })
    const seconds = <L extends string>(name: string, help: string, ...labelNames: L[]): Histogram<L> =>
      new Histogram({ name: `tallygate_${name}`, help, labelNames, registers, buckets: BUCKETS })

    this.#requests = counter('http_requests_total', 'HTTP requests answered.', 'method', 'route', 'status')
    this.#requestSeconds = seconds(
      'http_request_duration_seconds',
      'Time from the request head to the end of the response.',
      'method',
      'route',
    )
    this.#brokenBodies = counter(
      'http_bodies_incomplete_total',
      'Requests whose connection ended before the body was complete.',
    )
    this.#decisions = counter(
      'decisions_total',
      'Items decided on access requests, by result and status code of API v1.1.',
      'result',
      'code',
    )
    this.#usage = counter(
      'usage_records_total',
      'Usage records committed, by operation, status, and where the request came from.',
      'operation',
      'status',
      'source',
    )
    this.#tokensCharged = counter('tokens_charged_total', 'Tokens charged by committed usage records.', 'source')
    this.#tokensRefunded = counter('tokens_refunded_total', 'Tokens refunded by committed usage records.', 'source')
    this.#automaticCharges = counter('automatic_charges_total', 'Due session charges, by result.', 'result', 'source')
    this.#refunds = counter('refunds_total', 'Refunds of prepaid session time that was not used.', 'source')
    this.#syncs = counter('edge_syncs_total', 'Segments received from devices, by outcome.', 'outcome')
    this.#transactionSeconds = seconds(
      'store_transaction_duration_seconds',
      'Duration of store transactions including waiting, by result.',
      'result',
    )
    this.#sessions = gauge('sessions', 'Sessions in the store, counted up to 100000.', 'state')
    this.#outbox = gauge('outbox_backlog', 'Change notifications waiting to be published, counted up to 100000.')
    this.#tokensOnDevices = gauge('tokens_on_devices', 'Tokens granted to devices and not returned.')
    this.#totalsUp = gauge('store_totals_up', 'Whether the store returned its totals for this scrape.')
    this.#reloaded = gauge('config_last_reload_successful', 'Whether the last reload of the settings succeeded.')
    this.#lastBackup = gauge('last_backup_timestamp_seconds', 'Time of the last successful backup of the store.')
    this.#paused = gauge('sweeps_paused', 'Whether irreversible background work is paused, by reason.', 'code')
    this.#events = counter('events_total', 'Events sent, by sink and outcome.', 'sink', 'outcome')
    this.#sinksFailing = gauge('event_sink_failing', 'Whether the last attempt to send events failed.', 'sink')
    this.#devices = gauge(
      'devices',
      'Devices of the first 50 instances by contact, counted up to 10000, once a minute.',
      'instance_id',
      'contact',
    )
    this.#tokensLeft = gauge(
      'instance_tokens_left_ratio',
      'Part of the tokens that is left in the scarcest line item of the instance, once a minute.',
      'instance_id',
    )
    gauge('build_info', 'Version of the running service; always 1.', 'version', 'node').set(
      { version: deps.version, node: process.versions.node },
      1,
    )
    this.#startSeries()
    this.#cell = this.#keepOnly(deps.part)
  }

  /** Counters at zero: Prometheus sees no increase in a series that begins with its first event, so alerts would miss that event. */
  #startSeries(): void {
    this.#reloaded.set(1)
    for (const outcome of Object.values(SYNC_OUTCOMES)) this.#syncs.inc({ outcome }, 0)
    for (const labels of LABELS_OF_CODE['v1.1'].values()) this.#decisions.inc(labels, 0)
    for (const source of SOURCES) {
      this.#tokensCharged.inc({ source }, 0)
      this.#tokensRefunded.inc({ source }, 0)
    }
  }

  #keepOnly(part: MetricsDeps['part']): CellMetrics | null {
    const isOfNode = part === undefined || part === 'NODE'
    if (isOfNode) collectProcessMetrics(this.#registry)
    else this.#registry.setDefaultLabels({ cell: part.cell })
    for (const { name } of part === undefined ? [] : this.#registry.getMetricsAsArray()) {
      const own = /^tallygate_(.*)$/.exec(name)?.[1]
      if (own !== undefined && OF_NODE.has(own) !== isOfNode) this.#registry.removeSingleMetric(name)
    }
    return isOfNode ? null : new CellMetrics(this.#registry)
  }

  cell(isUp: boolean, isBehind: boolean): void {
    this.#cell?.set(isUp, isBehind)
  }

  get contentType(): string {
    return this.#registry.contentType
  }

  async text(): Promise<string> {
    await this.#look()
    const backupAt = this.#deps.lastBackupAt()
    if (backupAt === null) this.#lastBackup.remove()
    else this.#lastBackup.set(backupAt / 1_000)
    const paused = this.#deps.paused()
    for (const code of PAUSED_BY) this.#paused.set({ code }, paused.includes(code) ? 1 : 0)
    return this.#registry.metrics()
  }

  reloaded(successfully: boolean): void {
    this.#reloaded.set(successfully ? 1 : 0)
  }

  request(method: string, route: string | undefined, status: number, ms: number): void {
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
    quietly(() => this.#syncs.inc({ outcome: SYNC_OUTCOMES[outcome] }))
  }

  transaction(committed: boolean, ms: number): void {
    this.#transactionSeconds.observe({ result: committed ? 'committed' : 'failed' }, ms / 1_000)
  }

  usage(records: readonly UsageRecord[]): void {
    const refunded = new Set<string>()
    const renewed = new Set<string>()
    for (const { operation, status, source, tokens, correlationId } of records) {
      const from = { source: source.kind }
      this.#usage.inc({ operation: operation.toLowerCase(), status: status.toLowerCase(), ...from })
      if (tokens > 0n && status === 'GRANTED') this.#tokensCharged.inc(from, inTokens(tokens))
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
    const totals = await within(this.#deps.totalsTimeoutMs, this.#deps.totals)
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

/** Undefined on failure or timeout. */
async function within<T>(ms: number, work: () => Promise<T>): Promise<T | undefined> {
  const late = Promise.withResolvers<undefined>()
  const timer = setTimeout(() => late.resolve(undefined), ms)
  try {
    return await Promise.race([work().catch(() => undefined), late.promise])
  } finally {
    clearTimeout(timer)
  }
}
