/** The services and the repeated work of one cell, which is the whole cloud unless cells are configured. */
import { hostname } from 'node:os'
import type { Logger } from 'pino'
import { archiveTerms } from './check-settings.ts'
import type { ConsoleSignIn } from './console/sign-in.ts'
import type { ConsoleDeps } from './http/console/register-console.ts'
import { edgeOperations } from './http/edge/edge.ts'
import type { Operation } from './http/operation.ts'
import { serviceOperations } from './http/service/service.ts'
import { zstd } from './platform/archive/compression.ts'
import { openPlace } from './platform/archive/open-place.ts'
import { countDecisions } from './platform/metrics/serve-metrics.ts'
import { openSinks } from './platform/events/open-sinks.ts'
import type { Push } from './platform/mqtt/open-push.ts'
import type { Cell, CellNode } from './open-cell.ts'
import { isShared } from './open-cell.ts'
import { CloudShortages } from './sync/grants/cloud-shortages.ts'
import { Authenticator } from './service-api/authenticate.ts'
import type { SignIn } from './service-api/sign-in.ts'
import { CLOCK_LOOK_EVERY_MS } from './runtime/clock-guard.ts'
import { EventPublisher } from './events/publish-events.ts'
import type { Sink } from './events/sink.ts'
import { FleetWatch } from './devices/watch-fleet.ts'
import { takeNextKey } from './devices/change-device-key.ts'
import type { Keyring } from './devices/keyring.ts'
import { type ExpireInactive, expireNextInactive } from './sync/grants/expire-inactive.ts'
import { notifyServable, recallEveryMs, recallForCloud } from './sync/grants/watch-shortages.ts'
import { renewDuePolicy } from './policy/bump-policy-revision.ts'
import type { SyncDeps } from './sync/merge-context.ts'
import { endRecoveries } from './sync/recovery/recovery.ts'
import { TURN_EVERY_MS } from './sync/recovery/sales.ts'
import { SyncBatcher } from './sync/sync-batcher.ts'
import type { Defer } from './runtime/batcher.ts'
import { giveWayTo } from './runtime/give-way.ts'
import { type Timers, runRepeatedly } from './runtime/run-repeatedly.ts'
import { forgetTraffic } from './storage/audit.ts'
import { forgetAnswers } from './service-api/idempotency-key.ts'
import { AccessBatcher } from './service-api/request-access.ts'
import { heartbeatOfDevice, sweepNextSession } from './sessions/session-life.ts'
import type { EdgeTerms } from './devices/terms.ts'
import type { CloudSettings } from './settings.ts'
import { EventRetention } from './events/event-retention.ts'
import { ArchiveDaily } from './usage/archive/archive-daily.ts'

const FORGET_EVERY_MS = 60_000

/** How often to look whether archiving is due, ms. */
const ARCHIVE_EVERY_MS = 60_000

/** How often to make partitions of the usage in advance, and to drop archived ones, ms. */
const PARTITIONS_EVERY_MS = 60_000

const STATISTICS_EVERY_MS = 10_000

/** How often the metrics of instances change, ms. */
const FLEET_EVERY_MS = 60_000

/** How often to look for policies to renew: calendars last for weeks. */
const POLICIES_EVERY_MS = 60_000

/** How often to look for devices that were short of tokens that are available again, ms. */
const NOTIFY_EVERY_MS = 1_000

/** Shortest interval between recalls for the cloud's own needs; the sync interval can be this short, ms. */
const RECALL_EVERY_MIN_MS = 1_000

const SETTLE_EVERY_MS = 60_000

/** How often a sink looks for new events, ms. */
const EVENTS_EVERY_MS = 1_000

const MARK_EVERY_MS = 1_000

/**
 * Transactions of one-off requests that nodes can decide at the same time, each for other instances. In SQLite, they run one
 * after another anyway. With more, each serves fewer requests.
 */
const NODE_BATCHERS = 2

export interface CellDeps extends Pick<CellNode, 'settings' | 'log' | 'now' | 'newId'> {
  readonly timers: Timers
  /** Begins batches. */
  readonly defer: Defer
  readonly keys: Keyring
  /** Available when the first request is served. */
  readonly push: () => Push
  readonly signIn: SignIn | null
  /** Null: the console is off. */
  readonly consoleSignIn: ConsoleSignIn | null
  readonly publicAddress: () => string
  readonly isElsewhere?: ((instanceId: string) => Promise<boolean>) | undefined
}

export interface ComposedCell {
  readonly name: string
  readonly isOpen: boolean
  readonly store: Cell['store']
  readonly keys: Keyring
  readonly now: () => number
  readonly authenticator: Authenticator
  readonly operations: readonly Operation[]
  readonly console: Omit<ConsoleDeps, 'slots' | 'signIn' | 'isSecure' | 'controlled' | 'otherCellOf'>
  /** Starts the repeated work, which ends with the stack. */
  readonly run: (started: AsyncDisposableStack) => void
}

const heartbeat: SyncDeps['heartbeat'] = (tx, { id }, ...rest) => heartbeatOfDevice(tx, id, ...rest)

export async function composeCell(cell: Cell, deps: CellDeps): Promise<ComposedCell> {
  const { settings, log, now, newId, keys, push, signIn, defer, publicAddress } = deps
  const { store, policies, metrics, clock } = cell
  const { present, isTrusted: trustsClock } = clock
  const disconnect = (deviceId: string): void => push().drop(deviceId)
  const authenticator = new Authenticator({
    store,
    defer,
    takeNextKey: (deviceId, used) => takeNextKey({ store, now, onKeyReplaced: disconnect }, deviceId, used),
    signIn,
    keysVersion: cell.keysVersion,
  })
  const sinks = await openSinks(settings.events, now)
  const terms = termsOf(settings)
  const { tenantId } = settings.usage
  const service = serviceOf(cell, terms, deps)
  const settlement = settlementOf(cell, settings.edge, log)
  const presence = (deviceId: string) => push().presence(deviceId)
  const commands = { store, now, present, sessions: service, onRevoked: disconnect }
  const syncs = { store, keys, now, present, trustsClock, terms, policies, heartbeat, giveWay: service.giveWay }
  const forDevices = edgeOperations({
    ...commands,
    ...syncs,
    syncBatcher: new SyncBatcher(syncs, defer),
    console: deps.consoleSignIn,
    newId,
    presence,
    onKeyReplaced: disconnect,
    sinks,
    tenantId,
    addresses: () => ({
      edge: `${publicAddress()}/edge/api/v1`,
      service: `${publicAddress()}/api`,
      push: push().url,
    }),
    onOutcome: (outcome) => metrics.sync(outcome),
    onRestored: (deviceId, instances) => {
      log.warn({ code: 'STORE_RESTORED', deviceId, instances }, 'the store comes from a backup: recovery begins')
    },
    sweeps: { clock, settlement },
  })
  return {
    name: cell.name,
    isOpen: cell.isOpen,
    store,
    keys,
    now,
    authenticator,
    operations: [...countDecisions(serviceOperations(service), metrics), ...forDevices],
    console: {
      store,
      policies,
      presence,
      sinks,
      terms,
      authenticator,
      now,
      tenantId,
      sessions: service,
      devices: commands,
      giveWay: service.giveWay,
    },
    run: (started) => {
      publishEvents(cell, sinks, started, deps)
      runJobs(cell, { service, terms, settlement }, started, deps)
    },
  }
}

function serviceOf({ store, policies, clock }: Cell, terms: EdgeTerms, deps: CellDeps) {
  const { settings, newId, defer, isElsewhere } = deps
  const shortages = new CloudShortages(terms)
  return {
    store,
    policies,
    shortages,
    newId,
    tenantId: settings.usage.tenantId,
    sessionIntervalMs: terms.sessionIntervalMs,
    trustsClock: clock.isTrusted,
    present: clock.present,
    batcher: new AccessBatcher({ store, policies, shortages, defer, batchers: isShared(settings) ? NODE_BATCHERS : 1 }),
    keyDelayMs: settings.keys.delay,
    giveWay: giveWayTo(() => performance.now(), setImmediate),
    isElsewhere,
  }
}

type Job = readonly [everyMs: number, work: () => Promise<boolean> | Promise<void>, failed: string]

interface Jobs {
  readonly service: ReturnType<typeof serviceOf>
  readonly terms: EdgeTerms
  readonly settlement: ExpireInactive
}

function runJobs(cell: Cell, jobs: Jobs, started: AsyncDisposableStack, deps: CellDeps): void {
  const archive = archiveOf(cell, jobs.service.giveWay, deps)
  // The mark is on the disk of this node.
  const flush = async (): Promise<void> => cell.sales?.flush()
  started.defer(runRepeatedly(deps, MARK_EVERY_MS, flush, 'the sales mark was not flushed'))
  for (const [everyMs, work, failed] of [
    ...jobsOf(cell, jobs, deps),
    [ARCHIVE_EVERY_MS, () => archive.step(), 'usage was not archived'] as const,
  ]) {
    started.defer(runRepeatedly(deps, everyMs, async () => cell.store.isUp && (await work()) === true, failed))
  }
  started.defer(() => archive.stop())
}

function jobsOf(cell: Cell, { service, terms, settlement }: Jobs, { settings, log, now }: CellDeps): readonly Job[] {
  const { store, policies, clock, metrics } = cell
  const { isTrusted: trustsClock } = clock
  const sharing = { store, policies, now, terms }
  let recalledAt = -Infinity
  const recall = async (): Promise<void> => {
    const at = now()
    if (Math.abs(at - recalledAt) < recallEveryMs(terms)) return
    recalledAt = at
    await recallForCloud(sharing)
  }
  const forgetSessions = async (): Promise<boolean> => {
    const { sessionRetention, sessionsMax } = settings.audit
    return forgetTraffic(store, trustsClock() ? now() - sessionRetention : 0, sessionsMax)
  }
  const eventRetention = new EventRetention({
    store,
    now,
    trustsClock,
    log,
    terms: () => ({
      retentionMs: settings.events.retention,
      undeliveredRetentionMs: settings.events.undeliveredRetention,
    }),
  })
  const fleet = new FleetWatch({ store, policies, terms, now, onRound: (figures) => metrics.fleet(figures) })
  const renew = (): Promise<boolean> => store.transaction((tx) => renewDuePolicy(tx, now()))
  const settle = async (): Promise<boolean> => trustsClock() && expireNextInactive(settlement)
  const turn = async (): Promise<void> => cell.sales?.turn()
  const shared = isShared(settings)
  return [
    [TURN_EVERY_MS[shared ? 'shared' : 'alone'], turn, 'the sales mark was not compared'],
    ...(shared
      ? ([
          [PARTITIONS_EVERY_MS, () => cell.keepPartitions(), 'the partitions of the usage were not kept'],
          [STATISTICS_EVERY_MS, () => cell.renewStatistics(), 'the statistics of the database were not renewed'],
        ] as const)
      : []),
    [CLOCK_LOOK_EVERY_MS, () => clock.look(), 'the clocks were not compared'],
    [SETTLE_EVERY_MS, () => endRecoveries(store, now()), 'a recovery was not ended'],
    [SETTLE_EVERY_MS, settle, 'a silent device was not settled'],
    [NOTIFY_EVERY_MS, () => notifyServable(sharing), 'devices were not notified of tokens'],
    [RECALL_EVERY_MIN_MS, recall, 'tokens were not recalled for the cloud'],
    [settings.sessions.sweepEvery, () => sweepNextSession(service, now()), 'a session was not moved on'],
    [FORGET_EVERY_MS, async () => trustsClock() && forgetAnswers(store, now()), 'old answers were not deleted'],
    [FORGET_EVERY_MS, forgetSessions, 'old records of sessions were not deleted'],
    [FORGET_EVERY_MS, () => eventRetention.step(), 'old events were not deleted'],
    [POLICIES_EVERY_MS, renew, 'a policy was not renewed'],
    [FLEET_EVERY_MS, () => fleet.step(), 'the figures of an instance were not read'],
  ]
}

function settlementOf(cell: Cell, edge: CloudSettings['edge'], log: Pick<Logger, 'warn'>): ExpireInactive {
  const { store, policies, clock } = cell
  return {
    store,
    policies,
    present: clock.present,
    get afterMs() {
      return edge.settleAfter
    },
    get as() {
      return edge.settleAs === 'charge' ? 'CHARGED' : 'RELEASED'
    },
    get percentMax() {
      return edge.settlePercentMax
    },
    onPaused: (paused) => {
      if (paused === cell.isSettlementPaused) return
      cell.isSettlementPaused = paused
      const message = paused ? 'settlement waits for an administrator' : 'settlement continues'
      log.warn({ code: 'SETTLEMENT_TOO_LARGE' }, message)
    },
  }
}

function archiveOf(
  { name, store, clock, metrics }: Cell,
  giveWay: ConstructorParameters<typeof ArchiveDaily>[0]['giveWay'],
  { settings, log, now, newId }: CellDeps,
): ArchiveDaily {
  return new ArchiveDaily({
    store,
    compression: zstd,
    tenantId: settings.usage.tenantId,
    now,
    giveWay,
    terms: () => {
      const terms = archiveTerms(settings.usage)
      // Archives have positions, which the cells count for themselves.
      return terms === null || name === '' ? terms : { ...terms, place: `${terms.place.replace(/\/+$/, '')}/${name}` }
    },
    open: (place, signal) => openPlace(place, settings.s3, signal),
    newHolder: () => `The cloud on ${hostname()}, process ${process.pid} (${newId()})`,
    trustsClock: clock.isTrusted,
    onArchive: ({ place, manifest, records }) => {
      metrics.archive.archived(records)
      log.info({ place, manifest, records }, 'usage was archived')
    },
    onState: (state) => metrics.archive.state(state),
  })
}

function publishEvents(
  { store, metrics }: Cell,
  sinks: readonly Sink[],
  started: AsyncDisposableStack,
  { settings, log, now, newId, timers }: CellDeps,
): void {
  // Only one process uses a file, and its lease need not expire when it is killed.
  const nodeId = isShared(settings) ? newId() : 'file'
  for (const sink of sinks) {
    const publisher = new EventPublisher({
      store,
      now,
      log,
      sink,
      nodeId,
      tenantId: settings.usage.tenantId,
      fraction: Math.random,
      watcher: metrics,
    })
    const step = async (): Promise<boolean> => store.isUp && publisher.step()
    const stop = runRepeatedly({ timers, log }, EVENTS_EVERY_MS, step, `events were not sent to ${sink.name}`)
    started.defer(async () => {
      publisher.stop()
      await stop()
      if (store.isUp) await publisher.release()
      await sink.close()
    })
  }
}

/** A reload may change these, so they are read at each use. */
function termsOf({ edge, sessions: { trialInterval } }: CloudSettings): EdgeTerms {
  return {
    get grantLifetimeMs() {
      return edge.grantLifetime
    },
    get syncEveryMs() {
      return edge.syncEvery
    },
    get receiptMarginMs() {
      return edge.receiptMargin
    },
    get attachesMax() {
      return edge.attachesMax
    },
    grantHorizonMs: edge.grantHorizon,
    policyUsableMs: edge.policyUsable,
    sessionIntervalMs: trialInterval === 0 ? null : trialInterval,
  }
}
