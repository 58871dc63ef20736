// Entries that the cloud has lost and this device no longer keeps: what they came to goes up before the others.
import { describe, expect, it } from 'vitest'
import {
  SEGMENT_ACCOUNTS_MAX,
  SEGMENT_COUNTERS_BYTES_MAX,
  type SegmentWire,
} from '../../../../src/protocol/edge/sync.ts'
import { counterBytesMax } from '../../../../src/agent/ledger/balances.ts'
import { limitAccount, lineAccount } from '../../../../src/core/accounts/account.ts'
import { CHAIN_START } from '../../../../src/protocol/signing.ts'
import { INSTANCE } from '../../sync/fake-cloud.ts'
import { SEAL, STAMP, attach, entry, journalIn, payloadOf, temporaryDirectory } from '../../harness.ts'

const A = lineAccount(INSTANCE, 'line-1', 0)
const B = lineAccount(INSTANCE, 'line-2', 0)
const WHOLE = { isWhole: true, cloudEnd: { entry: 0, head: CHAIN_START } }
const NOTHING_KEPT = { limits: { recentEntries: 0 } }

const undeliveredRangeOf = (document: string) => (payloadOf(document) as SegmentWire).undeliveredRange

describe('entries that the cloud has lost and this device no longer keeps', () => {
  it('are delivered once as the counters before the kept entries, and again after another epoch', async () => {
    const journal = await journalIn(temporaryDirectory(), NOTHING_KEPT)
    await attach(journal, { [A]: 100n, [B]: 100n })
    await journal.append([entry(1, [{ account: A, amount: 20n }]), entry(2, [{ account: B, amount: 5n }])], STAMP)
    await journal.append([entry(3, [{ account: A, amount: 4n }], { moves: 'refunded' })], STAMP)
    await journal.acknowledge((await journal.seal(SEAL)).seq, null, null)
    await journal.append([entry(4, [{ account: A, amount: 7n }])], STAMP)
    await journal.append([entry(5, [{ account: A, amount: 3n }], { moves: 'refunded' })], STAMP)
    await journal.fence()
    await journal.attach(2, WHOLE)
    const told = {
      epoch: 1,
      entries: { first: 4, bodies: [] },
      counted: {
        counters: [
          { account: A, used: '20', refunded: '4' },
          { account: B, used: '5', refunded: '0' },
        ],
        isLast: true,
      },
      final: false,
    }
    const first = await journal.seal(SEAL)
    expect(undeliveredRangeOf(first.document)).toMatchObject(told)
    // Never acknowledged: the next epoch begins with it again.
    await journal.fence()
    await journal.attach(3)
    const again = await journal.seal(SEAL)
    expect(undeliveredRangeOf(again.document)).toMatchObject(told)
    await journal.acknowledge(again.seq, null, null)
    const rest = await journal.seal(SEAL)
    expect(undeliveredRangeOf(rest.document)).toMatchObject({ entries: { first: 4 }, final: true })
    expect(undeliveredRangeOf(rest.document)?.entries.bodies).toHaveLength(2)
    expect(undeliveredRangeOf(rest.document)).not.toHaveProperty('counted')
    await journal.acknowledge(rest.seq, null, null)
    expect(undeliveredRangeOf((await journal.seal(SEAL)).document)).toBeNull()
  })

  it('are sent in as many segments as their counters need', async () => {
    const journal = await journalIn(temporaryDirectory(), NOTHING_KEPT)
    const nth = (n: number) => limitAccount(INSTANCE, 'line-1', { type: 'user', value: `${n}`.padEnd(900, 'x') }, 0)
    const fit = Math.floor(SEGMENT_COUNTERS_BYTES_MAX / counterBytesMax(nth(0)))
    const many = Array.from({ length: fit + 1 }, (_, n) => nth(n))
    expect(many.length).toBeLessThan(SEGMENT_ACCOUNTS_MAX)
    await attach(journal, Object.fromEntries(many.map((account) => [account, 100n])))
    await journal.append(
      [
        entry(
          1,
          many.map((account) => ({ account, amount: 1n })),
        ),
      ],
      STAMP,
    )
    for (let backlog = 1; backlog > 0;) {
      const sealed = await journal.seal(SEAL)
      backlog = (payloadOf(sealed.document) as SegmentWire).backlog
      await journal.acknowledge(sealed.seq, null, null)
    }
    await journal.fence()
    await journal.attach(2, WHOLE)
    const found: string[] = []
    for (let isLast = false; !isLast;) {
      const sealed = await journal.seal(SEAL)
      const { counted } = undeliveredRangeOf(sealed.document) ?? {}
      if (counted === undefined) throw new Error('the counters come first')
      found.push(...counted.counters.map(({ account }) => account))
      isLast = counted.isLast
      await journal.acknowledge(sealed.seq, null, null)
    }
    expect(found.toSorted()).toEqual(many.toSorted())
    expect(undeliveredRangeOf((await journal.seal(SEAL)).document)).toMatchObject({
      entries: { bodies: [] },
      final: true,
    })
  })

  it('are not counted for an epoch that others have written in', async () => {
    const journal = await journalIn(temporaryDirectory(), NOTHING_KEPT)
    await attach(journal, { [A]: 100n })
    await journal.append([entry(1, [{ account: A, amount: 20n }])], STAMP)
    await journal.acknowledge((await journal.seal(SEAL)).seq, null, null)
    await journal.append([entry(2, [{ account: A, amount: 20n }])], STAMP)
    await journal.fence()
    await journal.attach(2, { ...WHOLE, isWhole: false })
    const undeliveredRange = undeliveredRangeOf((await journal.seal(SEAL)).document)
    expect(undeliveredRange).toMatchObject({ entries: { first: 2 }, final: false })
    expect(undeliveredRange).not.toHaveProperty('counted')
  })
})
