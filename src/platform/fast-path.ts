/**
 * Serves plain requests that arrive in one piece without the overhead of Node's HTTP server. For any other request, the
 * connection and all its bytes move to Node's server for good, so no message is parsed twice.
 */
import { type Server, STATUS_CODES } from 'node:http'
import type { Server as HttpsServer } from 'node:https'
import type { Socket } from 'node:net'
import { availableParallelism } from 'node:os'
import { Server as TlsServer } from 'node:tls'
import { isHost } from '../protocol/service/refusals.ts'
import { readInPlace, writeNow } from './direct-socket.ts'
import { StayAwake } from './stay-awake.ts'

const HEAD_END = Buffer.from('\r\n\r\n')

/** Parsed heads to cache; a client sends the same head with nearly every request. */
const HEADS_MAX = 256
const HEAD_BYTES_MAX = 2_048

export interface Reply {
  readonly status: number
  /** Alternating names and values, without Content-Type and Content-Length. */
  readonly headers: readonly string[]
  readonly body: string
  /** Default: application/json. */
  readonly type?: string
}

/** Emitted for each connection that can be read. */
export function connectionEvent(server: Server | HttpsServer): 'connection' | 'secureConnection' {
  return server instanceof TlsServer ? 'secureConnection' : 'connection'
}

export interface FastPathOptions<Target> {
  /** Undefined: Node's server serves such requests. */
  readonly targetOf: (method: string, url: string) => Target | undefined
  /** In lower case. Their values are unique, so no head with one of them comes again. */
  readonly uniqueHeaders: readonly string[]
  readonly bodyBytesMax: number
  /** How long a connection can be silent before its first request, ms. */
  readonly firstRequestMs: number
  readonly accept: (socket: Socket) => boolean
  /** Whether each response ends its connection. */
  readonly isEnding: () => boolean
  /** @param body in memory that the next read uses again */
  readonly serve: (head: PlainHead<Target>, body: Buffer, socket: Socket, answer: (reply: Reply) => void) => void
}

/** Takes the new connections of Node's server. Its listeners at that time get those that move. */
export class FastPath<Target> {
  readonly options: FastPathOptions<Target>
  /** How long a connection can be silent between requests. */
  readonly keepAliveMs: number
  /** Longer, for a request that is sent in the last moment. */
  readonly silenceMs: number
  readonly #heads = new Map<string, PlainHead<Target>>()
  readonly #connections = new Set<Connection<Target>>()
  readonly awake = new StayAwake(availableParallelism())
  #isReading = false
  #replies: (() => void)[] = []
  readonly moveToServer: (socket: Socket) => void

  constructor(server: Server | HttpsServer, options: FastPathOptions<Target>) {
    this.options = options
    this.keepAliveMs = server.keepAliveTimeout
    this.silenceMs = server.keepAliveTimeout + server.keepAliveTimeoutBuffer
    const event = connectionEvent(server)
    const listeners = server.listeners(event)
    this.moveToServer = (socket) => {
      for (const listener of listeners) listener.call(server, socket)
    }
    server.removeAllListeners(event).on(event, this.#enter)
  }

  readonly #enter = (socket: Socket): void => {
    if (this.options.accept(socket)) this.#connections.add(new Connection(socket, this))
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

  leave(connection: Connection<Target>): void {
    this.#connections.delete(connection)
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

  headOf(text: string): PlainHead<Target> | undefined {
    const known = this.#heads.get(text)
    if (known !== undefined) return known
    const head = plainHead(text, this.options)
    if (head === undefined || this.options.uniqueHeaders.some((name) => name in head.headers)) return head
    if (this.#heads.size >= HEADS_MAX) this.#heads.clear()
    this.#heads.set(text, head)
    return head
  }
}

class Connection<Target> {
  readonly #socket: Socket
  readonly #path: FastPath<Target>
  /** Gives what arrives to the stream. */
  readonly #endReading: () => void
  isNew = true
  #isBusy = false
  /** Data arrived before the reply: the client pipelines. */
  #isPipelined = false
  #hasEnded = false

  constructor(socket: Socket, path: FastPath<Target>) {
    this.#socket = socket
    this.#path = path
    this.#endReading = readInPlace(socket, this.#onBytes)
    socket.on('end', this.#onEnd).on('error', this.#onError).on('close', this.#onClose)
    socket.on('timeout', this.#onSilence)
    socket.setTimeout(path.options.firstRequestMs)
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
      // More may follow at once, such as a record of TLS: it goes behind these bytes.
      this.#endReading()
      // Back in the stream, where it also delays the end of a client that sends no more.
      this.#socket.pause()
      this.#socket.unshift(Buffer.from(bytes))
      return
    }
    const headEnd = bytes.indexOf(HEAD_END)
    const head =
      headEnd < 0 || headEnd > HEAD_BYTES_MAX ? undefined : this.#path.headOf(bytes.toString('latin1', 0, headEnd))
    const bodyStart = headEnd + HEAD_END.length
    // Node's server reads no more from a client that does not read its responses.
    if (head === undefined || bytes.length !== bodyStart + head.bodyBytes || this.#socket.writableLength > 0) {
      this.#moveToServer(bytes)
      return
    }
    this.#isBusy = true
    this.#path.awake.received()
    this.#path.beginReading()
    this.#path.options.serve(head, bytes.subarray(bodyStart), this.#socket, this.#answer)
  }

  readonly #answer = (reply: Reply): void => this.#path.reply(() => this.#send(reply))

  #send(reply: Reply): void {
    const socket = this.#socket
    this.#isBusy = false
    this.#path.awake.answered()
    // Node's server never forgets a connection that was closed before.
    if (socket.destroyed) return
    const { keepAliveMs, silenceMs, options } = this.#path
    // Requests behind this one are answered by Node's server, also at a stop.
    const isLast = !this.#isPipelined && (this.#hasEnded || options.isEnding())
    const { text, encoding } = replyText(reply, isLast ? null : keepAliveMs)
    writeNow(socket, text, encoding)
    if (isLast) {
      this.#endReading()
      socket.resume().end()
    } else if (this.#isPipelined) this.#moveToServer()
    else socket.setTimeout(silenceMs)
  }

  /** @param bytes received, and not back in the stream */
  #moveToServer(bytes?: Buffer): void {
    const socket = this.#socket
    this.#path.leave(this)
    this.#endReading()
    socket.off('end', this.#onEnd).off('error', this.#onError).off('close', this.#onClose)
    socket.setTimeout(0).off('timeout', this.#onSilence)
    if (bytes !== undefined) socket.unshift(Buffer.from(bytes))
    this.#path.moveToServer(socket)
    // Before the server reads: when it has paused the socket, it fails if more arrives.
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

export interface PlainHead<Target> {
  readonly target: Target
  /** Names in lower case. A repeated header makes the head unusual. */
  readonly headers: Readonly<Record<string, string>>
  readonly bodyBytes: number
}

const REQUEST_LINE = /^([A-Z]+) (\/[\x21-\x7e]*) HTTP\/1\.1$/
const HEADER = /^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*((?:[\x21-\x7e][\x20-\x7e]*)?)$/
const LENGTH = /^[1-9]\d{0,8}$/
const JSON_TYPE = /^application\/json(?:; ?charset=utf-8)?$/i

/** Node's server knows what to do with them. */
const UNUSUAL = [
  'content-encoding',
  'transfer-encoding',
  'trailer',
  'te',
  'upgrade',
  'expect',
  'keep-alive',
  'proxy-connection',
  'http2-settings',
]

/** Undefined for anything but a plain request for a target, with a JSON body of a known length, on a keep-alive connection. */
export function plainHead<Target>(
  text: string,
  { targetOf, bodyBytesMax }: Pick<FastPathOptions<Target>, 'targetOf' | 'bodyBytesMax'>,
): PlainHead<Target> | undefined {
  const [requestLine = '', ...lines] = text.split('\r\n')
  const [, method = '', url = ''] = REQUEST_LINE.exec(requestLine) ?? []
  const target = targetOf(method, url)
  if (target === undefined) return undefined
  const headers: Record<string, string> = Object.create(null) as Record<string, string>
  for (const line of lines) {
    const [, name, value] = HEADER.exec(line) ?? []
    if (name === undefined || value === undefined) return undefined
    const key = name.toLowerCase()
    if (key in headers) return undefined
    headers[key] = value.trimEnd()
  }
  const { host, connection = 'keep-alive', 'content-type': type = '', 'content-length': length = '' } = headers
  if (host === undefined || !isHost(host) || connection.toLowerCase() !== 'keep-alive') return undefined
  if (!JSON_TYPE.test(type) || !LENGTH.test(length) || Number(length) > bodyBytesMax) return undefined
  if (UNUSUAL.some((name) => name in headers)) return undefined
  return { target, headers, bodyBytes: Number(length) }
}

interface ReplyText {
  readonly text: string
  readonly encoding: 'latin1' | 'utf8'
}

/** The encoding is that in which ASCII is written faster. @param keepAliveMs idle timeout; null: close after this response */
export function replyText(
  { status, headers, body, type = 'application/json' }: Reply,
  keepAliveMs: number | null,
): ReplyText {
  const length = Buffer.byteLength(body)
  let text = `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\nContent-Type: ${type}\r\nContent-Length: ${length}\r\n`
  for (let index = 0; index < headers.length; index += 2)
    text += `${headers[index] ?? ''}: ${headers[index + 1] ?? ''}\r\n`
  text +=
    keepAliveMs === null
      ? 'Connection: close\r\n'
      : `Connection: keep-alive\r\nKeep-Alive: timeout=${Math.floor(keepAliveMs / 1000)}\r\n`
  return { text: `${text}\r\n${body}`, encoding: length === body.length ? 'latin1' : 'utf8' }
}
