// What a device shows again of what the cloud has signed always fits the body that the cloud takes, and nothing is left out.
import { expect, test } from 'vitest'
import { proofsBeside } from '../../../src/agent/sync/proofs.ts'
import { PROOFS_MAX, PROOFS_TEXT_MAX, SEGMENT_BYTES_MAX, SYNC_BODY_BYTES_MAX } from '../../../src/protocol/edge/sync.ts'

const bodyOf = (segment: string, proofs: readonly string[]): number =>
  Buffer.byteLength(JSON.stringify({ segment, nonce: 'n'.repeat(64), proofs }))

/** The longest segment as it travels. */
const FULL = 'x'.repeat(300 + Math.ceil((SEGMENT_BYTES_MAX * 4) / 3))

test.each([
  ['a short segment and many short proofs', 1_000, 100, 500],
  ['a short segment and long proofs', 1_000, 40, 1_000_000],
  ['a full segment and long proofs', FULL.length, 40, 1_000_000],
  ['a full segment and proofs that barely fit one by one', FULL.length, 5, 7_000_000],
])('%s go in as many bodies as it takes, in order', (_name, segmentLength, count, length) => {
  const segment = 'x'.repeat(segmentLength)
  const proofs = Array.from({ length: count }, (_, n) => String(n).padEnd(length, 'p'))
  const gone: string[] = []
  let bodies = 0
  for (let rest: readonly string[] = proofs; rest.length > 0; bodies += 1) {
    const next = proofsBeside(segment, rest)
    expect(next.shown.length).toBeGreaterThan(0)
    expect(next.shown.length).toBeLessThanOrEqual(PROOFS_MAX)
    expect(bodyOf(segment, next.shown)).toBeLessThanOrEqual(SYNC_BODY_BYTES_MAX)
    if (next.shown.length > 1) expect(next.shown.join('').length).toBeLessThanOrEqual(PROOFS_TEXT_MAX)
    gone.push(...next.shown)
    rest = next.rest
  }
  expect(gone).toEqual(proofs)
  expect(bodies).toBeLessThanOrEqual(Math.ceil(count / PROOFS_MAX) + Math.ceil((count * length) / 4_000_000))
})

test('as many proofs as the cloud takes go together, to the byte', () => {
  const half = 'p'.repeat(PROOFS_TEXT_MAX / 2)
  expect(proofsBeside(FULL, [half, half])).toEqual({ shown: [half, half], rest: [] })
  expect(proofsBeside(FULL, [half, `${half}p`])).toEqual({ shown: [half], rest: [`${half}p`] })
})

test('a proof that fits no body beside a full segment waits for a shorter one', () => {
  const proof = 'p'.repeat(SYNC_BODY_BYTES_MAX - FULL.length)
  expect(proofsBeside(FULL, [proof])).toEqual({ shown: [], rest: [] })
  expect(proofsBeside('segment', [proof])).toEqual({ shown: [proof], rest: [] })
})

test('a proof that is too large for any body does not block the others', () => {
  const proofs = ['a', 'p'.repeat(SYNC_BODY_BYTES_MAX), 'b']
  expect(proofsBeside('segment', proofs)).toEqual({ shown: ['a', 'b'], rest: [] })
  expect(proofsBeside('segment', ['p'.repeat(SYNC_BODY_BYTES_MAX)])).toEqual({ shown: [], rest: [] })
})
