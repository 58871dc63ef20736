/**
 * Node client for the local agent: access requests and sessions over its Unix socket. Requests without a response are
 * retried under the same idempotency key, so nothing is charged twice. A session sends its own heartbeats and closes at
 * the end of an `await using`. Refusals are CodedErrors.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { z } from 'zod'
import { CodedError, ERRORS } from '../protocol/errors.ts'
import { accessResponseBody } from '../protocol/service/access-request.ts'
import { session as sessionBody, sessionNotOperable } from '../protocol/service/sessions.ts'
import type { Call } from './call.ts'
import { HttpClient, refusal } from './http.ts'

/** Default socket of the agent. */
const USUAL_SOCKET = '/run/tallygate/agent.sock'

export interface ConnectOptions {
  /** Path of the agent's socket, default `/run/tallygate/agent.sock`. */
  readonly socket?: string
  /** How long to retry a call while the agent is down, restarting or busy, default 10 s. */
  readonly patienceMs?: number
}

export interface Requester {
  readonly type: string
  readonly value: string
  /** Properties that rules of access test. */
  readonly dictionary?: Readonly<Record<string, unknown>>
}

export interface RequestedItem {
  readonly item: string
  readonly version?: string
  readonly count: number
  /** Variables of a rate formula. */
  readonly variables?: Readonly<Record<string, number>>
  /** Stored in usage records only. */
  readonly metaData?: Readonly<Record<string, unknown>>
}

/** Result of one item. */
export interface AnsweredItem {
  readonly item: string
  readonly version?: string
  readonly count: number
  readonly granted: boolean
  /** Four digits; the first is 1 for success and 2 for a refusal. */
  readonly code: string
  readonly description: string
  readonly tokensCharged: number
}

export interface Answer {
  readonly correlationId: string
  /** True if every item is granted. */
  readonly granted: boolean
  readonly items: readonly AnsweredItem[]
}

export interface SessionOptions {
  readonly instanceId: string
  /**
   * Ends the session with this process and with the connection to the agent, so also when the agent restarts. Default
   * false: the session ends when it is closed or its heartbeats stop.
   */
  readonly bound?: boolean
  /** Heartbeat interval, default 60 s; must be at most half a charge interval. */
  readonly heartbeatEveryMs?: number
}

/** The session has ended: stop the work that it paid for. */
export class SessionEndedError extends Error {
  /** TERMINATED, LOCKED, FAILED, DISCONNECTED, or UNKNOWN to the agent. */
  readonly state: string

  constructor(sessionId: string, state: string) {
    super(`Session ${sessionId} is ${state}.`)
    this.name = 'SessionEndedError'
    this.state = state
  }
}

/** Sends nothing before the first call. */
export function connect(options: ConnectOptions = {}): AgentClient {
  return new AgentClient(options)
}

export class AgentClient implements Disposable {
  readonly #options: ConnectOptions
  /** Idle connections, each for one request at a time. */
  readonly #idle: Lane[] = []
  readonly #lanes = new Set<Lane>()

  constructor(options: ConnectOptions) {
    this.#options = options
  }

  /**
   * Sends an access request. Each item is granted or refused separately.
   *
   * @throws CodedError
   */
  async access(instanceId: string, requester: Requester, items: readonly RequestedItem[]): Promise<Answer> {
    const lane = this.#idle.pop() ?? this.#lane()
    try {
      const path = `/elastic/api/v1.1/instances/${instanceId}/access-request`
      const { text } = await lane.once({ method: 'POST', path, body: { requester, requestedItems: items } })
      return answerOf(text)
    } finally {
      this.#idle.push(lane)
    }
  }

  /** @throws CodedError */
  async openSession(options: SessionOptions): Promise<Session> {
    const lane = new Lane(this.#options)
    try {
      const headers: Record<string, string> = options.bound === true ? { 'x-tallygate-bound': 'connection' } : {}
      const call: Call = { method: 'POST', path: SESSIONS, headers, body: { instanceId: options.instanceId } }
      for (;;) {
        const { text, isFirst } = await lane.once(call)
        const { sessionId } = created.parse(JSON.parse(text))
        // If the response was lost, a session bound to that connection has ended: open another.
        if (options.bound !== true || isFirst || (await isAlive(lane, sessionId))) {
          return new Session(lane, sessionId, options)
        }
      }
    } catch (error) {
      lane[Symbol.dispose]()
      throw error
    }
  }

  [Symbol.dispose](): void {
    for (const lane of this.#lanes) lane[Symbol.dispose]()
  }

  #lane(): Lane {
    const lane = new Lane(this.#options)
    this.#lanes.add(lane)
    return lane
  }
}

/** A session that sends heartbeats until it is closed. */
export class Session implements AsyncDisposable {
  readonly id: string
  readonly #lane: Lane
  readonly #ended = new AbortController()
  readonly #every: number
  #timer: NodeJS.Timeout | null = null
  #tail: Promise<unknown> = Promise.resolve()

  constructor(lane: Lane, id: string, { heartbeatEveryMs = 60_000 }: SessionOptions) {
    this.id = id
    this.#lane = lane
    this.#every = heartbeatEveryMs
    this.#beatLater()
  }

  /** Aborts with a SessionEndedError when the session ends by itself: out of tokens, locked or timed out. */
  get signal(): AbortSignal {
    return this.#ended.signal
  }

  /**
   * Requests all items or none. Granted items replace the previous ones and are charged for each interval. After a refusal
   * (`granted` is false), the session continues unchanged by default.
   *
   * @throws SessionEndedError, CodedError
   */
  request(
    requester: Requester,
    items: readonly RequestedItem[],
    { rollbackOnDeny = true }: { readonly rollbackOnDeny?: boolean } = {},
  ): Promise<Answer> {
    return this.#alone(async () => {
      const body = { requester, rollbackOnDeny, requestedItems: items }
      const { status, text } = await this.#lane.once({ method: 'PUT', path: this.#path, body }, [403])
      if (status === 403 && !accessResponseBody.safeParse(JSON.parse(text)).success) {
        throw refusal({ method: 'PUT', path: this.#path }, { status, text })
      }
      return answerOf(text)
    })
  }

  /** Pauses the session: refunds the rest of the interval and charges nothing until the next request. */
  async halt(requester: Requester): Promise<void> {
    await this.request(requester, [])
  }

  /** Returns the session's state. @throws SessionEndedError if the agent does not know it any more, CodedError */
  async state(): Promise<string> {
    return this.#alone(async () => {
      const { text } = await this.#lane.call({ method: 'GET', path: this.#path })
      return sessionBody.parse(JSON.parse(text)).state
    })
  }

  /** Closes the session and refunds unused tokens. Closing an ended session is not an error. */
  async close(): Promise<void> {
    this.#stop()
    try {
      await this.#alone(() => this.#lane.once({ method: 'DELETE', path: this.#path }))
    } catch (error) {
      if (!(error instanceof SessionEndedError)) throw error
    } finally {
      this.#stop()
      this.#lane[Symbol.dispose]()
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  get #path(): string {
    return `${SESSIONS}/${this.id}`
  }

  /** Serializes calls and maps the agent's errors for ended sessions to SessionEndedError. */
  #alone<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#tail.then(async () => {
      try {
        return await work()
      } catch (error) {
        const state = endedState(error)
        if (state === undefined) throw error
        this.#stop()
        const over = new SessionEndedError(this.id, state)
        this.#ended.abort(over)
        throw over
      }
    })
    this.#tail = done.catch(() => undefined)
    return done
  }

  #beatLater(): void {
    this.#timer = setTimeout(() => void this.#beat(), this.#every)
    // Does not keep the process alive.
    this.#timer.unref()
  }

  async #beat(): Promise<void> {
    try {
      await this.#alone(() => this.#lane.call({ method: 'GET', path: `${this.#path}/heartbeat` }))
    } catch {
      // Either ended, as reported by the signal, or unreachable and retried.
    }
    if (this.#timer !== null) this.#beatLater()
  }

  #stop(): void {
    if (this.#timer !== null) clearTimeout(this.#timer)
    this.#timer = null
  }
}

const SESSIONS = '/api/v1.1/sessions'
const PATIENCE_MS = 10_000
const FIRST_PAUSE_MS = 20
const LONGEST_PAUSE_MS = 1_000

const created = z.object({ sessionId: z.string() })

interface Answered {
  readonly status: number
  readonly text: string
  /** First attempt, not a retry. */
  readonly isFirst: boolean
}

/** One connection with its own application session, which numbers its requests. */
class Lane implements Disposable {
  readonly #http: HttpClient
  readonly #patienceMs: number
  readonly #name = randomUUID()
  #made = 0

  constructor({ socket = USUAL_SOCKET, patienceMs = PATIENCE_MS }: ConnectOptions) {
    this.#http = new HttpClient({ address: `unix:${socket}`, unreachable: 'AGENT_UNREACHABLE' })
    this.#patienceMs = patienceMs
  }

  /** Takes effect at most once, however often it is sent. */
  once(call: Call, also: readonly number[] = []): Promise<Answered> {
    this.#made += 1
    const numbered = { 'x-tallygate-session': this.#name, 'x-tallygate-request': String(this.#made) }
    return this.call({ ...call, headers: { ...call.headers, ...numbered } }, also)
  }

  async call(call: Call, also: readonly number[] = []): Promise<Answered> {
    const deadline = performance.now() + this.#patienceMs
    let isFirst = true
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
      try {
        const answer = await this.#http.call(call)
        const isExpected = (answer.status >= 200 && answer.status < 300) || also.includes(answer.status)
        if (isExpected) return { ...answer, isFirst }
        throw refusal(call, answer)
      } catch (error) {
        if (!mayRepeat(error) || performance.now() + pauseMs > deadline) throw error
        isFirst = false
        await pause(pauseMs)
      }
    }
  }

  [Symbol.dispose](): void {
    this.#http[Symbol.dispose]()
  }
}

/** False if the session has ended; the heartbeat waits for a shutdown in progress. */
async function isAlive(lane: Lane, sessionId: string): Promise<boolean> {
  try {
    await lane.call({ method: 'GET', path: `${SESSIONS}/${sessionId}/heartbeat` })
    return true
  } catch (error) {
    if (endedState(error) === undefined) throw error
    return false
  }
}

/** Caller limits are not retried: the caller decides how long to wait. */
function mayRepeat(error: unknown): boolean {
  return error instanceof CodedError && ERRORS[error.code].retry === 'later' && error.code !== 'CALLER_LIMITED'
}

function endedState(error: unknown): string | undefined {
  if (!(error instanceof CodedError)) return undefined
  if (error.code === 'NOT_FOUND') return 'UNKNOWN'
  if (error.code !== sessionNotOperable.shape.code.value) return undefined
  return /^Session is ([A-Z]+)$/.exec(error.message)?.[1] ?? 'TERMINATED'
}

function answerOf(text: string): Answer {
  const parsed = accessResponseBody.safeParse(JSON.parse(text))
  if (!parsed.success)
    throw new CodedError(
      'ANSWER_UNEXPECTED',
      'The response is not an access response. Check that the socket belongs to a tallygate agent.',
    )
  const { correlationId, requestedItems } = parsed.data
  const items = requestedItems.map(({ item, version, count, status, totalTokensCharged }): AnsweredItem => ({
    item,
    ...(version === undefined ? {} : { version }),
    count,
    granted: status.code.startsWith('1') && status.code !== NOT_CHARGED,
    code: status.code,
    description: status.description,
    tokensCharged: totalTokensCharged,
  }))
  return { correlationId, granted: items.every(({ granted }) => granted), items }
}

/** Code of a valid item that was not charged because another item failed. */
const NOT_CHARGED = '1002'
