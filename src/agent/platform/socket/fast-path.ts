/**
 * Answers a plain access request that arrives in one piece without the overhead of Node's HTTP server. For any other
 * request, the connection and all its bytes move to Node's server for good, so no message is parsed twice.
 */
import type { Server } from 'node:http'
import type { Socket } from 'node:net'
import { isHost } from '../../../protocol/service/refusals.ts'
import { LOCAL_HEADERS } from '../../../protocol/local/headers.ts'
import { idempotencyHeader } from '../../../protocol/wire.ts'
import { limitReading } from '../../../platform/limit-reading.ts'
import { readInPlace, writeNow } from '../../../platform/direct-socket.ts'
import { type Reply, STOPPING, replyText } from './reply.ts'
import type { AccessHead, RequestHandler } from './request-handler.ts'
import { KnownBodies, headerRefusal, route } from './parse-request.ts'

const HEAD_END = Buffer.from('\r\n\r\n')

/** Parsed heads to cache; a client sends the same head with nearly every request. */
const HEADS_MAX = 256
const HEAD_BYTES_MAX = 2_048

export interface FastPathOptions {
  readonly bodyBytesMax: number
  readonly keepAliveMs: number
  /** Far too many requests arrived at once on a connection of Node's server. */
  readonly onMany: (socket: Socket) => void
}

/** Takes the new connections of Node's server. */
export class FastPath {
  readonly options: FastPathOptions
  readonly handler: Pick<RequestHandler, 'phase' | 'acceptConnection' | 'access'>
  readonly bodies = new KnownBodies()
  readonly #heads = new Map<string, FastPathHead>()
  readonly #connections = new Set<Connection>()
  #isReading = false
  #replies: (() => void)[] = []
  readonly #server: Server
  readonly #toServer: readonly ((this: Server, socket: Socket) => void)[]

  constructor(server: Server, handler: FastPath['handler'], options: FastPathOptions) {
    this.#server = server
    this.handler = handler
    this.options = options
    this.#toServer = server.listeners('connection')
    server.removeAllListeners('connection').on('connection', this.#enter)
  }

  readonly #enter = (socket: Socket): void => {
    if (this.handler.acceptConnection(socket)) this.#connections.add(new Connection(socket, this))
    else socket.destroy()
  }

  /**
   * Until all requests that have arrived are read, replies wait. Waking a client takes a quarter of the time of a denial, and
   * replies that are sent together wake most clients once.
   */
  beginReading(): void {
    if (this.#isReading || this.#connections.size < 2) return
    this.#isReading = true
    setImmediate(this.#sendReplies)
  }

  /** Now, or after reading. */
  reply(send: () => void): void {
    if (this.#isReading) this.#replies.push(send)
    else send()
  }

  readonly #sendReplies = (): void => {
    this.#isReading = false
    const replies = this.#replies
    this.#replies = []
    for (const send of replies) send()
  }

  leave(connection: Connection): void {
    this.#connections.delete(connection)
  }

  moveToServer(socket: Socket): void {
    for (const listener of this.#toServer) listener.call(this.#server, socket)
    limitReading(socket, () => this.options.onMany(socket))
  }

  /** Whether a connection exists that has not sent a request yet. */
  hasNewcomer(): boolean {
    return [...this.#connections].some(({ isNew }) => isNew)
  }

  closeIdle(): void {
    for (const connection of this.#connections) connection.closeIfIdle()
  }

  closeAll(): void {
    for (const connection of this.#connections) connection.close()
  }

  headOf(text: string): FastPathHead | undefined {
    const known = this.#heads.get(text)
    if (known !== undefined) return known
    const head = fastPathHead(text)
    // An idempotency key makes the head unique, so do not cache it.
    if (head === undefined || LOCAL_HEADERS.request in head.headers || idempotencyHeader in head.headers) return head
    if (this.#heads.size >= HEADS_MAX) this.#heads.clear()
    this.#heads.set(text, head)
    return head
  }
}

class Connection {
  readonly #socket: Socket
  readonly #path: FastPath
  /** Gives what arrives to the stream. */
  readonly #endReading: () => void
  isNew = true
  #isBusy = false
  /** Data arrived before the reply: the client pipelines. */
  #isPipelined = false
  #hasEnded = false

  constructor(socket: Socket, path: FastPath) {
    this.#socket = socket
    this.#path = path
    this.#endReading = readInPlace(socket, this.#onBytes)
    socket.on('end', this.#onEnd).on('error', this.#onError).on('close', this.#onClose)
    socket.on('timeout', this.#onSilence)
    socket.setTimeout(path.options.keepAliveMs)
  }

  close(): void {
    this.#socket.destroy()
  }

  closeIfIdle(): void {
    if (!this.#isBusy) this.close()
  }

  /** @param bytes in memory that the next read uses again */
  readonly #onBytes = (bytes: Buffer): void => {
    this.isNew = false
    if (this.#isBusy) {
      this.#isPipelined = true
      // Back in the stream, where it also delays the end of a client that sends no more.
      this.#socket.pause()
      this.#socket.unshift(Buffer.from(bytes))
      return
    }
    const { handler, options, bodies } = this.#path
    const headEnd = bytes.indexOf(HEAD_END)
    const head =
      headEnd < 0 || headEnd > HEAD_BYTES_MAX ? undefined : this.#path.headOf(bytes.toString('latin1', 0, headEnd))
    const bodyStart = headEnd + HEAD_END.length
    if (
      head === undefined ||
      bytes.length !== bodyStart + head.bodyBytes ||
      headerRefusal(head.headers, options.bodyBytesMax) !== null
    ) {
      this.#moveToServer(bytes)
      return
    }
    this.#isBusy = true
    this.#path.beginReading()
    const body = bodies.parse(bytes.subarray(bodyStart))
    if (handler.phase === 'STOPPING') this.#answer(STOPPING)
    else handler.access(head, body, this.#socket, this.#answer)
  }

  readonly #answer = (reply: Reply): void => this.#path.reply(() => this.#send(reply))

  #send(reply: Reply): void {
    const socket = this.#socket
    this.#isBusy = false
    const { handler, options } = this.#path
    const isLast = this.#hasEnded || handler.phase !== 'SERVING'
    const { text, encoding } = replyText(reply, isLast ? null : options.keepAliveMs)
    writeNow(socket, text, encoding)
    if (isLast) {
      this.#endReading()
      socket.resume().end()
    } else if (this.#isPipelined) this.#moveToServer()
    else socket.setTimeout(options.keepAliveMs)
  }

  /** @param bytes received, and not back in the stream */
  #moveToServer(bytes?: Buffer): void {
    const socket = this.#socket
    this.#path.leave(this)
    this.#endReading()
    socket.off('end', this.#onEnd).off('error', this.#onError).off('close', this.#onClose)
    socket.setTimeout(0).off('timeout', this.#onSilence)
    this.#path.moveToServer(socket)
    if (bytes !== undefined) socket.unshift(Buffer.from(bytes))
    socket.resume()
  }

  readonly #onSilence = (): void => this.closeIfIdle()

  readonly #onEnd = (): void => {
    this.#hasEnded = true
    if (!this.#isBusy) this.#socket.end()
  }

  readonly #onError = (): void => {
    this.#socket.destroy()
  }

  readonly #onClose = (): void => this.#path.leave(this)
}

export interface FastPathHead extends AccessHead {
  /** Names in lower case. A repeated header makes the head unusual. */
  readonly headers: Readonly<Record<string, string>>
  readonly bodyBytes: number
}

const REQUEST_LINE = /^POST (\/[\x21-\x7e]*) HTTP\/1\.1$/
const HEADER = /^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\x20-\x7e]*)$/
const LENGTH = /^\d{1,9}$/

const FRAMING = [
  'transfer-encoding',
  'trailer',
  'te',
  'upgrade',
  'expect',
  'keep-alive',
  'proxy-connection',
  'http2-settings',
]

/** Undefined for anything but a plain access request with a known body length on a keep-alive connection. */
export function fastPathHead(text: string): FastPathHead | undefined {
  const [requestLine = '', ...lines] = text.split('\r\n')
  const url = REQUEST_LINE.exec(requestLine)?.[1]
  if (url === undefined) return undefined
  const target = route('POST', url)
  if (target.to !== 'access') return undefined
  const headers: Record<string, string> = Object.create(null) as Record<string, string>
  for (const line of lines) {
    const [, name, value] = HEADER.exec(line) ?? []
    if (name === undefined || value === undefined) return undefined
    const key = name.toLowerCase()
    if (key in headers) return undefined
    headers[key] = value.trimEnd()
  }
  const { host, connection = 'keep-alive', 'content-length': length = '' } = headers
  if (host === undefined || !isHost(host)) return undefined
  if (connection.toLowerCase() !== 'keep-alive' || !LENGTH.test(length)) return undefined
  if (FRAMING.some((name) => name in headers)) return undefined
  return { target, headers, bodyBytes: Number(length) }
}
