// A network between device and cloud that does what networks do, by order of the test: it loses requests and answers,
// delivers them twice or late, and shows an old answer again.
import type { HttpAnswer, HttpExchange, HttpRequest } from '../../../src/agent/platform/http/exchange.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { json } from '../../agent/sync/fake-cloud.ts'

export type Fault =
  | 'LOSE_REQUEST'
  /** The cloud has done it, and the device does not hear of it. */
  | 'LOSE_ANSWER'
  /** The request arrives twice; the device sees the answer to the second. */
  | 'REPEAT_REQUEST'
  /** The request arrives only after the next one. */
  | 'DELAY_REQUEST'
  /** The device sees what the cloud answered to the request before. */
  | 'OLD_ANSWER'
  /** The response is cut short. */
  | 'CUT_ANSWER'
  /** A balancer answers in place of the cloud. */
  | 'UNAVAILABLE'

export const FAULTS: readonly Fault[] = [
  'LOSE_REQUEST',
  'LOSE_ANSWER',
  'REPEAT_REQUEST',
  'DELAY_REQUEST',
  'OLD_ANSWER',
  'CUT_ANSWER',
  'UNAVAILABLE',
]

export class FaultyNetwork {
  readonly #cloud: HttpExchange
  /** For the next requests, one each; null lets one through. */
  faults: (Fault | null)[] = []
  /** Nothing gets through in either direction. */
  down = false
  retryAfter: string | null = null
  /** Requests that the device has begun. */
  attempts = 0
  /** Answers of the cloud that refused a token. */
  refusedTokens = 0
  #delayed: HttpRequest[] = []
  readonly #answers = new Map<string, HttpAnswer>()
  /** Changes an answer on its way. */
  tamper: (request: HttpRequest, answer: HttpAnswer) => HttpAnswer = (_request, answer) => answer
  /** A proxy between the two. */
  intercept: HttpExchange | null = null

  constructor(cloud: HttpExchange) {
    this.#cloud = cloud
  }

  readonly exchange: HttpExchange = async (request) => {
    this.attempts += 1
    if (this.down) throw unreachable()
    const kind = `${request.method} ${new URL(request.url).pathname}`
    const fault = this.faults.shift() ?? null
    const old = this.#answers.get(kind)
    const ask = async (): Promise<HttpAnswer> => {
      const answer = await (this.intercept ?? this.#cloud)(request)
      this.#answers.set(kind, answer)
      if (answer.status === 401) this.refusedTokens += 1
      return this.tamper(request, answer)
    }
    switch (fault) {
      case 'LOSE_REQUEST':
        throw unreachable()
      case 'DELAY_REQUEST':
        this.#delayed.push(request)
        throw unreachable()
      case 'LOSE_ANSWER':
        await ask()
        await this.#deliverLate()
        throw unreachable()
      case 'REPEAT_REQUEST':
        await ask()
        break
      case 'UNAVAILABLE': {
        const headers: Record<string, string> = this.retryAfter === null ? {} : { 'retry-after': this.retryAfter }
        return { ...json(503, { message: 'busy' }), headers }
      }
      case 'OLD_ANSWER':
        await ask()
        if (old === undefined) throw unreachable()
        return old
      case 'CUT_ANSWER': {
        const answer = await ask()
        return { ...answer, body: answer.body.slice(0, answer.body.length / 2) }
      }
      case null:
        break
    }
    const answer = await ask()
    await this.#deliverLate()
    return answer
  }

  async #deliverLate(): Promise<void> {
    for (const request of this.#delayed.splice(0)) await this.#cloud(request)
  }
}

function unreachable(): CodedError {
  return new CodedError('CLOUD_UNREACHABLE', 'The cloud does not answer.', { details: { network: 'ETIMEDOUT' } })
}
