/**
 * Client for the Tallygate agent on this device: access requests and sessions over its Unix socket. Without dependencies.
 *
 * A request without a response is repeated under the same number, also after a restart of the agent, so it is charged
 * once. Sessions send their own heartbeats.
 */
import { randomUUID } from 'node:crypto'
import { Agent, request as httpRequest } from 'node:http'
import { setTimeout as pause } from 'node:timers/promises'

export interface ConnectOptions {
  /** Path of the agent's socket. Default: `$TALLYGATE_SOCKET`, or `/run/tallygate/agent.sock`. */
  readonly socket?: string
  /** How long to repeat a request while the agent is down, restarting or busy. Default: 10,000. */
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

/** When the same request can succeed: never, at another time, or once the device has reached the cloud. */
export type Retry = 'no' | 'later' | 'online'

/** Result of one item. */
export interface AnsweredItem {
  readonly item: string
  readonly version?: string
  readonly count: number
  readonly granted: boolean
  /** Four digits; the first is 1 if the item was not refused, and 2 if it was. */
  readonly code: string
  readonly description: string
  /** Exact up to 15 digits, like every number of JavaScript. */
  readonly tokensCharged: number
  /** Undefined: the item was not refused. */
  readonly retry?: Retry
}

export interface Answer {
  /** For `tallygate explain`. */
  readonly correlationId: string
  /** True if every item is granted. */
  readonly granted: boolean
  readonly items: readonly AnsweredItem[]
  /** What exists instead of an unknown item, such as `LaserCut exists as version 1.0`. */
  readonly advice?: string
}

/** Items that can be requested now; the first line item pays first. */
export interface Offers {
  readonly instances: readonly {
    readonly instanceId: string
    /** Short name of the instance. */
    readonly name: string
    readonly items: readonly {
      readonly item: string
      readonly version?: string
      readonly lineItems: readonly {
        readonly activationId: string
        readonly rate?: number
        readonly formula?: string
      }[]
    }[]
  }[]
}

export interface SessionOptions {
  readonly instanceId: string
  /** The session ends with this process, and when the agent restarts. Default: it ends when its heartbeats stop. */
  readonly bound?: boolean
}

/** The agent refused the request, or gave no response. */
export class TallygateError extends Error {
  /** See docs/reference/errors.md. */
  readonly code: string
  readonly retry: Retry

  constructor(code: string, message: string, retry: Retry) {
    super(message)
    this.name = new.target.name
    this.code = code
    this.retry = retry
  }
}

/** No response to an attempt until the patience ended, or no permission to connect. The request may have been charged. */
export class AgentUnreachable extends TallygateError {}

/** The device must reach the cloud first: it has no usable rules, is not attached, or was locked by an administrator. */
export class NeedsCloud extends TallygateError {}

/** The user of this process has used up its limit of requests or tokens. */
export class LimitReached extends TallygateError {
  readonly retryAfterMs: number

  constructor(code: string, message: string, retryAfterMs: number) {
    super(code, message, 'later')
    this.retryAfterMs = retryAfterMs
  }
}

/** The session has ended: stop the work that it paid for. */
export class SessionEnded extends TallygateError {
  /** TERMINATED, LOCKED, FAILED, DISCONNECTED, or UNKNOWN to the agent. */
  readonly state: string

  constructor(message: string, state: string) {
    super('SESSION_ENDED', message, 'no')
    this.state = state
  }
}

const NEED_CLOUD = ['DEVICE_LOCKED', 'NOT_ATTACHED', 'POLICY_MISSING', 'POLICY_STALE']
const ITEM_RETRY_ONLINE = ['2008', '2009', '2010']
const ITEM_RETRY_LATER = ['2002', '2004', '2005', '2011']
/** Valid, but not charged because another item of the session request was refused. */
const NOT_CHARGED = '1002'

/** Sends nothing before the first call. @throws TypeError if the options are no object */
export function connect(options: ConnectOptions = {}): AgentClient {
  // Otherwise a path in place of the options would be ignored, and another agent charged.
  if (typeof options !== 'object') throw new TypeError('connect takes an object: connect({ socket: path })')
  return new AgentClient(options)
}

export class AgentClient {
  readonly #options: ConnectOptions
  /** Idle connections, each for one request at a time. */
  readonly #idle: Connection[] = []
  /** Those without a socket, after many requests at a time: all programs of the device share the agent's sockets. */
  readonly #resting: Connection[] = []

  constructor(options: ConnectOptions) {
    this.#options = options
  }

  /** Each item is granted or refused by itself. @throws TallygateError */
  async access(instanceId: string, requester: Requester, items: readonly RequestedItem[]): Promise<Answer> {
    const path = `/v1.1/instances/${encodeURIComponent(instanceId)}/access-request`
    const body = { requester, requestedItems: [...items] }
    const response = await this.#lend((connection) => connection.once({ method: 'POST', path, body }))
    return answerOf(response, body.requestedItems)
  }

  /** @throws TallygateError */
  async offers(): Promise<Offers> {
    const response = await this.#lend((connection) => connection.call({ method: 'GET', path: '/tallygate/v1/offers' }))
    return read(response, (offers: Offers) => (Array.isArray(offers.instances) ? offers : undefined))
  }

  /** @throws TallygateError */
  async openSession(options: SessionOptions): Promise<Session> {
    const connection = new Connection(this.#options)
    const headers: Record<string, string> = options.bound === true ? { 'x-tallygate-bound': 'connection' } : {}
    const opening: Call = { method: 'POST', path: '/v1.1/sessions', headers, body: { instanceId: options.instanceId } }
    const deadline = performance.now() + connection.patienceMs
    try {
      for (;;) {
        const response = await connection.once(opening)
        const sessionId = read(response, ({ sessionId: id }: { readonly sessionId?: unknown }) =>
          isId(id) ? id : undefined,
        )
        if (options.bound !== true || response.isFirst) return new Session(connection, sessionId, response)
        // If the response was lost, a session bound to that connection has ended: open another.
        const end = await connection.endOfSession(sessionId)
        if (end === undefined) return new Session(connection, sessionId, response)
        if (performance.now() > deadline) throw end
      }
    } catch (error) {
      connection.close()
      throw error
    }
  }

  /** Closes idle connections. Sessions stay open. */
  close(): void {
    for (const connection of this.#idle.splice(0)) connection.close()
  }

  [Symbol.dispose](): void {
    this.close()
  }

  async #lend<T>(work: (connection: Connection) => Promise<T>): Promise<T> {
    const connection = this.#idle.pop() ?? this.#resting.pop() ?? new Connection(this.#options)
    try {
      return await work(connection)
    } finally {
      if (this.#idle.length < IDLE_MAX) {
        this.#idle.push(connection)
      } else {
        connection.close()
        this.#resting.push(connection)
      }
    }
  }
}

/** A session that sends heartbeats until it is closed or ends. */
export class Session {
  readonly id: string
  readonly #connection: Connection
  readonly #ended = new AbortController()
  #heartbeat: NodeJS.Timeout | undefined
  #isOpen = true
  #tail: Promise<unknown> = Promise.resolve()

  /** Use {@link AgentClient.openSession}. */
  constructor(connection: Connection, id: string, opened: Response) {
    this.#connection = connection
    this.id = id
    this.#beatAfter(opened)
  }

  /** Aborts with a SessionEnded when the session ends by itself: out of tokens, locked, or timed out. */
  get signal(): AbortSignal {
    return this.#ended.signal
  }

  /**
   * Requests all items or none. Granted items replace the previous ones and are charged for each interval. After a refusal
   * (`granted` is false) the session continues unchanged, unless `rollbackOnDeny` is false: then it ends.
   *
   * @throws SessionEnded, TallygateError
   */
  async request(
    requester: Requester,
    items: readonly RequestedItem[],
    { rollbackOnDeny = true }: { readonly rollbackOnDeny?: boolean } = {},
  ): Promise<Answer> {
    const body = { requester, rollbackOnDeny, requestedItems: [...items] }
    const response = await this.#alone(() => this.#connection.once({ method: 'PUT', path: this.#path, body }))
    this.#beatAfter(response)
    return answerOf(response, body.requestedItems)
  }

  /** Refunds the rest of the interval and charges nothing until the next request. @throws SessionEnded, TallygateError */
  async halt(requester: Requester): Promise<void> {
    await this.request(requester, [])
  }

  /** The state of the session. @throws SessionEnded if the agent does not know it any more, TallygateError */
  async state(): Promise<string> {
    const response = await this.#alone(() => this.#connection.call({ method: 'GET', path: this.#path }))
    return read(response, ({ state }: { readonly state?: unknown }) => (isText(state) ? state : undefined))
  }

  /** Closes the session and refunds unused tokens. Closing an ended session is not an error. @throws TallygateError */
  async close(): Promise<void> {
    this.#stop()
    try {
      await this.#alone(() => this.#connection.once({ method: 'DELETE', path: this.#path }))
    } catch (error) {
      if (!(error instanceof SessionEnded)) throw error
    } finally {
      this.#connection.close()
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  get #path(): string {
    return `/v1.1/sessions/${this.id}`
  }

  /** One call at a time. */
  #alone<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#tail.then(work).catch((error: unknown) => {
      const ended = endOf(error)
      if (ended === undefined) throw error
      if (this.#isOpen) this.#ended.abort(ended)
      this.#stop()
      throw ended
    })
    this.#tail = done.catch(() => undefined)
    return done
  }

  /** The next heartbeat: two can be lost. The timer does not keep the process alive. */
  #beatAfter({ heartbeatMs }: Response): void {
    clearTimeout(this.#heartbeat)
    if (heartbeatMs === undefined || heartbeatMs === 0 || !this.#isOpen) return
    this.#heartbeat = setTimeout(() => void this.#beat(heartbeatMs), heartbeatMs / 3)
    this.#heartbeat.unref()
  }

  async #beat(heartbeatMs: number): Promise<void> {
    try {
      this.#beatAfter(await this.#alone(() => this.#connection.heartbeat(this.id)))
    } catch {
      // Ended, as the signal says; or without a response, so the next one follows.
      if (this.#isOpen) this.#beatAfter({ heartbeatMs } as Response)
    }
  }

  #stop(): void {
    this.#isOpen = false
    clearTimeout(this.#heartbeat)
  }
}

interface Call {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE'
  readonly path: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: unknown
}

interface Response {
  readonly status: number
  readonly text: string
  readonly retryAfterS: number | undefined
  readonly advice: string | undefined
  readonly heartbeatMs: number | undefined
  /** Of the first attempt. */
  readonly isFirst: boolean
}

const IDLE_MAX = 16
const FIRST_PAUSE_MS = 20
const LONGEST_PAUSE_MS = 1_000
/** A response must be complete within this time. */
const RESPONSE_MS = 30_000
const RESPONSE_BYTES_MAX = 16 * 2 ** 20

/** One connection, with a UUID under which it numbers its requests. */
class Connection {
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 1 })
  readonly #socketPath: string
  readonly patienceMs: number
  #name = randomUUID()
  #sent = 0

  constructor({ socket, patienceMs = 10_000 }: ConnectOptions) {
    // An empty path would be a connection over TCP.
    const given = [socket, process.env['TALLYGATE_SOCKET']].find((path) => path !== undefined && path !== '')
    this.#socketPath = given ?? '/run/tallygate/agent.sock'
    this.patienceMs = patienceMs
  }

  /** Takes effect at most once, however often it is sent. */
  async once(call: Call): Promise<Response> {
    this.#sent += 1
    const numbered = { 'x-tallygate-session': this.#name, 'x-tallygate-request': String(this.#sent) }
    try {
      return await this.call({ ...call, headers: { ...call.headers, ...numbered } })
    } catch (error) {
      // The agent may still be deciding this request, and takes no further number until then.
      if (error instanceof AgentUnreachable) {
        this.#name = randomUUID()
        this.#sent = 0
      }
      throw error
    }
  }

  /** Repeats until there is a decision or the patience ends. */
  async call(call: Call): Promise<Response> {
    const text = encode(call)
    const deadline = performance.now() + this.patienceMs
    let isFirst = true
    let isLost = false
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
      const response = await this.#send(call, text).catch((error: unknown) => error as NodeJS.ErrnoException)
      if (response instanceof TallygateError) throw response
      // systemd creates a socket before it sets its group: after another failure, a missing permission may end soon.
      const mayRepeat = response instanceof Error ? !isFirst || response.code !== NOT_PERMITTED : isTemporary(response)
      if (!mayRepeat || performance.now() + pauseMs > deadline) {
        if (response instanceof Error) throw this.#unreachable(response)
        if (!isDecision(response)) throw isLost ? mayBeCharged(refusalOf(response)) : refusalOf(response)
        return { ...response, isFirst }
      }
      isFirst = false
      isLost ||= response instanceof Error
      await pause(pauseMs)
    }
  }

  heartbeat(sessionId: string): Promise<Response> {
    return this.call({ method: 'GET', path: `/v1.1/sessions/${sessionId}/heartbeat` })
  }

  /** Undefined: the session is alive. */
  async endOfSession(sessionId: string): Promise<SessionEnded | undefined> {
    try {
      await this.heartbeat(sessionId)
      return undefined
    } catch (error) {
      const end = endOf(error)
      if (end === undefined) throw error
      return end
    }
  }

  close(): void {
    this.#agent.destroy()
  }

  #send({ method, path, headers }: Call, text: string): Promise<Omit<Response, 'isFirst'>> {
    const length = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }
    return new Promise((resolve, reject) => {
      const options = {
        socketPath: this.#socketPath,
        agent: this.#agent,
        method,
        path,
        headers: { ...headers, ...length },
      }
      const sent = httpRequest(options, (response) => {
        const refuse = (problem: string): void => {
          const { statusCode: status = 0 } = response
          sent.destroy(new TallygateError('ANSWER_UNEXPECTED', unexpected({ status, text: problem }), 'no'))
        }
        const numberOf = (name: string): number | undefined => {
          const value = response.headers[name]
          return typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : undefined
        }
        const { 'x-tallygate-advice': advice } = response.headers
        const received: Buffer[] = []
        let bytes = 0
        // The agent always sends a length. Without it, a response that was cut looks complete.
        if (numberOf('content-length') === undefined && response.statusCode !== 204) refuse('no Content-Length')
        response.on('data', (piece: Buffer) => {
          bytes += piece.length
          if (bytes > RESPONSE_BYTES_MAX) refuse('longer than 16 MiB')
          else received.push(piece)
        })
        response.on('error', reject).on('end', () =>
          resolve({
            status: response.statusCode ?? 0,
            text: Buffer.concat(received).toString(),
            retryAfterS: numberOf('retry-after'),
            advice: typeof advice === 'string' ? advice : undefined,
            heartbeatMs: numberOf('x-tallygate-heartbeat-ms'),
          }),
        )
      })
      const late = setTimeout(() => sent.destroy(new Error('no response in time')), RESPONSE_MS)
      // Node reports nothing else if the response switches protocols.
      sent.on('close', () => {
        clearTimeout(late)
        reject(new Error('the connection ended'))
      })
      sent.on('error', reject).end(text)
    })
  }

  #unreachable({ code, message }: NodeJS.ErrnoException): AgentUnreachable {
    const isTooLong = Buffer.byteLength(this.#socketPath) > PATH_BYTES_MAX
    const advice = isTooLong ? SHORTEN : (ADVICE[code ?? ''] ?? `${START}. ${IF_FULL}`)
    if (code === NOT_PERMITTED) {
      const text = `This user may not connect to ${this.#socketPath}. ${advice}.`
      return new AgentUnreachable('SOCKET_NOT_PERMITTED', text, 'no')
    }
    const text = `The agent does not respond at ${this.#socketPath} (${code ?? message}). ${advice}.`
    return new AgentUnreachable('AGENT_UNREACHABLE', text, 'later')
  }
}

const NOT_PERMITTED = 'EACCES'
/** Without the final NUL of `sun_path`. */
const PATH_BYTES_MAX = 107
const SHORTEN = `Set TALLYGATE_SOCKET to a path of at most ${PATH_BYTES_MAX} bytes`
const START = 'Start the agent'
const START_OR_NAME = `${START}, or set TALLYGATE_SOCKET to the path of its socket`
const IF_FULL = 'If it runs, close unused connections to it: socket.connections_max limits their number'
const ADVICE: Readonly<Record<string, string>> = {
  [NOT_PERMITTED]: 'Add this user to the group of the socket, and sign in again',
  ENOENT: START_OR_NAME,
  ECONNREFUSED: START_OR_NAME,
}

function encode({ body }: Call): string {
  try {
    return body === undefined ? '' : JSON.stringify(body)
  } catch (error) {
    throw new TallygateError('BAD_JSON', `The request cannot be written as JSON: ${String(error)}`, 'no')
  }
}

/** The agent says that the same request can be repeated. Limits are left to the application. */
function isTemporary(response: Omit<Response, 'isFirst'>): boolean {
  return response.retryAfterS !== undefined && errorOf(response).code !== 'CALLER_LIMITED'
}

/** Denied session requests have the status 403 and the body of a decision. */
function isDecision({ status, text }: Omit<Response, 'isFirst'>): boolean {
  return (status >= 200 && status < 300) || (status === 403 && text.includes('"requestedItems"'))
}

function errorOf({ status, text }: Omit<Response, 'isFirst'>): { readonly code: string; readonly message: string } {
  try {
    const { code, message } = JSON.parse(text) as { readonly code?: unknown; readonly message?: unknown }
    if (isText(code) && typeof message === 'string') return { code, message }
  } catch {
    // Not from the agent.
  }
  return { code: 'ANSWER_UNEXPECTED', message: unexpected({ status, text }) }
}

function unexpected({ status, text }: Pick<Response, 'status' | 'text'>): string {
  return `The response is not from a Tallygate agent (HTTP status ${status}: ${text.slice(0, 200)}). Check the path of the socket.`
}

function refusalOf(response: Omit<Response, 'isFirst'>): TallygateError {
  const { code, message } = errorOf(response)
  const { retryAfterS } = response
  if (code === 'CALLER_LIMITED') return new LimitReached(code, message, 1_000 * (retryAfterS ?? 1))
  if (NEED_CLOUD.includes(code)) return new NeedsCloud(code, message, 'online')
  return new TallygateError(code, message, retryAfterS === undefined ? 'no' : 'later')
}

/** After an attempt without a response: an agent that refuses for the moment does not look whether that one was charged. */
function mayBeCharged(refused: TallygateError): TallygateError {
  return refused.retry === 'later' ? new AgentUnreachable(refused.code, refused.message, 'later') : refused
}

/** Undefined: the error does not mean that the session has ended. */
function endOf(error: unknown): SessionEnded | undefined {
  if (!(error instanceof TallygateError)) return undefined
  if (error.code === 'NOT_FOUND') return new SessionEnded(error.message, 'UNKNOWN')
  if (error.code !== 'SESSION_NOT_OPERABLE') return undefined
  return new SessionEnded(error.message, /^Session is ([A-Z]+)$/.exec(error.message)?.[1] ?? 'TERMINATED')
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value !== ''
}

/** Ids become a part of paths. */
function isId(value: unknown): value is string {
  return typeof value === 'string' && /^[\w-]{1,36}$/.test(value)
}

/** Fields whose types are not checked are only shown. */
interface AnswerBody {
  readonly correlationId: unknown
  readonly requestedItems: readonly {
    readonly item: string
    readonly version?: string
    readonly count: number
    readonly status: { readonly code: unknown; readonly description: unknown }
    readonly totalTokensCharged: unknown
  }[]
}

function answerOf(response: Response, requested: readonly RequestedItem[]): Answer {
  return read(response, ({ correlationId, requestedItems }: AnswerBody): Answer | undefined => {
    const items = requestedItems.map(answeredItem)
    if (!isText(correlationId) || items.length !== requested.length) return undefined
    const { advice, status } = response
    const granted = status !== 403 && items.every((each) => each.granted)
    return { correlationId, granted, items, ...(advice === undefined ? {} : { advice }) }
  })
}

/** @throws Error if a field is missing */
function answeredItem(body: AnswerBody['requestedItems'][number]): AnsweredItem {
  const { item, version, count, totalTokensCharged: tokensCharged } = body
  const { code, description } = body.status
  const isComplete = isText(item) && typeof code === 'string' && /^\d{4}$/.test(code) && typeof description === 'string'
  if (!isComplete || typeof tokensCharged !== 'number') throw new Error('a field is missing')
  const isRefused = !code.startsWith('1')
  return {
    item,
    ...(version === undefined ? {} : { version }),
    count,
    granted: !isRefused && code !== NOT_CHARGED,
    code,
    description,
    tokensCharged,
    ...(isRefused ? { retry: itemRetry(code) } : {}),
  }
}

/** @param part undefined if the body does not have it */
function read<T>(response: Response, part: (body: never) => T | undefined): T {
  try {
    const found = part(JSON.parse(response.text) as never)
    if (found !== undefined) return found
  } catch {
    // Not from the agent.
  }
  throw new TallygateError('ANSWER_UNEXPECTED', unexpected(response), 'no')
}

function itemRetry(code: string): Retry {
  if (ITEM_RETRY_ONLINE.includes(code)) return 'online'
  return ITEM_RETRY_LATER.includes(code) ? 'later' : 'no'
}
