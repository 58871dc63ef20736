/** Repeats a request while the service is busy. */
import type { Answer } from '../../client/http.ts'
import { retryAfterMs } from '../../protocol/retry-after.ts'

const ATTEMPTS_MAX = 6
const BUSY: ReadonlySet<number> = new Set([429, 502, 503, 504])
const FIRST_WAIT_MS = 1_000
/** A service that asks for more waits longer than an administrator does: the command ends, and can be repeated. */
const WAIT_MS_MAX = 60_000

export interface Patience {
  readonly now: () => number
  readonly wait: (ms: number) => Promise<void>
  readonly onBusy: (status: number, ms: number) => void
}

/** The last answer, busy or not. Only for requests that can be repeated. */
export async function withRetries(send: () => Promise<Answer>, { now, wait, onBusy }: Patience): Promise<Answer> {
  for (let attempt = 1; ; attempt += 1) {
    const answer = await send()
    if (!BUSY.has(answer.status) || attempt === ATTEMPTS_MAX) return answer
    const ms = retryAfterMs(answer.headers['retry-after'], now()) ?? FIRST_WAIT_MS * 2 ** (attempt - 1)
    if (ms > WAIT_MS_MAX) return answer
    onBusy(answer.status, ms)
    await wait(ms)
  }
}
