// What the journal promises: order, exact counters, segments that never change, and a restart that continues exactly.
import { expect, it } from 'vitest'
import type { Journal, SealRequest } from '../../../../src/agent/ledger/journal.ts'
import type { SegmentWire } from '../../../../src/protocol/edge/sync.ts'
import { CHAIN_START, entryHash, sha256 } from '../../../../src/protocol/signing.ts'
import { BEGIN } from '../../sync/fake-time.ts'
import { INSTANCE } from '../../sync/fake-cloud.ts'
import {
  attach,
  entry,
  grant,
  IDENTITY,
  journalIn,
  OTHER_KEY,
  payloadOf,
  SEAL,
  STAMP,
  temporaryDirectory,
} from '../../harness.ts'

const A = 'line/i/a/0'
const B = 'action/i/a/b'

function newJournals() {
  const directory = temporaryDirectory()
  return {
    open: () => journalIn(directory),
    /** The journal again, as the next process finds it. */
    reopen: async (journal: Journal) => {
      await journal.close()
      return journalIn(directory)
    },
  }
}

const segmentOf = (document: string): SegmentWire => payloadOf(document) as SegmentWire

it('begins with nothing', async () => {
  const journal = await journalIn(temporaryDirectory())
  expect(await journal.read()).toMatchObject({ identity: null, epoch: 0, fenced: false, lastEntry: 0 })
})

it('continues exactly where the process before it ended', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 100n, [B]: 50n })
  await journal.append(
    [
      entry(1, [
        { account: A, amount: 10n },
        { account: B, amount: 10n },
      ]),
      entry(2, [{ account: A, amount: 7n }]),
    ],
    STAMP,
  )
  await journal.append([entry(3, [{ account: A, amount: 4n }], { moves: 'refunded' })], STAMP)
  const before = await journal.read()
  journal = await journals.reopen(journal)
  const after = await journal.read()
  expect(after).toEqual(before)
  expect(after.accounts.get(A)).toMatchObject({ granted: 100n, used: 17n, refunded: 4n, returned: 0n })
  expect(after.accounts.get(B)).toMatchObject({ granted: 50n, used: 10n })
  expect(after).toMatchObject({ lastEntry: 3, identity: IDENTITY, clock: STAMP.clock, grant: { term: 1 } })
})

it('answers every call before its close, and refuses each later one', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, { [A]: 100n })
  const sealed = journal.seal(SEAL)
  const before = journal.append([entry(1, [{ account: A, amount: 10n }])], STAMP)
  const closed = journal.close()
  const after = [
    journal.append([entry(2, [{ account: A, amount: 10n }])], STAMP),
    journal.recent(1),
    journal.find('none'),
  ]
  expect(await Promise.allSettled(after)).toEqual(
    after.map(() => ({ status: 'rejected', reason: expect.objectContaining({ code: 'NOT_RECORDED' }) as unknown })),
  )
  await Promise.all([sealed, before, closed])
  await expect(journal.seal(SEAL)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
})

it('seals entries, counters and chain as of the last entry, each segment upon the one before', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, { [A]: 100n })
  const entries = [entry(1, [{ account: A, amount: 10n }]), entry(2, [])]
  await journal.append(entries, STAMP)
  const first = await journal.seal(SEAL)
  const head = entries.reduce((chain, { body }) => entryHash(chain, body), CHAIN_START)
  const payload = segmentOf(first.document)
  expect(payload).toMatchObject({
    deviceId: IDENTITY.deviceId,
    epoch: 1,
    seq: 2,
    counters: [{ account: A, used: '10', refunded: '0', returned: '0' }],
    entries: { first: 1, previousHash: CHAIN_START, head, bodies: entries.map(({ body }) => body) },
    backlog: 0,
    final: false,
  })
  expect(first.hash).toBe(sha256(JSON.stringify(payload)))
  await journal.acknowledge(2, null, null)

  const third = entry(3, [{ account: A, amount: 1n }])
  await journal.append([third], STAMP)
  const second = segmentOf((await journal.seal(SEAL)).document)
  expect(second).toMatchObject({
    seq: 3,
    previousHash: first.hash,
    counters: [{ account: A, used: '11' }],
    entries: { first: 3, previousHash: head, head: entryHash(head, third.body) },
  })
})

it('returns the unacknowledged segment byte for byte after a restart', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 100n })
  await journal.append([entry(1, [{ account: A, amount: 10n }])], STAMP)
  const { isMoreToFollow: _, ...sealed } = await journal.seal(SEAL)
  journal = await journals.reopen(journal)
  expect((await journal.read()).unacknowledged).toMatchObject(sealed)
  await journal.acknowledge(sealed.seq, null, null)
  expect((await journal.read()).unacknowledged).toBeNull()
  expect(await journal.sealed(sealed.seq)).toMatchObject(sealed)
})

it('raises the returned counter in the commit of the segment that reports it', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 100n })
  const { document } = await journal.seal({ ...SEAL, returns: [{ account: A, amount: 60n }] })
  expect(segmentOf(document).counters).toEqual([{ account: A, used: '0', refunded: '0', returned: '60' }])
  journal = await journals.reopen(journal)
  expect((await journal.read()).accounts.get(A)).toMatchObject({ granted: 100n, returned: 60n })
})

it('stores grants as cumulative figures, and the confirmation of a policy', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, { [A]: 100n })
  await journal.savePolicy(
    { instanceId: INSTANCE, revision: 4, document: 'signed' },
    {
      trustedKeys: [OTHER_KEY],
    },
  )
  await grant(journal, 2, { [A]: 70n, [B]: 5n })
  const { seq } = await journal.seal(SEAL)
  await journal.acknowledge(seq, null, { time: BEGIN + 5, policies: [{ instanceId: INSTANCE, revision: 4 }] })
  const { accounts, grant: held, policies, identity } = await journal.read()
  expect(accounts.get(A)?.granted).toBe(100n)
  expect(accounts.get(B)?.granted).toBe(5n)
  expect(held?.term).toBe(2)
  expect(policies).toEqual([{ instanceId: INSTANCE, revision: 4, document: 'signed', confirmedAt: BEGIN + 5 }])
  expect(identity?.trustedKeys).toEqual([OTHER_KEY])
})

it('keeps the last confirmation of a policy, also if the clock of the cloud was ahead before', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, { [A]: 100n })
  await journal.savePolicy({ instanceId: INSTANCE, revision: 4, document: 'signed' }, null)
  for (const time of [BEGIN + 500, BEGIN]) {
    const { seq } = await journal.seal(SEAL)
    await journal.acknowledge(seq, null, { time, policies: [{ instanceId: INSTANCE, revision: 4 }] })
    expect((await journal.read()).policies).toMatchObject([{ confirmedAt: time }])
  }
})

it('keeps the newest reported overdraft of a grant', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 100n })
  const terms = { lifetimeMs: 1_000, expiresAt: BEGIN + 1_000, agedMs: 0 }
  const told = { account: A, granted: 150n, exhausted: false, unlimited: false }
  let sealed = await journal.seal(SEAL)
  await journal.acknowledge(sealed.seq, { ...terms, term: 2, accounts: [{ ...told, overdraft: 40n }] }, null)
  journal = await journals.reopen(journal)
  expect((await journal.read()).accounts.get(A)).toMatchObject({ granted: 150n, overdraft: 40n })
  sealed = await journal.seal(SEAL)
  await journal.acknowledge(sealed.seq, { ...terms, term: 3, accounts: [told] }, null)
  journal = await journals.reopen(journal)
  expect((await journal.read()).accounts.get(A)).not.toHaveProperty('overdraft')
})

it('keeps the use above the grants of an account that gets a limit, until a grant covers it', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 0n })
  const unlimited = { account: A, granted: 0n, exhausted: false, unlimited: true }
  const terms = { lifetimeMs: 1_000, expiresAt: BEGIN + 1_000, agedMs: 0 }
  let sealed = await journal.seal(SEAL)
  await journal.acknowledge(sealed.seq, { ...terms, term: 2, accounts: [unlimited] }, null)
  await journal.append([entry(1, [{ account: A, amount: 70n }])], STAMP)
  sealed = await journal.seal(SEAL)
  await journal.append([entry(2, [{ account: A, amount: 5n }])], STAMP)
  await journal.limit([A])
  const limited = { ...unlimited, granted: 70n, unlimited: false }
  await journal.acknowledge(sealed.seq, { ...terms, term: 3, accounts: [limited] }, null)
  journal = await journals.reopen(journal)
  const state = { granted: 70n, used: 75n, unlimited: false }
  expect((await journal.read()).accounts.get(A)).toMatchObject({ ...state, allowance: 75n })
  sealed = await journal.seal(SEAL)
  await journal.acknowledge(sealed.seq, { ...terms, term: 4, accounts: [{ ...limited, granted: 75n }] }, null)
  journal = await journals.reopen(journal)
  expect((await journal.read()).accounts.get(A)).toMatchObject({ ...state, granted: 75n })
  expect((await journal.read()).accounts.get(A)).not.toHaveProperty('allowance')
})

it('confirms that no earlier decisions follow a grant only with the last entry before it', async () => {
  const journals = newJournals()
  const journal = await journals.open()
  await attach(journal, { [A]: 100n })
  const amount = [{ account: A, amount: 1n }]
  await journal.append([entry(1, amount)], STAMP)
  const said = async (grant: SealRequest['grant']) => {
    const sealed = await journal.seal({ ...SEAL, grant })
    await journal.acknowledge(sealed.seq, null, null)
    return segmentOf(sealed.document).grantTerm
  }
  expect(await said(null)).toBe(0)
  expect(await said({ term: 7, lastEntry: 2 })).toBe(0)
  await journal.append([entry(2, amount), entry(3, amount)], STAMP)
  expect(await said({ term: 7, lastEntry: 2 })).toBe(7)
})

it('keeps undelivered entries as the undelivered range of their epoch, until they are acknowledged', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 100n })
  const bodies = [1, 2, 3, 4].map((n) => entry(n, [{ account: A, amount: 1n }]))
  const heads = bodies.reduce<string[]>(
    (chain, { body }) => [...chain, entryHash(chain.at(-1) ?? '', body)],
    [CHAIN_START],
  )
  await journal.append(bodies.slice(0, 1), STAMP)
  await journal.acknowledge((await journal.seal(SEAL)).seq, null, null)
  await journal.append(bodies.slice(1, 3), STAMP)
  await journal.seal(SEAL)
  await journal.append(bodies.slice(3), STAMP)
  await journal.fence()
  // Sealed or not: what is not acknowledged is owed.
  await journal.attach(2)
  journal = await journals.reopen(journal)
  expect(await journal.read()).toMatchObject({ epoch: 2, undeliveredRanges: 3, lastEntry: 0, unacknowledged: null })
  const undeliveredRange = {
    epoch: 1,
    entries: { first: 2, previousHash: heads[1], head: heads[4], bodies: bodies.slice(1).map(({ body }) => body) },
    final: false,
  }
  const none = { first: 1, previousHash: CHAIN_START, head: CHAIN_START, bodies: [] }
  expect(segmentOf((await journal.seal(SEAL)).document)).toMatchObject({
    undeliveredRange,
    entries: none,
    seq: 1,
    backlog: 0,
  })
  // Sent and not acknowledged: another epoch owes all of it again, besides what this one has recorded itself.
  await journal.fence()
  await journal.attach(3)
  await grant(journal, 1, { [A]: 10n })
  expect((await journal.read()).undeliveredRanges).toBe(0)
  await journal.append([entry(1, [{ account: A, amount: 1n }])], STAMP)
  await journal.seal(SEAL)
  await journal.attach(4)
  journal = await journals.reopen(journal)
  expect((await journal.read()).undeliveredRanges).toBe(1)
  const last = await journal.seal({ ...SEAL, final: true })
  expect(segmentOf(last.document)).toMatchObject({ undeliveredRange: { epoch: 3, final: false }, final: true })
})

it('says with the end of an epoch that nothing is missing, also where no entries are left, until it is acknowledged', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 100n })
  const bodies = [1, 2].map((n) => entry(n, [{ account: A, amount: 1n }]))
  await journal.append(bodies, STAMP)
  await journal.acknowledge((await journal.seal(SEAL)).seq, null, null)
  await journal.fence()
  await journal.attach(2, { isWhole: true, cloudEnd: null })
  journal = await journals.reopen(journal)
  expect(await journal.read()).toMatchObject({ epoch: 2, undeliveredRanges: 0 })
  const head = bodies.reduce((before, { body }) => entryHash(before, body), CHAIN_START)
  const undeliveredRange = { epoch: 1, entries: { first: 3, previousHash: head, head, bodies: [] }, final: true }
  expect(segmentOf((await journal.seal(SEAL)).document)).toMatchObject({ undeliveredRange })
  await journal.fence()
  await journal.attach(3, { isWhole: true, cloudEnd: null })
  journal = await journals.reopen(journal)
  // That of the second epoch is still to follow: what brings the first is not the last segment.
  const first = await journal.seal({ ...SEAL, final: true })
  expect(segmentOf(first.document)).toMatchObject({ undeliveredRange, final: false })
  await journal.acknowledge(first.seq, null, null)
  const second = await journal.seal({ ...SEAL, final: true })
  expect(segmentOf(second.document)).toMatchObject({ undeliveredRange: { epoch: 2, final: true }, final: true })
  await journal.acknowledge(second.seq, null, null)
  expect(segmentOf((await journal.seal(SEAL)).document)).toMatchObject({ undeliveredRange: null })
})

it('delivers kept entries again that the cloud has lost, from the end of its chain', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 100n })
  const bodies = [1, 2, 3].map((n) => entry(n, [{ account: A, amount: 1n }]))
  await journal.append(bodies, STAMP)
  await journal.acknowledge((await journal.seal(SEAL)).seq, null, null)
  await journal.fence()
  const heads = bodies.reduce<string[]>(
    (chain, { body }) => [...chain, entryHash(chain.at(-1) ?? '', body)],
    [CHAIN_START],
  )
  await journal.attach(2, { isWhole: true, cloudEnd: { entry: 1, head: heads[1] ?? '' } })
  journal = await journals.reopen(journal)
  const sealed = segmentOf((await journal.seal(SEAL)).document)
  expect(sealed).toMatchObject({
    undeliveredRange: { entries: { first: 2, previousHash: heads[1], head: heads[3] }, final: true },
  })
  expect(sealed.undeliveredRange).not.toHaveProperty('counted')
})

it('keeps the receipt of a segment, and the segment for as long as the receipt says', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 100n })
  const { isMoreToFollow: _, ...sealed } = await journal.seal(SEAL)
  await journal.acknowledge(sealed.seq, null, null, { document: 'the answer', retainUntil: BEGIN })
  journal = await journals.reopen(journal)
  expect(await journal.sealed(sealed.seq)).toEqual({ ...sealed, answer: 'the answer' })
  const { isMoreToFollow: _more, ...next } = await journal.seal(SEAL)
  expect(await journal.sealed(next.seq)).toEqual({ ...next, answer: null })
})

it('keeps the acknowledged entries of earlier epochs, in order, and nothing else of them', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 100n })
  const acknowledged = []
  for (const epoch of [2, 4, 5]) {
    for (let n = 0; n < 2; n += 1) {
      const { isMoreToFollow: _, ...sealed } = await journal.seal(SEAL)
      await journal.acknowledge(sealed.seq, null, null, { document: `answer ${sealed.seq}`, retainUntil: BEGIN })
      acknowledged.push({ ...sealed, answer: `answer ${sealed.seq}` })
    }
    // Sent, but given up with its epoch: its entries go up as an undelivered range.
    if (epoch === 4) await journal.seal(SEAL)
    await journal.attach(epoch)
  }
  const own = await journal.seal(SEAL)
  await journal.acknowledge(own.seq, null, null)
  journal = await journals.reopen(journal)
  const found = []
  let next = await journal.sealedEarlier({ epoch: 0, seq: 0 })
  for (; next !== null; next = await journal.sealedEarlier(next)) found.push(next)
  // The first one brought the grant.
  expect(found.slice(1)).toMatchObject(acknowledged)
  expect(await journal.sealedEarlier({ epoch: 1, seq: Number.MAX_SAFE_INTEGER })).toMatchObject({
    ...acknowledged[2],
  })
})

it('begins a new epoch with nothing but its number', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 100n })
  await journal.append([entry(1, [{ account: A, amount: 10n }])], STAMP)
  await journal.fence()
  expect((await journal.read()).fenced).toBe(true)
  const { final, seq } = await journal.seal({ ...SEAL, final: true })
  expect(final).toBe(true)
  await journal.acknowledge(seq, null, null)
  await journal.attach(5)
  journal = await journals.reopen(journal)
  expect(await journal.read()).toMatchObject({
    epoch: 5,
    highestEpoch: 5,
    fenced: false,
    lastEntry: 0,
    lastSealedEntry: 0,
    lastSeq: 0,
    grant: null,
    accounts: new Map(),
    unacknowledged: null,
  })
  expect(segmentOf((await journal.seal(SEAL)).document)).toMatchObject({
    epoch: 5,
    seq: 1,
    previousHash: CHAIN_START,
    entries: { first: 1, previousHash: CHAIN_START, bodies: [] },
  })
})

it('keeps a session with the entry that changed it, and reports its state to the cloud once', async () => {
  const journals = newJournals()
  let journal = await journals.open()
  await attach(journal, { [A]: 100n })
  const session = (since: number, id = 's') => ({
    id,
    ended: false,
    since,
    document: `{"since":${since}}`,
    snapshot: `{"id":"${id}","since":${since}}`,
  })
  await journal.append([entry(1, [], { session: session(1) }), entry(2, [], { session: session(2) })], STAMP)
  journal = await journals.reopen(journal)
  expect((await journal.read()).sessions).toEqual([session(2)])
  const told = async (): Promise<unknown> => {
    const { seq, document } = await journal.seal(SEAL)
    await journal.acknowledge(seq, null, null)
    return segmentOf(document).sessions
  }
  expect(await told()).toEqual([{ id: 's', since: 2 }])
  expect(await told()).toEqual([])
  await journal.append([entry(3, [], { session: session(3) })], STAMP)
  expect(await told()).toEqual([{ id: 's', since: 3 }])
  await journal.attach(2)
  expect((await journal.read()).sessions).toEqual([session(3)])
  expect(await told()).toEqual([{ id: 's', since: 3 }])
})

it('starts with the live sessions and the newest that have ended, and reports all of them', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, { [A]: 100n })
  const ids = Array.from({ length: 1_003 }, (_, index) => `s${String(index).padStart(4, '0')}`)
  const entries = ids.map((id, index) => {
    const session = { id, ended: index > 0, since: index, document: '{}', snapshot: JSON.stringify({ id }) }
    return entry(index + 1, [], { session })
  })
  await journal.append(entries, STAMP)
  expect((await journal.read()).sessions.map(({ id }) => id)).toEqual([ids[0], ...ids.slice(-1_000)])
  const reported: string[] = []
  for (let segments = 0; segments < 2; segments += 1) {
    const { seq, document } = await journal.seal(SEAL)
    await journal.acknowledge(seq, null, null)
    reported.push(...(segmentOf(document).sessions ?? []).map(({ id }) => id))
  }
  expect(reported.toSorted()).toEqual(ids)
})

it('keeps no session whose entry it did not take', async () => {
  const journal = await journalIn(temporaryDirectory())
  await attach(journal, { [A]: 100n })
  const session = { id: 's', ended: false, since: 1, document: '{}', snapshot: '{}' }
  await expect(journal.append([entry(3, [], { session })], STAMP)).rejects.toThrow()
  expect((await journal.read()).sessions).toEqual([])
})
