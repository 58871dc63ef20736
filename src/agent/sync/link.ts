/**
 * The device's connection to the cloud. Only durable state passes between rounds. It never decides access requests, and
 * they wait for it only in {@link Link.requestGrant}.
 */
import { CodedError } from '../../protocol/errors.ts'
import type { AgentStatusWire } from '../../protocol/local/status.ts'
import type { Identity, Snapshot } from '../ledger/journal.ts'
import type { PoolBalances, WaitingTopUp } from '../access/local-decisions.ts'
import type { DeviceTokens } from '../keys/device-token.ts'
import { Health, type HealthCondition, PUSH, REVOCATION } from '../runtime/health.ts'
import { closeCloudSession } from './cloud-sessions.ts'
import { type LinkMemory, backlogOf, remember } from './memory.ts'
import type { Timers } from '../runtime/timers.ts'
import { type Push, type PushOptions, isNews } from './push.ts'
import { restorePolicies } from './fetch-policy.ts'
import { keyState } from './rotate-key.ts'
import { RotationRequests, type RotationStatus } from '../keys/rotation-requests.ts'
import { runRound } from './round.ts'
import { type RoundResult, Rounds, type WakeReason } from './rounds.ts'
import { raiseAndLog, showSuspension, type StepContext } from './step.ts'
import { WaitingRequests } from './waiting-requests.ts'

/** The link's part of the agent's status, with what only this process uses. */
export interface LinkStatus extends Pick<
  AgentStatusWire,
  | 'deviceId'
  | 'name'
  | 'epoch'
  | 'fenced'
  | 'key'
  | 'suspension'
  | 'connected'
  | 'lastContactAt'
  | 'lastSyncAt'
  | 'retryInMs'
  | 'backlog'
  | 'unacknowledgedSeq'
  | 'policies'
  | 'sessions'
  | 'push'
> {
  readonly rounds: { readonly done: number; readonly failed: number; readonly running: boolean }
  /** Change notifications that have started a round. */
  readonly notifications: number
  readonly conditions: readonly HealthCondition[]
}

export interface LinkDeps extends Omit<StepContext, 'memory' | 'health' | 'waiting' | 'rotation' | 'signal'> {
  readonly snapshot: Snapshot
  readonly timers: Timers
  readonly tokens: Pick<DeviceTokens, 'fresh'>
  readonly push: Push | null
  /** Called once on a broken invariant or a write with unknown outcome: the process must end and reopen. */
  readonly onFatal: (error: unknown) => void
}

export async function createLink(deps: LinkDeps): Promise<Link> {
  const { snapshot } = deps
  const finished = snapshot.fenced && snapshot.unacknowledged === null && snapshot.lastSeq > 0
  const closed = finished && (await deps.journal.sealed(snapshot.lastSeq))?.final === true
  return new Link(deps, await remember(snapshot, closed))
}

function stopping(): CodedError {
  return new CodedError('STOPPING', 'The agent is stopping.')
}

/** After a broker's failure, longest time until the cloud is checked, ms: a whole fleet may lose its broker at once. */
const DOUBT_MS = 30_000

type PushPlace = Pick<Identity, 'pushUrl' | 'instanceIds'>

function isSamePush(one: PushPlace, other: PushPlace): boolean {
  return one.pushUrl === other.pushUrl && one.instanceIds.join() === other.instanceIds.join()
}

export class Link {
  readonly #deps: LinkDeps
  readonly #memory: LinkMemory
  readonly #health: Health
  readonly #waiting: WaitingRequests
  readonly #rounds: Rounds
  readonly #rotation = new RotationRequests()
  /** Broker and instances of the connection; without a broker, there is no connection. */
  #pushOf: PushPlace = { pushUrl: null, instanceIds: [] }
  /** Ends when the connection is closed; null: there has been none. */
  #push: Promise<void> | null = null
  #pushStopped = new AbortController()
  #pushConnected = false
  /** Reported only after the cloud was checked: if it is away too, or refuses a revoked key, that is one fault. */
  #pushTrouble: CodedError | null = null
  #notifications = 0
  #broken = false
  #stopped: Promise<void> | null = null

  constructor(deps: LinkDeps, memory: LinkMemory) {
    const { clock, timers, randomness, settings } = deps
    this.#deps = deps
    this.#memory = memory
    this.#health = new Health(
      () => clock.reading().now,
      ({ subject, code, since }) => deps.log.warn({ subject, code, since }, 'a problem has ended'),
    )
    this.#waiting = new WaitingRequests(timers)
    this.#rounds = new Rounds({
      timers,
      sinceBoot: () => clock.sinceBoot(),
      randomness,
      backoffBaseMs: settings.sync.backoffMin,
      backoffCapMs: settings.sync.backoffMax,
      round: (reasons, signal) => this.#round(reasons, signal),
    })
  }

  /** Verifies the stored policies, puts them in force and starts the rounds. Does not wait for the cloud. */
  async start(): Promise<void> {
    const context = this.#context(this.#pushStopped.signal)
    const { keys } = this.#deps
    // The previous process ended in the middle of a key change.
    if (keyState(keys, this.#memory, false) === 'REPLACE') await keys.replace(this.#memory.identity?.keyLinks ?? [])
    showSuspension(context, this.#memory.identity?.suspension ?? null)
    await restorePolicies(context, this.#deps.snapshot.policies)
    this.#followBroker()
    this.#rounds.wake('timer')
  }

  /** Requests a round. Calls during a round cause exactly one more. */
  wake(reason: WakeReason): void {
    this.#rounds.wake(reason)
  }

  /** A request was refused that the cloud could have helped. If it was unreachable, the next attempt comes sooner. */
  hasten(): void {
    if (this.#health.has('cloud', 'CLOUD_UNREACHABLE')) this.#rounds.hasten()
  }

  /**
   * Resolves with the cloud's answer when a round that carried the request has ended; with null after `deadlineMs`, or
   * at once when the cloud is known to be unreachable. Then the next attempt to reach it comes sooner.
   */
  async requestGrant(request: WaitingTopUp, deadlineMs: number): Promise<PoolBalances | null> {
    const { contact, identity } = this.#memory
    this.hasten()
    const hopeless = deadlineMs <= 0 || identity === null || contact === 'DOWN' || this.#rounds.waiting
    if (hopeless || this.#broken || this.#stopped !== null) return null
    const waited = this.#waiting.wait(request, deadlineMs)
    this.#rounds.wake('request')
    return waited
  }

  /** Where the cloud serves the service API; null: not enrolled yet. */
  get serviceUrl(): string | null {
    return this.#memory.identity?.serviceUrl ?? null
  }

  /**
   * Resolves when the request would survive a power cut; the key is made when the cloud is reachable.
   * @throws CodedError NOT_ENROLLED, DEVICE_KEY_PROVIDED, STATE_UNWRITABLE, NOT_RECORDED, STOPPING
   */
  async rotateKey(): Promise<RotationStatus> {
    if (this.#memory.identity === null) {
      throw new CodedError('NOT_ENROLLED', 'A device that is not enrolled has no key that the cloud knows.')
    }
    if (this.#broken || this.#stopped !== null) throw stopping()
    const kept = this.#rotation.ask()
    this.#rounds.wake('operator')
    return kept
  }

  /** Ends the round under way, closes the cloud sessions if possible, and stops. Idempotent. */
  stop(): Promise<void> {
    return (this.#stopped ??= this.#stop())
  }

  status(): LinkStatus {
    const memory = this.#memory
    const { activePolicies, clock } = this.#deps
    const reading = clock.reading()
    return {
      deviceId: memory.identity?.deviceId ?? null,
      name: memory.identity?.name ?? null,
      epoch: memory.epoch,
      fenced: memory.fence !== 'NONE',
      key: this.#key(),
      suspension: memory.identity?.suspension ?? null,
      connected: memory.contact === 'UP',
      lastContactAt: memory.lastContactAt,
      lastSyncAt: memory.lastSyncAt,
      retryInMs: this.#rounds.waitMs,
      backlog: backlogOf(memory, this.#deps.ledger.lastEntry()),
      unacknowledgedSeq: memory.unacknowledged?.seq ?? null,
      policies: [...memory.policies].map(([instanceId, { applied, newest, engine }]) => {
        const policy = activePolicies.get(instanceId.toLowerCase())
        const name = policy?.document.instanceName ?? null
        const remainingMs = policy === undefined ? 0 : Math.max(0, activePolicies.remainingMs(policy, reading))
        return { instanceId, applied, newest, engine, name, remainingMs }
      }),
      sessions: [...memory.sessions].map(([instanceId, { session }]) => {
        return { instanceId, state: session.state, sessionId: session.sessionId }
      }),
      push: this.#pushOf.pushUrl === null ? 'OFF' : this.#pushConnected ? 'CONNECTED' : 'DISCONNECTED',
      rounds: this.#rounds.counts,
      notifications: this.#notifications,
      conditions: this.#health.list(),
    }
  }

  #key(): LinkStatus['key'] {
    const { signer } = this.#deps.keys.current
    const { identity } = this.#memory
    const since = identity?.keyId === signer.keyId ? (identity.keySince ?? null) : null
    return { id: signer.keyId, since, next: identity?.nextKey?.id ?? null }
  }

  /** Never rejects. */
  async #round(reasons: ReadonlySet<WakeReason>, signal: AbortSignal): Promise<RoundResult> {
    try {
      const result = await runRound(this.#context(signal), reasons)
      this.#followBroker()
      this.#judgeBroker()
      // A request arrived too late for this round's segment.
      if (result.ok && this.#waiting.hasNew) this.#rounds.wake('request')
      return result
    } catch (error) {
      this.#break(error)
      return { ok: false, retryAfterMs: 0 }
    }
  }

  #context(signal: AbortSignal): StepContext {
    return {
      ...this.#deps,
      memory: this.#memory,
      health: this.#health,
      waiting: this.#waiting,
      rotation: this.#rotation,
      signal,
    }
  }

  #break(error: unknown): void {
    if (this.#broken) return
    this.#broken = true
    this.#waiting.resolveAll()
    this.#rotation.failed(stopping())
    this.#pushStopped.abort()
    void this.#rounds.stop()
    this.#deps.onFatal(error)
  }

  async #stop(): Promise<void> {
    await this.#rounds.stop()
    this.#waiting.resolveAll()
    this.#rotation.failed(stopping())
    if (!this.#broken && this.#memory.contact === 'UP') await this.#leaveCloud()
    this.#pushStopped.abort()
    await this.#push
  }

  async #leaveCloud(): Promise<void> {
    const { settings, timers, log } = this.#deps
    const late = new AbortController()
    const cancel = timers.after(settings.sync.stopTimeout, () => late.abort())
    const context = this.#context(late.signal)
    try {
      if (settings.grants.returnOnStop && this.#memory.fence === 'NONE' && this.#memory.epoch > 0) {
        this.#memory.returnsAll = true
        await runRound(context, new Set())
      }
      for (const [instanceId, { session }] of this.#memory.sessions) {
        if (session.sessionId !== null) await closeCloudSession(context, instanceId, session.sessionId)
      }
    } catch (error) {
      if (error instanceof CodedError) log.info({ code: error.code }, 'the cloud was not notified of the stop')
      else this.#break(error)
    } finally {
      cancel()
    }
  }

  /** Connects to the broker of the identity for all of its instances, and ends any other connection. */
  #followBroker(): void {
    const { push } = this.#deps
    const { identity } = this.#memory
    if (push === null || identity === null || isSamePush(identity, this.#pushOf) || this.#broken) return
    this.#pushStopped.abort()
    this.#pushStopped = new AbortController()
    this.#pushOf = identity
    this.#pushTrouble = null
    if (identity.pushUrl === null) {
      this.#health.clear(PUSH)
      return
    }
    const { signal } = this.#pushStopped
    const options = this.#pushOptions(identity, identity.pushUrl, signal)
    this.#push = this.#runAfter(this.#push, push, options, signal).catch((error: unknown) => this.#break(error))
  }

  /** Both connections have the same client id: a broker with two addresses would close one for the other. */
  async #runAfter(former: Promise<void> | null, push: Push, options: PushOptions, signal: AbortSignal): Promise<void> {
    if (former !== null) await former
    if (!signal.aborted) await push.run(options, signal)
  }

  #pushOptions(identity: Identity, url: string, signal: AbortSignal): PushOptions {
    const { tokens, log } = this.#deps
    const { deviceId, instanceIds } = identity
    return {
      url,
      deviceId,
      instanceIds,
      password: () => tokens.fresh(this.#memory.identity ?? identity),
      onMessage: (topic: string, payload: string) => this.#notification(topic, payload, deviceId),
      onConnection: (connected: boolean) => {
        this.#pushConnected = connected
        log.info({ connected }, 'push connection')
        if (!connected || signal.aborted) return
        this.#pushTrouble = null
        this.#health.clear(PUSH)
        this.#rounds.endBackoff()
      },
      onTrouble: (error: CodedError) => {
        if (signal.aborted || this.#health.has(REVOCATION)) return
        if (this.#health.has(PUSH)) {
          this.#showPush(error)
          return
        }
        this.#pushTrouble = error
        this.#memory.syncsAgain = true
        this.#rounds.bringForward(DOUBT_MS)
      },
    }
  }

  #judgeBroker(): void {
    const trouble = this.#pushTrouble
    if (trouble === null) return
    if (this.#memory.contact === 'DOWN') {
      // It may be mended with the cloud: the next attempt to connect shows that.
      if (trouble.code !== 'BROKER_REFUSED') this.#pushTrouble = null
      return
    }
    this.#pushTrouble = null
    if (!this.#health.has(REVOCATION)) this.#showPush(trouble)
  }

  #showPush(error: CodedError): void {
    raiseAndLog({ health: this.#health, log: this.#deps.log }, PUSH, error, { subject: PUSH })
  }

  #notification(topic: string, payload: string, deviceId: string): void {
    const applied = new Map([...this.#memory.policies].map(([instanceId, policy]) => [instanceId, policy.applied]))
    if (!isNews(topic, payload, deviceId, applied)) return
    this.#notifications += 1
    this.#rounds.wake('notification')
  }
}
