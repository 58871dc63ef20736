// A segment is sealed for good: whatever the device was asked for, the cloud must be able to take and to read it.
import { expect, it } from 'vitest'
import { SYNC_BODY_BYTES_MAX } from '../../../src/cloud/app/edge/limits.ts'
import { type AccountId, limitAccount } from '../../../src/core/account.ts'
import { MICRO_MAX } from '../../../src/core/amount.ts'
import { SEGMENT_ACCOUNTS_MAX, type Segment, segment } from '../../../src/protocol/edge/sync.ts'
import { attach, journalIn, payloadOf, SEAL, temporaryDirectory } from '../harness.ts'
import { INSTANCE } from '../link/fake-cloud.ts'

/** The limit of a requester whose name is as long as names may be. */
const accountOf = (n: number): AccountId =>
  limitAccount(INSTANCE, 'line-1', { type: 'ldap-distinguished-name', value: `CN=${n},OU=${'x'.repeat(1_100)}` }, 42)

/** As the twin reads it; throws when it could not. */
function readByTwin(document: string): Segment {
  const body = JSON.stringify({ segment: document, nonce: 'x'.repeat(64) })
  expect(Buffer.byteLength(body)).toBeLessThan(SYNC_BODY_BYTES_MAX)
  return segment.parse(payloadOf(document))
}

it('a want above what a counter holds is sealed as one for all that there is', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, {})
  const wants = [{ account: accountOf(1), atLeast: MICRO_MAX + 1n, wanted: 3n * MICRO_MAX }]
  const read = readByTwin((await journal.seal({ ...SEAL, wants })).document)
  expect(read.wants).toEqual([{ account: accountOf(1), atLeast: MICRO_MAX, wanted: MICRO_MAX }])
})

it('of more wants than a segment takes the first go with it, those of waiting requests', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, {})
  const wants = Array.from({ length: SEGMENT_ACCOUNTS_MAX }, (_, n) => {
    return { account: accountOf(n), atLeast: 0n, wanted: 10_000_000n }
  })
  const read = readByTwin((await journal.seal({ ...SEAL, wants })).document)
  expect(read.wants.length).toBeGreaterThan(500)
  expect(read.wants).toEqual(wants.slice(0, read.wants.length))
})
