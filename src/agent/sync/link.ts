/**
 * The device's side of everything that talks to the cloud. It runs one round at a time, woken by timer, change notification, low water
 * or a waiting request, and carries no data from one round to the next but what is durable. It never decides an access
 * request, and the access path never waits for it, except in {@link Link.requestGrant} for as long as it says.
 */
import type { DeviceSuspension } from '../../protocol/edge/device-suspension.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { Snapshot } from '../ledger/journal.ts'
import type { CloudWord, WaitingTopUp } from '../access/local-decisions.ts'
import type { DeviceTokens } from '../keys/device-token.ts'
import { guardJournal } from './guarded-journal.ts'
import { Health, type HealthCondition, PUSH, REVOCATION } from './health.ts'
import { closeSession } from '../sessions/cloud-sessions.ts'
import { WAITING_REQUESTS_MAX } from './limits.ts'
import { type LinkMemory, remember } from './memory.ts'
import type { Timers } from './ports.ts'
import { type Push, readNotification } from './push.ts'
import { restorePolicies } from '../policy/restore-policies.ts'
import { keyState } from '../keys/rotate-key.ts'
import { RotationRequests, type RotationStatus } from '../keys/rotation-requests.ts'
import { runRound } from './round.ts'
import { type RoundResult, Rounds, type WakeReason } from './rounds.ts'
import { showSuspension, type StepContext } from './step.ts'
import { WaitingRequests } from './waiting-requests.ts'

export interface Link {
  /**
   * Verifies the stored policies, puts them in force and begins the rounds. Resolves without waiting for the cloud: a
   * device that cannot reach it starts all the same.
   */
  start(): Promise<void>
  /** Ends the round under way, closes the cloud sessions where it can, and stops. Idempotent. */
  stop(): Promise<void>
  /** Asks for a round. During a round it causes exactly one more, however often it is called. */
  wake(reason: WakeReason): void
  /**
   * Asks the cloud for what a waiting request needs. Resolves with what the cloud has answered when a round that carried the
   * request has ended, whether it brought anything or not; with null after `deadlineMs`, or at once when the cloud is known
   * to be out of reach. Never rejects: the caller decides again by what the ledger then holds.
   */
  requestGrant(request: WaitingTopUp, deadlineMs: number): Promise<CloudWord | null>
  status(): LinkStatus
  /**
   * Has the device replace its key, as soon as the cloud can be reached. Resolves when the order would survive a power cut;
   * a round that is under way ends first.
   *
   * @throws CodedError NOT_ENROLLED, DEVICE_KEY_PROVIDED, STATE_UNWRITABLE, NOT_RECORDED, STOPPING
   */
  rotateKey(): Promise<RotationStatus>
}

export interface LinkStatus {
  readonly deviceId: string | null
  /** 0: not attached. */
  readonly epoch: number
  readonly fenced: boolean
  readonly key: KeyStatus
  readonly suspension: DeviceSuspension | null
  /** The last exchange with the cloud got an answer. */
  readonly connected: boolean
  /** Best estimate of the last time at which the cloud answered, POSIX ms; null for never since the start. */
  readonly lastContactAt: number | null
  readonly lastSyncAt: number | null
  /** Entries that the cloud has not acknowledged. */
  readonly backlog: number
  readonly unacknowledgedSeq: number | null
  readonly policies: readonly {
    readonly instanceId: string
    /** Revision in force; 0 for none. */
    readonly applied: number
    /** Newest revision that the cloud has named; 0 when it has not. */
    readonly newest: number
  }[]
  readonly sessions: readonly {
    readonly instanceId: string
    readonly state: 'CLOSED' | 'KEPT' | 'OPEN' | 'LOCKED'
    readonly sessionId: string | null
  }[]
  readonly push: 'OFF' | 'CONNECTED' | 'DISCONNECTED'
  readonly rounds: { readonly done: number; readonly failed: number; readonly running: boolean }
  readonly notifications: { readonly taken: number; readonly ignored: number }
  /** What a technician should know, oldest first. */
  readonly conditions: readonly HealthCondition[]
}

export interface KeyStatus {
  /** Thumbprint of the one in use. */
  readonly id: string
  /** POSIX ms, best estimate; null: not known. */
  readonly since: number | null
  /** Of the one that shall follow it; null: none shall. */
  readonly next: string | null
}

export interface LinkDeps extends Omit<StepContext, 'memory' | 'health' | 'waiting' | 'rotation' | 'signal'> {
  /** The journal as it was read at the start of the process, before anything was recorded. */
  readonly snapshot: Snapshot
  readonly timers: Timers
  readonly tokens: Pick<DeviceTokens, 'fresh'>
  /** Null: no push, whatever the cloud offers. */
  readonly push: Push | null
  /** A broken invariant, or a journal whose outcome is unknown: the process must end and open again. Called once. */
  readonly onFatal: (error: unknown) => void
}

export async function createLink(deps: LinkDeps): Promise<Link> {
  const { snapshot } = deps
  const finished = snapshot.fenced && snapshot.unacknowledged === null && snapshot.lastSeq > 0
  const closed = finished && (await deps.journal.sealed(snapshot.lastSeq))?.final === true
  return new CloudLink(deps, await remember(snapshot, closed))
}

function stopping(): CodedError {
  return new CodedError('STOPPING', 'The agent is stopping.')
}

/** After a refusal by the broker, the longest time until the cloud is asked, ms: a broker may refuse a whole fleet at once. */
const DOUBT_MS = 30_000

class CloudLink implements Link {
  readonly #deps: LinkDeps
  readonly #memory: LinkMemory
  readonly #health: Health
  readonly #waiting: WaitingRequests
  readonly #rounds: Rounds
  readonly #rotation = new RotationRequests()
  readonly #pushStopped = new AbortController()
  #push: Promise<void> | null = null
  #pushConnected = false
  /** What the broker has refused, until the cloud has been asked: a revoked key is refused by both, and that is one fault. */
  #pushRefused: CodedError | null = null
  #notifications = { taken: 0, ignored: 0 }
  #broken = false
  #stopped: Promise<void> | null = null

  constructor(deps: LinkDeps, memory: LinkMemory) {
    const { clock, timers, randomness, options } = deps
    this.#deps = { ...deps, journal: guardJournal(deps.journal) }
    this.#memory = memory
    this.#health = new Health(() => clock.reading().now)
    this.#waiting = new WaitingRequests(timers, WAITING_REQUESTS_MAX)
    this.#rounds = new Rounds({
      timers,
      sinceBoot: () => clock.sinceBoot(),
      randomness,
      backoffBaseMs: options.backoffBaseMs,
      backoffCapMs: options.backoffCapMs,
      round: (reasons, signal) => this.#round(reasons, signal),
    })
  }

  async start(): Promise<void> {
    const context = this.#context(this.#pushStopped.signal)
    const { keys } = this.#deps
    // The process ended between the two halves of a change.
    if (keyState(keys, this.#memory, false) === 'REPLACE') await keys.replace()
    showSuspension(context, this.#memory.identity?.suspension ?? null)
    await restorePolicies(context, this.#deps.snapshot.policies)
    this.#startPush()
    this.#rounds.wake('timer')
  }

  wake(reason: WakeReason): void {
    this.#rounds.wake(reason)
  }

  async requestGrant(request: WaitingTopUp, deadlineMs: number): Promise<CloudWord | null> {
    const { contact, identity } = this.#memory
    const hopeless = identity === null || contact === 'DOWN' || this.#rounds.waiting
    if (hopeless || this.#broken || this.#stopped !== null || this.#waiting.full) return null
    const waited = this.#waiting.wait(request, deadlineMs)
    if (this.#waiting.asking) this.#rounds.wake('request')
    return waited
  }

  async rotateKey(): Promise<RotationStatus> {
    if (this.#memory.identity === null) {
      throw new CodedError('NOT_ENROLLED', 'A device that is not enrolled has no key that the cloud knows.')
    }
    if (this.#broken || this.#stopped !== null) throw stopping()
    const kept = this.#rotation.ask()
    this.#rounds.wake('operator')
    return kept
  }

  stop(): Promise<void> {
    this.#stopped ??= this.#stop()
    return this.#stopped
  }

  status(): LinkStatus {
    const memory = this.#memory
    return {
      deviceId: memory.identity?.deviceId ?? null,
      epoch: memory.epoch,
      fenced: memory.fence !== 'NONE',
      key: this.#key(),
      suspension: memory.identity?.suspension ?? null,
      connected: memory.contact === 'UP',
      lastContactAt: memory.lastContactAt,
      lastSyncAt: memory.lastSyncAt,
      backlog: memory.undeliveredRanges + Math.max(0, this.#deps.ledger.lastEntry() - memory.lastAcknowledgedEntry),
      unacknowledgedSeq: memory.unacknowledged?.seq ?? null,
      policies: [...memory.policies].map(([instanceId, { applied, newest }]) => ({ instanceId, applied, newest })),
      sessions: [...memory.sessions].map(
        ([
          instanceId,
          {
            session: { state, sessionId },
          },
        ]) => ({
          instanceId,
          state,
          sessionId,
        }),
      ),
      push: this.#push === null ? 'OFF' : this.#pushConnected ? 'CONNECTED' : 'DISCONNECTED',
      rounds: this.#rounds.counts,
      notifications: { ...this.#notifications },
      conditions: this.#health.list(),
    }
  }

  #key(): KeyStatus {
    const { signer } = this.#deps.keys.current
    const { identity } = this.#memory
    const since = identity?.keyId === signer.keyId ? (identity.keySince ?? null) : null
    return { id: signer.keyId, since, next: identity?.nextKey?.id ?? null }
  }

  /** Never rejects. */
  async #round(reasons: ReadonlySet<WakeReason>, signal: AbortSignal): Promise<RoundResult> {
    try {
      const result = await runRound(this.#context(signal), reasons)
      this.#startPush()
      this.#judgeBroker()
      // Somebody came too late for the segment of this round.
      if (result.ok && this.#waiting.asking) this.#rounds.wake('request')
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
    this.#waiting.letAllGo()
    this.#rotation.failed(stopping())
    this.#pushStopped.abort()
    void this.#rounds.stop()
    this.#deps.onFatal(error)
  }

  async #stop(): Promise<void> {
    await this.#rounds.stop()
    this.#waiting.letAllGo()
    this.#rotation.failed(stopping())
    if (!this.#broken && this.#memory.contact === 'UP') await this.#sayGoodbye()
    this.#pushStopped.abort()
    await this.#push
  }

  /** Gives back what is left, if so set, and closes the sessions; a cloud that is slow to answer is not waited for. */
  async #sayGoodbye(): Promise<void> {
    const { options, timers, log } = this.#deps
    const late = new AbortController()
    const cancel = timers.after(options.stopTimeoutMs, () => late.abort())
    const context = this.#context(late.signal)
    try {
      if (options.returnUnusedOnStop && this.#memory.fence === 'NONE' && this.#memory.epoch > 0) {
        this.#memory.releasing = true
        await runRound(context, new Set())
      }
      for (const [instanceId, { session }] of this.#memory.sessions) {
        if (session.sessionId !== null) await closeSession(context, instanceId, session.sessionId)
      }
    } catch (error) {
      if (error instanceof CodedError) log.info({ code: error.code }, 'the cloud was not told of the stop')
      else this.#break(error)
    } finally {
      cancel()
    }
  }

  #startPush(): void {
    const { push, tokens, log } = this.#deps
    const { identity } = this.#memory
    const pushUrl = identity?.pushUrl ?? null
    if (push === null || this.#push !== null || identity === null || pushUrl === null) return
    const { deviceId, instanceIds } = identity
    const order = {
      url: pushUrl,
      deviceId,
      instanceIds,
      password: () => tokens.fresh(this.#memory.identity ?? identity),
      onMessage: (topic: string, payload: string) => this.#notification(topic, payload, deviceId),
      onConnection: (connected: boolean) => {
        this.#pushConnected = connected
        log.info({ connected }, 'push connection')
        if (!connected) return
        this.#pushRefused = null
        this.#health.clear(PUSH)
        this.#rounds.encourage()
      },
      onTrouble: (error: CodedError) => {
        if (this.#health.has(REVOCATION)) return
        if (error.code !== 'BROKER_REFUSED' || this.#health.has(PUSH)) {
          this.#pushRefused = null
          this.#showPush(error)
          return
        }
        this.#pushRefused = error
        this.#memory.lookAgain = true
        this.#rounds.bringForward(DOUBT_MS)
      },
    }
    this.#push = push.run(order, this.#pushStopped.signal).catch((error: unknown) => this.#break(error))
  }

  #judgeBroker(): void {
    const refused = this.#pushRefused
    this.#pushRefused = null
    if (refused !== null && !this.#health.has(REVOCATION)) this.#showPush(refused)
  }

  #showPush(error: CodedError): void {
    const { code, details, message } = error
    if (this.#health.raise(PUSH, error)) this.#deps.log.warn({ subject: PUSH, code, ...details }, message)
  }

  #notification(topic: string, payload: string, deviceId: string): void {
    const applied = new Map([...this.#memory.policies].map(([instanceId, policy]) => [instanceId, policy.applied]))
    const { kind } = readNotification(topic, payload, deviceId, applied)
    if (kind === 'MALFORMED') this.#notifications.ignored += 1
    else this.#notifications.taken += 1
    if (kind === 'LOOK') this.#rounds.wake('notification')
  }
}
