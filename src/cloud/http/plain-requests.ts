/**
 * Serves access requests that arrive in one piece without Fastify and Node's HTTP server, which need more time for such a
 * request than the decision and its record. Responses are the same. docs/explanation/benchmarks.md shows the effect.
 */
import type { Socket } from 'node:net'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { FastPath, type PlainHead, type Reply } from '../../platform/fast-path.ts'
import { CodedError } from '../../protocol/errors.ts'
import { idempotencyHeader } from '../../protocol/wire.ts'
import { JSON_TYPE, shownError } from './answer-error.ts'
import { undeclared, wrongAnswer } from './check-answers.ts'
import type { DeclaredAnswers } from './declared-answers.ts'
import type { Answer, Answered, Method } from './operation.ts'
import { pathPattern } from './path-pattern.ts'
import type { KeptHead } from './route.ts'

/** A request that has arrived completely. */
export interface PlainRequest {
  readonly headers: Readonly<Record<string, string>>
  readonly params: unknown
  readonly query: unknown
  readonly kept: KeptHead
  readonly body: Buffer
  readonly socket: Socket
  readonly log: FastifyBaseLogger
}

export interface PlainOperation {
  readonly method: Method
  /** A segment with a leading colon is a parameter. */
  readonly url: string
  readonly answers: DeclaredAnswers
  /** Always with JSON. @throws CodedError */
  readonly answer: (request: PlainRequest) => Promise<Answer>
}

export interface PlainRequestsDeps {
  /** Bytes. */
  readonly bodyMax: number
  readonly logger: FastifyBaseLogger
  readonly newId: () => string
  readonly isStopping: () => boolean
  readonly onAnswered: (answered: Answered) => void
  /** Null: no checks. */
  readonly onWrongAnswer: ((error: Error) => void) | null
}

interface Target {
  readonly operation: PlainOperation
  readonly params: Readonly<Record<string, string>>
  readonly kept: KeptHead
}

export class PlainRequests {
  readonly #http: FastifyInstance
  readonly #deps: PlainRequestsDeps
  readonly #fastPath: FastPath<Target>
  readonly #operations: { readonly pattern: RegExp; readonly operation: PlainOperation }[] = []

  /** Call when the server has its listeners for connections. */
  constructor(http: FastifyInstance, deps: PlainRequestsDeps) {
    this.#http = http
    this.#deps = deps
    this.#fastPath = new FastPath(http.server, {
      targetOf: this.#targetOf,
      uniqueHeaders: [idempotencyHeader],
      bodyBytesMax: deps.bodyMax,
      firstRequestMs: http.server.headersTimeout,
      accept: () => true,
      isEnding: deps.isStopping,
      serve: this.#serve,
    })
  }

  add(operation: PlainOperation): void {
    this.#operations.push({ pattern: pathPattern(operation.url, PARAMETER), operation })
  }

  closeIdle(): void {
    this.#fastPath.closeIdle()
  }

  readonly #targetOf = (method: string, url: string): Target | undefined => {
    for (const { pattern, operation } of this.#operations) {
      const found = operation.method === method ? pattern.exec(url) : null
      if (found !== null) return { operation, params: { ...found.groups }, kept: {} }
    }
    return undefined
  }

  readonly #serve = (head: PlainHead<Target>, body: Buffer, socket: Socket, answer: (reply: Reply) => void): void => {
    const begun = performance.now()
    const { method, url: route } = head.target.operation
    // The next read uses the memory again.
    void this.#replyTo(head, Buffer.from(body), socket).then((reply) => {
      answer(reply)
      this.#deps.onAnswered({ method, route, status: reply.status, ms: performance.now() - begun })
    })
  }

  async #replyTo({ target, headers }: PlainHead<Target>, bytes: Buffer, socket: Socket): Promise<Reply> {
    const { logger: log, isStopping, onWrongAnswer } = this.#deps
    const { method, url, answers, answer } = target.operation
    try {
      if (isStopping()) throw stopping()
      const { params, kept } = target
      const own = await answer({ headers, params, query: {}, kept, body: bytes, socket, log })
      if (own.text === undefined && own.body === undefined) throw new Error(`invariant: ${url} has a result`)
      const reply = replyOf(own.status, own.text ?? JSON.stringify(own.body), own.headers)
      if (onWrongAnswer === null) return reply
      const sent = { status: reply.status, type: JSON_TYPE, payload: reply.body }
      const wrong = wrongAnswer(`${method} ${url}`, answers, sent)
      if (wrong === undefined) return reply
      onWrongAnswer(wrong)
      throw undeclared(wrong)
    } catch (error) {
      return this.#refusal(error)
    }
  }

  #refusal(error: unknown): Reply {
    const { logger, newId } = this.#deps
    const id = newId()
    const { status, headers, message, code } = shownError(error, {
      id,
      log: logger.child({ reqId: id }),
      server: this.#http,
      raw: { complete: true },
    })
    return replyOf(status, JSON.stringify({ message, code }), headers)
  }
}

export function stopping(): CodedError {
  return new CodedError('STOPPING', 'The service is shutting down.')
}

function replyOf(status: number, body: string, own: Answer['headers'] = {}): Reply {
  const headers = [...Object.entries(own).flat(), 'Date', dateNow()]
  return { status, headers, body, type: JSON_TYPE }
}

let lastDate = { second: 0, text: '' }

/** Made once for each second, as Node does. */
function dateNow(): string {
  const now = Date.now()
  const second = Math.floor(now / 1_000)
  if (second !== lastDate.second) lastDate = { second, text: new Date(now).toUTCString() }
  return lastDate.text
}

/** Others, such as with percent signs, are left to Fastify. */
const PARAMETER = '[\\w.~-]{1,64}'
