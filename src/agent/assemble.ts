/** Wires the agent's use cases over any adapters, so that the daemon and the simulator run the same code. */
import { ENGINE, type Engine } from '../core/engine.ts'
import { wholeTokens } from '../core/pricing/amount.ts'
import { Access } from './access/access.ts'
import { Callers } from './access/callers/callers.ts'
import { correlationIds } from './access/correlation-ids.ts'
import type { Names } from './access/callers/caller-selector.ts'
import { Clock, type TimeSource } from './runtime/clock.ts'
import { type Timers, repeat } from './runtime/timers.ts'
import type { WriteBehindDeps } from './ledger/write-behind.ts'
import type { Journal, Snapshot } from './ledger/journal.ts'
import { type Edit, deriveState, openSigned, trustInAnswers } from './ledger/signed-state.ts'
import { type StatusDeps, derivedConditions, logDamaged, logEdits, statusOf } from './diagnostics/status.ts'
import { DerivedConditions } from './diagnostics/derived-conditions.ts'
import { IdempotencyCache } from './access/idempotency-cache.ts'
import { Ledger } from './ledger/ledger.ts'
import type { Cloud } from './sync/cloud.ts'
import type { DeviceKeys } from './keys/device-key.ts'
import { DeviceTokens } from './keys/device-token.ts'
import { type Link, createLink } from './sync/link.ts'
import type { EnrollmentToken, AgentLog, Randomness } from './sync/ports.ts'
import type { Push } from './sync/push.ts'
import { LocalDecisions } from './access/local-decisions.ts'
import { currentOffers } from './access/offers.ts'
import type { OffersWire } from '../protocol/local/offers.ts'
import { ActivePolicies } from './policy/active-policies.ts'
import { ReadinessProbe } from './diagnostics/readiness.ts'
import { Refusals } from './diagnostics/refusals.ts'
import { recoverReservations } from './ledger/recover-reservations.ts'
import { Sessions } from './sessions/sessions.ts'
import type { LeftLog, VolatileLog } from './ledger/volatile-log.ts'
import { UseOverTime } from './diagnostics/use-over-time.ts'
import { Wear } from './diagnostics/wear.ts'
import type { KeptDecision } from '../protocol/local/decision.ts'
import type { LastBackup } from '../protocol/local/last-backup.ts'
import { Secret } from '../settings/option.ts'
import type { ReloadNotice } from '../settings/reload.ts'
import type { AgentSettings } from './settings.ts'

export interface AgentDeps {
  /** Reloadable settings are read at each use. */
  readonly settings: AgentSettings
  readonly reloadNotice?: () => ReloadNotice | null
  readonly journal: Journal
  readonly keys: DeviceKeys
  readonly time: TimeSource
  /** Monotonic process time in fractional ms, for measurements finer than the boot-time clock. */
  readonly elapsed: () => number
  readonly timers: Timers
  readonly randomness: Randomness
  readonly newId: () => string
  /** Calls back after all input that is already available was handled. */
  readonly defer: (call: () => void) => void
  /** Absent: every response follows its commit, whatever the settings say. */
  readonly volatileLog?: VolatileLog & { readonly left: () => LeftLog | undefined }
  readonly cloud: (tokens: DeviceTokens) => Cloud
  /** Bytes written to storage by this process. Absent or null: unknown. */
  readonly written?: () => number | null
  readonly tokenFileProblem?: (path: string) => string
  readonly lastBackup?: () => LastBackup | null
  readonly push: Push | null
  readonly names: Names
  readonly ownUid: number
  readonly version: string
  /** Absent: the engine of this software; a test or simulation states another. */
  readonly engine?: Engine | undefined
  readonly log: AgentLog
  /** The process must exit and restart. */
  readonly onFatal: (error: unknown) => void
}

export interface AssembledAgent {
  readonly clock: Clock
  readonly ledger: Ledger
  readonly link: Link
  readonly access: Access
  readonly offers: () => OffersWire
  readonly sessions: Sessions
  readonly callers: Callers
  readonly status: () => ReturnType<typeof statusOf>
  /** Logs conditions that follow from the state. Returns a function that stops it. */
  watchConditions(): () => void
  readonly readiness: ReadinessProbe
  readonly wear: Pick<Wear, 'start' | 'stop'>
  readonly refusals: Refusals
  readonly use: UseOverTime
  readonly decision: (correlationId: string) => Promise<KeptDecision | null>
  /** Saves the clock regularly while nothing else writes. Returns a function that stops it. */
  keepClock(): () => void
  drain(): Promise<void>
  stop(): void
}

const CLOCK_EVERY_MS = 60_000

/** Reads the journal. No background work runs until the link starts. */
export async function assembleAgent(deps: AgentDeps): Promise<AssembledAgent> {
  const { settings, journal, keys, time, timers, randomness, log, onFatal, version, engine = ENGINE } = deps
  const found = await journal.read()
  const clock = new Clock(time, found.clock)
  const newCorrelationId = correlationIds(deps.newId)
  const recovered = (await recover({ ...deps, newCorrelationId }, clock, found)) ? await journal.read() : found
  const { snapshot, edits } = await withSignedState(recovered, log)
  const policies = new ActivePolicies()
  const use = new UseOverTime({ now: () => clock.reading().now, sinceBoot: () => clock.sinceBoot() })
  const ledger = new Ledger(
    {
      journal,
      writeBehind: writeBehindOf(deps),
      clock,
      policies,
      startingGrant: wholeTokens(settings.grants.starting),
      batchEntries: settings.sync.batch,
      defer: deps.defer,
      now: deps.elapsed,
      timers,
      onCharged: (postings) => use.add(postings),
      beforeFreeze: () => sessions.suspend(),
      onNeed: () => link.wake('low-water'),
      onFatal,
    },
    snapshot,
  )
  const tokens = new DeviceTokens(keys, clock)
  const link = await createLink({
    journal,
    ledger,
    clock,
    keys,
    tokens,
    randomness,
    timers,
    log,
    onFatal,
    activePolicies: policies,
    cloud: deps.cloud(tokens),
    enrollmentToken: async () => enrollmentTokenOf(deps),
    settings,
    software: `tallygate ${version}`,
    engine,
    snapshot,
    push: deps.push,
    applyCommands: (commands) => sessions.applyCommands(commands, () => link.wake('notification')),
  })
  const running = { clock, policies, ledger, link, use, newCorrelationId }
  const requests = requestsOf(deps, running, snapshot)
  const { sessions } = requests
  const diagnostics = diagnosticsOf(deps, running, { ...snapshot, edits })
  return {
    clock,
    ledger,
    link,
    ...requests,
    ...diagnostics,
    keepClock: () => keepClock(journal, ledger, timers),
    drain: () => drain(sessions, ledger, journal),
    stop: () => {
      sessions.stop()
      diagnostics.wear.stop()
      ledger.stop()
    },
  }
}

async function drain(sessions: Sessions, ledger: Ledger, journal: Journal): Promise<void> {
  sessions.stop()
  await sessions.settled()
  await ledger.close()
  // A failing journal reports itself.
  await journal.saveClock(ledger.stamp()).catch(() => undefined)
}

function enrollmentTokenOf({ settings, tokenFileProblem }: AgentDeps): EnrollmentToken {
  const { token } = settings.enrollment
  return token instanceof Secret
    ? { token: token.reveal(), source: token.source }
    : { token: null, reason: tokenFileProblem?.(token.source) ?? 'There is no enrollment token.' }
}

interface Running {
  readonly clock: Clock
  readonly policies: ActivePolicies
  readonly ledger: Ledger
  readonly link: Link
  readonly use: UseOverTime
  readonly newCorrelationId: () => string
}

function requestsOf(
  { settings, names, ownUid, newId, timers, log, onFatal, engine = ENGINE }: AgentDeps,
  { clock, policies, ledger, link, newCorrelationId }: Running,
  snapshot: Snapshot,
): Pick<AssembledAgent, 'access' | 'offers' | 'callers' | 'sessions'> {
  const idempotencyCache = new IdempotencyCache(snapshot.idempotencyCache, settings.state.answersMax)
  const callers = new Callers(settings.callers, names, ownUid, () => clock.sinceBoot())
  const decisions = new LocalDecisions({
    ledger,
    policies,
    clock,
    link,
    get topUpDeadlineMs() {
      return settings.grants.topUpDeadline
    },
  })
  const access = new Access({
    ledger,
    decisions,
    idempotencyCache,
    keepsInputs: settings.explain.decisions > 0,
    newCorrelationId,
    engine: engine.version,
  })
  const sessions = new Sessions(
    {
      ledger,
      policies,
      link,
      access,
      clock,
      get liveMax() {
        return settings.sessions.liveMax
      },
      timers,
      newId,
      newCorrelationId,
      engine: engine.version,
      onCharged: (owner, tokens, quota) => (quota ?? callers.quotaOfOwner(owner))?.charged(tokens),
      log,
      onFatal,
    },
    snapshot.sessions,
  )
  const offers = (): OffersWire => currentOffers({ policies, link }, clock.reading())
  return { access, offers, callers, sessions }
}

function diagnosticsOf(
  deps: AgentDeps,
  { clock, policies, ledger, link, use, newCorrelationId }: Running,
  { salvages = [], edits }: Pick<Snapshot, 'salvages'> & Pick<StatusDeps, 'edits'>,
): Pick<AssembledAgent, 'status' | 'watchConditions' | 'refusals' | 'use' | 'decision' | 'readiness' | 'wear'> {
  const { settings, journal, timers, version, log, engine = ENGINE } = deps
  const wear = new Wear({
    written: deps.written ?? (() => null),
    lastEntry: () => ledger.lastEntry(),
    sinceBoot: () => clock.sinceBoot(),
    now: () => clock.reading().now,
    timers,
    budget: () => settings.state.writeBudget,
  })
  const refusals = new Refusals({
    now: () => clock.reading().now,
    newCorrelationId,
    most: settings.explain.refusals,
  })
  const statusDeps = {
    version,
    engine: engine.version,
    startedAt: clock.reading().now,
    ledger,
    policies,
    link,
    clock,
    journal,
    salvages,
    edits,
    wear,
    demand: ledger.demand,
    reloadNotice: deps.reloadNotice ?? (() => null),
    lastBackup: deps.lastBackup ?? (() => null),
    backupMaxAgeMs: () => settings.backup.maxAge,
  }
  const derived = new DerivedConditions({ find: () => derivedConditions(statusDeps), log, timers })
  return {
    status: () => statusOf(statusDeps, derived.list()),
    watchConditions: () => derived.watch(),
    refusals,
    use,
    decision: async (correlationId) => {
      const refusal = refusals.get(correlationId)
      if (refusal !== undefined) return { kind: 'refusal', refusal }
      await ledger.reached(correlationId)
      const found = await journal.find(correlationId)
      return found === null ? null : { kind: 'entry', ...found }
    },
    readiness: new ReadinessProbe({ ledger, policies, link, clock, journal, timers }),
    wear,
  }
}

async function withSignedState(
  stored: Snapshot,
  log: AgentLog,
): Promise<{ readonly snapshot: Snapshot; readonly edits: readonly Edit[] }> {
  logDamaged(log, stored.salvages ?? [])
  const { identity, epoch } = stored
  if (identity === null) return { snapshot: stored, edits: [] }
  const trust = await trustInAnswers(identity)
  const signed = await openSigned(stored.signedAnswers, trust, { deviceId: identity.deviceId, epoch })
  const { edits, ...derived } = deriveState(stored, signed)
  logEdits(log, edits)
  return { snapshot: { ...stored, ...derived }, edits }
}

/** Whether the journal has changed. */
async function recover(
  { journal, volatileLog, time, newCorrelationId, log, engine = ENGINE }: AgentDeps & Pick<Running, 'newCorrelationId'>,
  clock: Clock,
  snapshot: Snapshot,
): Promise<boolean> {
  const stored = clock.stored()
  const sameBoot = snapshot.clock?.bootId === stored.bootId
  const passed = sameBoot ? Math.max(0, stored.sinceBoot - snapshot.clock.sinceBoot) : stored.sinceBoot
  const deps = {
    journal,
    left: volatileLog?.left(),
    bootId: time.bootId,
    reading: clock.reading(),
    stamp: { clock: stored, grantAgedMs: Math.floor((snapshot.grant?.agedMs ?? 0) + passed) },
    newCorrelationId,
    log,
    engine: engine.version,
  }
  return recoverReservations(deps, snapshot)
}

function writeBehindOf({ settings, journal, volatileLog, log }: AgentDeps): WriteBehindDeps | null {
  if (settings.durability !== 'write-behind' || volatileLog === undefined) return null
  let level: 'info' | 'warn' = 'info'
  return {
    journal,
    log: volatileLog,
    reservationMax: wholeTokens(settings.writeBehind.reservationMax),
    onLog: (error) => {
      if (error !== null) log.warn({ err: error }, 'the volatile log cannot be written: responses wait for the commit')
      else log[level]({}, 'write-behind is on: responses are sent from reservations on disk')
      level = error === null ? 'info' : 'warn'
    },
  }
}

function keepClock(journal: Pick<Journal, 'saveClock'>, ledger: Ledger, timers: Timers): () => void {
  let lastEntry = ledger.lastEntry()
  return repeat(timers, CLOCK_EVERY_MS, () => {
    const isIdle = ledger.lastEntry() === lastEntry
    lastEntry = ledger.lastEntry()
    if (!isIdle) return
    // A failing journal reports itself; the next attempt follows.
    journal.saveClock(ledger.stamp()).catch(() => undefined)
  })
}
