/**
 * Fast path of the socket: answers a plain access request that arrives in one piece without the overhead of Node's HTTP
 * server. For any other request, the connection and all its bytes move to Node's server for good, so no message is
 * parsed twice or kept half-read here.
 */
import type { Socket } from 'node:net'
import type { CodedError } from '../../../protocol/errors.ts'
import { type FastPathHead, fastPathHead } from './fast-path-head.ts'
import type { Reply } from './reply.ts'
import { KnownBodies } from './known-bodies.ts'
import { replyText } from './reply-text.ts'
import { type JsonBody, headerRefusal } from './request-body.ts'

export interface FastPathOptions {
  readonly bodyBytesMax: number
  /** Idle timeout, ms. */
  readonly keepAliveMs: number
  /** Handles one request; calls back once with the reply. */
  readonly take: (
    head: FastPathHead,
    body: JsonBody | CodedError,
    done: (reply: Reply) => void,
    connection: Socket,
  ) => void
  /** Whether to close connections after the next reply. */
  readonly isStopping: () => boolean
  /** Moves the connection to Node's server. */
  readonly handOver: (socket: Socket) => void
}

const HEAD_END = Buffer.from('\r\n\r\n')

/** Parsed heads to cache; a client sends the same head with nearly every request. */
const HEADS_MAX = 256
const HEAD_BYTES_MAX = 2_048

export class FastPath {
  readonly #options: FastPathOptions
  readonly #heads = new Map<string, FastPathHead>()
  readonly #bodies = new KnownBodies()
  readonly #connections = new Set<Connection>()

  constructor(options: FastPathOptions) {
    this.#options = options
  }

  readonly enter = (socket: Socket): void => {
    const connection = new Connection(socket, this.#options, this.#headOf, this.#bodies, (left) =>
      this.#connections.delete(left),
    )
    this.#connections.add(connection)
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

  readonly #headOf = (text: string): FastPathHead | undefined => {
    const known = this.#heads.get(text)
    if (known !== undefined) return known
    const head = fastPathHead(text)
    // A request number makes the head unique, so do not cache it.
    if (head === undefined || 'x-tallygate-request' in head.headers) return head
    if (this.#heads.size >= HEADS_MAX) this.#heads.clear()
    this.#heads.set(text, head)
    return head
  }
}

class Connection {
  readonly #socket: Socket
  readonly #options: FastPathOptions
  readonly #headOf: (text: string) => FastPathHead | undefined
  readonly #bodies: KnownBodies
  readonly #onLeft: (connection: Connection) => void
  /** No data received yet. */
  isNew = true
  #isBusy = false
  /** Data that arrived before the reply: the client pipelines. */
  #early: Buffer | null = null
  #hasEnded = false

  constructor(
    socket: Socket,
    options: FastPathOptions,
    headOf: (text: string) => FastPathHead | undefined,
    bodies: KnownBodies,
    onLeft: (connection: Connection) => void,
  ) {
    this.#socket = socket
    this.#options = options
    this.#headOf = headOf
    this.#bodies = bodies
    this.#onLeft = onLeft
    socket.on('data', this.#onData).on('end', this.#onEnd).on('error', this.#onError).on('close', this.#onClose)
    socket.on('timeout', this.#onSilence)
    socket.setTimeout(options.keepAliveMs)
  }

  close(): void {
    this.#socket.destroy()
  }

  closeIfIdle(): void {
    if (!this.#isBusy) this.close()
  }

  readonly #onData = (bytes: Buffer): void => {
    this.isNew = false
    if (this.#isBusy) {
      this.#early = this.#early === null ? bytes : Buffer.concat([this.#early, bytes])
      this.#socket.pause()
      return
    }
    const headEnd = bytes.indexOf(HEAD_END)
    const head =
      headEnd < 0 || headEnd > HEAD_BYTES_MAX ? undefined : this.#headOf(bytes.toString('latin1', 0, headEnd))
    const bodyStart = headEnd + HEAD_END.length
    if (
      head === undefined ||
      bytes.length !== bodyStart + head.bodyBytes ||
      headerRefusal(head.headers, this.#options.bodyBytesMax) !== null
    ) {
      this.#handOver(bytes)
      return
    }
    this.#isBusy = true
    this.#options.take(head, this.#bodies.parse(bytes.subarray(bodyStart)), this.#answer, this.#socket)
  }

  readonly #answer = (reply: Reply): void => {
    const socket = this.#socket
    this.#isBusy = false
    const isLast = this.#hasEnded || this.#options.isStopping()
    socket.write(replyText(reply, isLast ? null : this.#options.keepAliveMs))
    if (isLast) socket.end()
    else if (this.#early !== null) this.#handOver(this.#early)
  }

  #handOver(bytes: Buffer): void {
    const socket = this.#socket
    this.#onLeft(this)
    socket.off('data', this.#onData).off('end', this.#onEnd).off('error', this.#onError).off('close', this.#onClose)
    socket.setTimeout(0).off('timeout', this.#onSilence)
    this.#options.handOver(socket)
    socket.unshift(bytes)
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

  readonly #onClose = (): void => this.#onLeft(this)
}
