import { expect, it } from 'vitest'
import { withRetries } from '../../src/cli/import/retries.ts'
import type { Answer } from '../../src/client/http.ts'

const NOW = Date.UTC(2026, 4, 6)

/** Answers in turn, the last one for ever. Returns the last answer's status, and the waits. */
async function tried(...answers: readonly (readonly [status: number, retryAfter?: string])[]) {
  const waits: number[] = []
  let turn = 0
  const send = async (): Promise<Answer> => {
    const [status, retryAfter] = answers[Math.min(turn, answers.length - 1)]!
    turn += 1
    return { status, text: '', headers: retryAfter === undefined ? {} : { 'retry-after': retryAfter } }
  }
  const wait = async (ms: number): Promise<void> => void waits.push(ms)
  const { status } = await withRetries(send, { now: () => NOW, wait, onBusy: () => undefined })
  return [status, waits]
}

it('waits as long as the service says', async () => {
  expect(await tried([429, '7'], [503, '0'], [200])).toEqual([200, [7_000, 0]])
  expect(await tried([503, new Date(NOW + 3_000).toUTCString()], [200])).toEqual([200, [3_000]])
  expect(await tried([503, new Date(NOW - 3_000).toUTCString()], [200])).toEqual([200, [0]])
})

it('waits longer each time without such a word, and gives up', async () => {
  expect(await tried([503])).toEqual([503, [1_000, 2_000, 4_000, 8_000, 16_000]])
  expect(await tried([429, 'soon'], [200])).toEqual([200, [1_000]])
})

it('does not wait for an hour, nor after other answers', async () => {
  expect(await tried([429, '3600'])).toEqual([429, []])
  expect(await tried([500])).toEqual([500, []])
  expect(await tried([404, '1'])).toEqual([404, []])
})
