/** The demo's applications. A request without a response is retried with the same key, so nothing is charged twice. */
import { randomUUID } from 'node:crypto'
import { z } from 'zod'
import { exactTokens, parseExactJson } from '../client/exact-json.ts'
import type { Call } from '../client/call.ts'
import { HttpClient, refusal } from '../client/http.ts'
import type { Micro } from '../core/pricing/amount.ts'
import type { RefusalReason } from '../core/rules/refusal-reasons.ts'
import { CodedError, ERRORS } from '../protocol/errors.ts'
import { ITEM_STATUS, type ItemStatus } from '../protocol/service/status.ts'
import type { DayRequest } from './day.ts'
import { REQUESTERS } from './site.ts'

export interface PlayOptions {
  readonly socketPath: string
  readonly instanceId: string
  readonly connections: number
  readonly signal: AbortSignal
  /** Longest time for one request with all its retries, ms. */
  readonly patienceMs: number
  readonly onAnswer: (answered: number, request: DayRequest) => void
}

export interface AnsweredItem {
  readonly outcome: ItemStatus
  readonly must: RefusalReason | undefined
  readonly charges: readonly { readonly lineItemId: string; readonly micro: Micro }[]
}

export interface AnsweredRequest {
  readonly request: DayRequest
  readonly items: readonly AnsweredItem[]
  readonly repeats: number
}

export class Applications implements Disposable {
  readonly #options: PlayOptions
  readonly #connections: Connection[]
  #answered = 0

  constructor(options: PlayOptions) {
    this.#options = options
    this.#connections = Array.from({ length: options.connections }, () => new Connection(options))
  }

  /** Sends the requests in parallel, one per connection; returns the responses in request order. */
  async play(requests: readonly DayRequest[]): Promise<readonly AnsweredRequest[]> {
    const answered: AnsweredRequest[] = []
    const waiting = requests.entries()
    const work = async (connection: Connection): Promise<void> => {
      for (const [index, request] of waiting) {
        answered[index] = await connection.make(request)
        this.#answered += 1
        this.#options.onAnswer(this.#answered, request)
      }
    }
    await Promise.all(this.#connections.map(work))
    return answered
  }

  [Symbol.dispose](): void {
    for (const connection of this.#connections) connection[Symbol.dispose]()
  }
}

class Connection implements Disposable {
  readonly #options: PlayOptions
  readonly #session = randomUUID()
  readonly #client: HttpClient
  #made = 0

  constructor(options: PlayOptions) {
    this.#options = options
    this.#client = new HttpClient({ address: `unix:${options.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  }

  async make(request: DayRequest): Promise<AnsweredRequest> {
    this.#made += 1
    const call: Call = {
      method: 'POST',
      path: `/elastic/api/v1.1/instances/${this.#options.instanceId}/access-request`,
      headers: { 'x-tallygate-session': this.#session, 'x-tallygate-request': String(this.#made) },
      body: bodyOf(request),
    }
    const deadline = performance.now() + this.#options.patienceMs
    for (let repeats = 0; ; repeats += 1) {
      this.#options.signal.throwIfAborted()
      try {
        return { request, items: answeredItems(request, await this.#client.text(call)), repeats }
      } catch (error) {
        if (!mayRepeat(error) || performance.now() > deadline) throw error
        await new Promise((resolve) => setTimeout(resolve, REPEAT_AFTER_MS))
      }
    }
  }

  [Symbol.dispose](): void {
    this.#client[Symbol.dispose]()
  }
}

const REPEAT_AFTER_MS = 20

function mayRepeat(error: unknown): boolean {
  return error instanceof CodedError && ERRORS[error.code].retry === 'later'
}

function bodyOf({ requester, items }: DayRequest): unknown {
  return {
    requester: { ...REQUESTERS[requester], value: requester },
    requestedItems: items.map(({ item, version, count }) => ({ item, ...(version === '' ? {} : { version }), count })),
  }
}

const answer = z.object({
  requestedItems: z.array(
    z.object({
      status: z.object({ code: z.string() }),
      totalTokensCharged: exactTokens,
      lineItems: z.array(z.object({ activationId: z.string(), tokensCharged: exactTokens })),
    }),
  ),
})

const OUTCOME_OF_CODE: ReadonlyMap<string, ItemStatus> = new Map(
  (Object.keys(ITEM_STATUS) as ItemStatus[]).map((outcome) => [ITEM_STATUS[outcome]['v1.1'], outcome]),
)

function answeredItems(request: DayRequest, text: string): readonly AnsweredItem[] {
  const parsed = answer.safeParse(parseExactJson(text))
  if (!parsed.success || parsed.data.requestedItems.length !== request.items.length) throw unexpected(text)
  return parsed.data.requestedItems.map(({ status, totalTokensCharged, lineItems }, index) => {
    const outcome = OUTCOME_OF_CODE.get(status.code)
    const sum = lineItems.reduce((all, part) => all + part.tokensCharged, 0n)
    if (outcome === undefined || sum !== totalTokensCharged) throw unexpected(text)
    const charges = lineItems.map((part) => ({ lineItemId: part.activationId, micro: part.tokensCharged }))
    return { outcome, must: request.items[index]?.must, charges }
  })
}

function unexpected(text: string): CodedError {
  return refusal({ method: 'POST', path: 'access-request' }, { status: 200, text })
}
