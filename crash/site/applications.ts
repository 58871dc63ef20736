/**
 * Local applications with concurrent requests, and their answers. Half of the requests are numbered and resent until
 * answered; the others are sent once, so without an answer their outcome is unknown.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { exactTokens, parseExactJson } from '../../src/client/exact-json.ts'
import { HttpClient } from '../../src/client/http.ts'
import type { Micro } from '../../src/core/pricing/amount.ts'
import { CodedError, ERRORS } from '../../src/protocol/errors.ts'
import type { Random } from '../../src/demo/random.ts'

export interface Told {
  readonly correlationId: string
  readonly charged: Micro
}

/** `SENT`: unknown whether it was decided. `NOT_TAKEN`: it was not. */
type NoAnswer = 'SENT' | 'NOT_TAKEN'

export interface Lane {
  readonly requester: string
  told: number
  unanswered: number
}

export interface ApplicationsOptions {
  readonly socketPath: string
  readonly instanceId: string
  readonly applications: number
  readonly inFlight: number
  readonly pauseMs: number
  readonly random: Random
}

const REPEAT_AFTER_MS = 20
const COUNTS = [1, 2, 3, 7, 0.5, 12.25]

export class Applications implements Disposable {
  readonly told: Told[] = []
  repeats = 0
  readonly #options: ApplicationsOptions
  #isStopping = false
  #isAbandoned = false
  #failure: unknown
  readonly #running: Promise<void>[] = []
  readonly #lanes: Lane[] = []

  constructor(options: ApplicationsOptions) {
    this.#options = options
  }

  begin(): void {
    const { applications, inFlight } = this.#options
    for (let number = 0; number < applications * inFlight; number += 1) {
      const lane: Lane = { requester: `app-${number}`, told: 0, unanswered: 0 }
      this.#lanes.push(lane)
      const running = number % 2 === 0 ? this.#numbered(lane, number) : this.#oneOff(lane, number)
      this.#running.push(
        running.catch((error: unknown) => {
          this.#failure ??= error
          this.#isStopping = true
        }),
      )
    }
  }

  lanes(): readonly Readonly<Lane>[] {
    return this.#lanes
  }

  /** One-off requests without an answer: each may be in the ledger or not. */
  get unanswered(): number {
    return this.#lanes.reduce((sum, { unanswered }) => sum + unanswered, 0)
  }

  check(): void {
    if (this.#failure !== undefined) throw this.#failure as Error
  }

  /** Stops sending and waits for pending answers, which needs a running service. */
  async end(): Promise<void> {
    this.#isStopping = true
    await Promise.all(this.#running)
    this.check()
  }

  [Symbol.dispose](): void {
    this.#isStopping = true
    this.#isAbandoned = true
  }

  async #numbered(lane: Lane, number: number): Promise<void> {
    const session = randomUUID()
    using client = this.#client()
    for (let n = 1; !this.#isStopping; n += 1) {
      const body = this.#body(number)
      const headers = { 'x-tallygate-session': session, 'x-tallygate-request': String(n) }
      for (;;) {
        const told = await this.#ask(client, body, headers)
        if (typeof told === 'object') {
          this.#keep(lane, told)
          break
        }
        if (this.#isAbandoned) return
        this.repeats += 1
        await sleep(REPEAT_AFTER_MS)
      }
      await this.#pause()
    }
  }

  async #oneOff(lane: Lane, number: number): Promise<void> {
    using client = this.#client()
    while (!this.#isStopping) {
      const told = await this.#ask(client, this.#body(number), {})
      // A denial is answered before it is recorded.
      if (typeof told === 'object' && told.charged === 0n) lane.unanswered += 1
      else if (typeof told === 'object') this.#keep(lane, told)
      else {
        if (told === 'SENT') lane.unanswered += 1
        await sleep(REPEAT_AFTER_MS)
      }
      await this.#pause()
    }
  }

  #keep(lane: Lane, told: Told): void {
    lane.told += 1
    this.told.push(told)
  }

  async #ask(client: HttpClient, body: unknown, headers: Record<string, string>): Promise<Told | NoAnswer> {
    const path = `/elastic/api/v1.1/instances/${this.#options.instanceId}/access-request`
    try {
      return toldBy(await client.text({ method: 'POST', path, headers, body }))
    } catch (error) {
      // A service fault is not an outcome, even if a retry may succeed.
      const mayRepeat = error instanceof CodedError && ERRORS[error.code].retry === 'later' && error.code !== 'INTERNAL'
      if (!mayRepeat) throw error
      const isUnknown = error.code === 'DISK_FAILED' || (error.code === 'AGENT_UNREACHABLE' && wasSent(error))
      return isUnknown ? 'SENT' : 'NOT_TAKEN'
    }
  }

  #body(number: number): unknown {
    const count = this.#options.random.pick(COUNTS)
    const items = [{ item: 'press', count }, ...(number % 3 === 0 ? [{ item: 'press', count: 1 }] : [])]
    // No rate: refusals are entries too.
    if (number % 5 === 0) items.push({ item: 'unknown', count: 1 })
    return { requester: { type: 'application', value: `app-${number}` }, requestedItems: items }
  }

  async #pause(): Promise<void> {
    const { pauseMs, random } = this.#options
    if (pauseMs > 0) await sleep(random.between(0, pauseMs))
  }

  #client(): HttpClient {
    return new HttpClient({ address: `unix:${this.#options.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  }
}

/** False: no connection, so the request never left. */
function wasSent({ cause }: Error): boolean {
  const code = (cause as NodeJS.ErrnoException | undefined)?.code
  return code !== 'ENOENT' && code !== 'ECONNREFUSED'
}

const answer = z.object({
  correlationId: z.string(),
  requestedItems: z.array(z.object({ totalTokensCharged: exactTokens })),
})

function toldBy(text: string): Told {
  const { correlationId, requestedItems } = answer.parse(parseExactJson(text))
  return { correlationId, charged: requestedItems.reduce((sum, item) => sum + item.totalTokensCharged, 0n) }
}
