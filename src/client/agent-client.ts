/**
 * The agent of this machine, for a Node application: access requests and sessions over its Unix socket. What had no answer
 * is sent again under the same number, so that nothing is charged twice, whatever dies meanwhile; a session sends its own
 * heartbeats and closes itself at the end of an `await using`. A refusal of the agent is a CodedError with its code.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { z } from 'zod'
import { CodedError, ERRORS } from '../protocol/errors.ts'
import { accessResponseBody } from '../protocol/service/access-request.ts'
import { session as sessionBody, sessionNotOperable } from '../protocol/service/sessions.ts'
import { type Call, HttpClient, refusal } from './http.ts'

/** Where the agent listens unless its operator has said otherwise. */
const USUAL_SOCKET = '/run/tallygate/agent.sock'

export interface ConnectOptions {
  /** Path of the socket of the agent, default `/run/tallygate/agent.sock`. */
  readonly socket?: string
  /** How long a call is repeated while the agent does not answer, is starting again or is busy, default 10 s. */
  readonly patienceMs?: number
}

export interface Requester {
  readonly type: string
  readonly value: string
  /** What rules of access look at. */
  readonly dictionary?: Readonly<Record<string, unknown>>
}

export interface RequestedItem {
  readonly item: string
  readonly version?: string
  readonly count: number
  /** For a rate that is a formula. */
  readonly variables?: Readonly<Record<string, number>>
  /** For the usage records only. */
  readonly metaData?: Readonly<Record<string, unknown>>
}

/** What became of one item. */
export interface AnsweredItem {
  readonly item: string
  readonly version?: string
  readonly count: number
  readonly granted: boolean
  /** Four digits, the first of which decides: 1 is no error, 2 is refused. */
  readonly code: string
  readonly description: string
  readonly tokensCharged: number
}

export interface Answer {
  readonly correlationId: string
  /** Every item is granted. */
  readonly granted: boolean
  readonly items: readonly AnsweredItem[]
}

export interface SessionOptions {
  readonly instanceId: string
  /**
   * The session ends when this process does, whatever becomes of it, and with the connection to the agent: after a restart
   * of the agent it is over. Default false: it ends when it is closed, or when its heartbeats stay away.
   */
  readonly bound?: boolean
  /** How often the agent hears that the application lives, default 60 s; at least twice in an interval of charges. */
  readonly heartbeatEveryMs?: number
}

/** The session takes no more requests: stop what it paid for. */
export class SessionEndedError extends Error {
  /** TERMINATED, LOCKED, FAILED, DISCONNECTED, or UNKNOWN to the agent. */
  readonly state: string

  constructor(sessionId: string, state: string) {
    super(`Session ${sessionId} is ${state}.`)
    this.name = 'SessionEndedError'
    this.state = state
  }
}

/** Nothing is sent before the first call. */
export function connect(options: ConnectOptions = {}): AgentClient {
  return new AgentClient(options)
}

export class AgentClient implements Disposable {
  readonly #options: ConnectOptions
  /** Each with one request at a time under way. */
  readonly #idle: Lane[] = []
  readonly #lanes = new Set<Lane>()

  constructor(options: ConnectOptions) {
    this.#options = options
  }

  /**
   * One access request. Items are granted or refused by themselves.
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
        // One that is bound to a connection whose answer was lost has ended with it: another one takes its place.
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

/** A session that keeps itself alive until it is closed. */
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

  /** Aborts, with a SessionEndedError, when the session has ended by itself: out of tokens, locked, timed out. */
  get signal(): AbortSignal {
    return this.#ended.signal
  }

  /**
   * All items or none; what is granted replaces what the session was charged for before, and is charged again for each
   * interval. A refusal is an answer that is not `granted`; by default the session then goes on as it was.
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

  /** Puts the session to rest: the rest of the interval comes back, and nothing is charged until the next request. */
  async halt(requester: Requester): Promise<void> {
    await this.request(requester, [])
  }

  /** How it stands. @throws SessionEndedError when the agent does not know it any more, CodedError */
  async state(): Promise<string> {
    return this.#alone(async () => {
      const { text } = await this.#lane.call({ method: 'GET', path: this.#path })
      return sessionBody.parse(JSON.parse(text)).state
    })
  }

  /** Ends it; what it has not used comes back. One that has ended already is no error. */
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

  /** One call at a time, and what the agent says of a session that is over as one kind of error. */
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
    // It keeps the session alive, not the process.
    this.#timer.unref()
  }

  async #beat(): Promise<void> {
    try {
      await this.#alone(() => this.#lane.call({ method: 'GET', path: `${this.#path}/heartbeat` }))
    } catch {
      // Over, and told by the signal; or out of reach, and tried again.
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
  /** It was not sent before. */
  readonly isFirst: boolean
}

/** One connection with an application session of its own: its requests are numbered, one at a time. */
class Lane implements Disposable {
  readonly #http: HttpClient
  readonly #patienceMs: number
  readonly #name = randomUUID()
  #made = 0

  constructor({ socket = USUAL_SOCKET, patienceMs = PATIENCE_MS }: ConnectOptions) {
    this.#http = new HttpClient({ address: `unix:${socket}`, unreachable: 'AGENT_UNREACHABLE' })
    this.#patienceMs = patienceMs
  }

  /** Takes effect once, however often it has to be sent. */
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

/** A heartbeat waits for whatever is ending the session. */
async function isAlive(lane: Lane, sessionId: string): Promise<boolean> {
  try {
    await lane.call({ method: 'GET', path: `${SESSIONS}/${sessionId}/heartbeat` })
    return true
  } catch (error) {
    if (endedState(error) === undefined) throw error
    return false
  }
}

/** A limit of the caller is the caller's to wait for. */
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
    throw new CodedError('ANSWER_UNEXPECTED', 'The agent answered something else than an access response.')
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

/** A valid item of a session request that another item made fail. */
const NOT_CHARGED = '1002'
