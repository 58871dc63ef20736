// Commits are in slots until they are folded: whatever happens in between, nothing is lost, and few pages are written.
import { randomUUID } from 'node:crypto'
import { copyFileSync, readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { describe, expect, it } from 'vitest'
import type { PendingEntry } from '../../../../src/agent/ledger/journal.ts'
import { BLOCK_ENTRIES } from '../../../../src/agent/platform/sqlite/entry-blocks.ts'
import { findInLedger, readLedger } from '../../../../src/agent/platform/sqlite/read-ledger.ts'
import type { SegmentWire } from '../../../../src/protocol/edge/sync.ts'
import { SEAL, STAMP, attach, entry, journalIn, payloadOf, temporaryDirectory } from '../../harness.ts'

const A = 'line/i/a/0'
const B = 'line/i/b/0'

async function device(changes: Parameters<typeof journalIn>[1] = {}) {
  const directory = temporaryDirectory()
  const journal = await journalIn(directory, changes)
  await attach(journal, { [A]: 1_000_000n, [B]: 1_000n })
  return { directory, journal, path: join(directory, 'journal.db') }
}

/** The files as a power cut leaves them. */
function cut(directory: string): string {
  const after = temporaryDirectory()
  for (const name of readdirSync(directory)) copyFileSync(join(directory, name), join(after, name))
  return after
}

const charge = (n: number, amount = 3n, more: Partial<PendingEntry> = {}) => entry(n, [{ account: A, amount }], more)
const session = { id: 's', ended: false, since: 5, document: '{"a":1}', snapshot: '{"id":"s"}' }
const answer = (name: string, n: number) => ({
  idempotencyRecord: { session: name, n, requestHash: 'h', answer: `{"n":${n}}`, policyRevision: 1, status: 402 },
})

/** As the agent writes it. */
function burn(n: number): PendingEntry {
  const body = JSON.stringify({ n, kind: 'burn', postings: [{ account: B, amount: '40' }] })
  return { n, body, moves: 'burned', postings: [{ account: B, amount: 40n }], idempotencyRecord: null }
}

describe('pending commits', () => {
  it('are all there after a power cut, with answers, sessions, reservations, allowances and burned tokens', async () => {
    const { directory, journal } = await device()
    await journal.append([charge(1, 3n, answer('x', 1))], STAMP)
    await journal.append([charge(2, 4n, { ...answer('x', 2), inputs: '1;2G;', session }), burn(3)], STAMP)
    await journal.append([entry(4, [{ account: A, amount: 2n }], { moves: 'refunded' })], STAMP)
    const over = [{ account: B, amount: 990n }]
    await journal.append([entry(5, over, { allowances: new Map([[B, 50n]]) })], STAMP)
    await journal.appendWriteBehind([charge(6)], [{ account: A, usedUpTo: 900n }], STAMP, false)
    const after = await journalIn(cut(directory))
    const before = await journal.read()
    expect(await after.read()).toEqual(before)
    expect(before.accounts.get(A)).toMatchObject({ used: 10n, refunded: 2n })
    expect(before.accounts.get(B)).toMatchObject({ used: 1_030n, allowance: 50n })
    expect(before.burned.get(B)).toBe(40n)
    expect(before.openReservations.get(A)).toBe(900n)
    expect(before.idempotencyCache).toMatchObject([{ n: 2, status: 402 }])
    expect(before.sessions).toEqual([session])
    expect(await after.recent(10)).toEqual(await journal.recent(10))
  })

  it('are all there after a power cut at any moment, however many slots and folds they take', async () => {
    const { directory, journal } = await device()
    let n = 0
    for (const size of [1, 5, 60, 150, 191, 192, 500, 1, 30]) {
      for (let round = 0; round < 4; round += 1) {
        const entries = Array.from({ length: size }, () => charge((n += 1), 1n, { inputs: randomUUID() }))
        await journal.append(entries, STAMP)
      }
      const after = await journalIn(cut(directory))
      const { lastEntry, accounts, entryHead } = await after.read()
      expect(lastEntry).toBe(n)
      expect(accounts.get(A)?.used).toBe(BigInt(n))
      const { bodies, head } = (payloadOf((await after.seal(SEAL)).document) as SegmentWire).entries
      expect(JSON.parse(bodies[0]!)).toMatchObject({ n: 1 })
      if (n <= bodies.length) expect(head).toBe(entryHead)
      await after.close()
    }
  })

  it('never overspend together, although each of them could be paid alone', async () => {
    const { journal } = await device()
    await journal.append([entry(1, [{ account: B, amount: 600n }])], STAMP)
    await expect(journal.append([entry(2, [{ account: B, amount: 600n }])], STAMP)).rejects.toThrow('overspent')
  })

  it('leave room to no reservation beyond the grant', async () => {
    const { journal } = await device()
    await journal.append([entry(1, [{ account: B, amount: 600n }])], STAMP)
    const reserving = journal.appendWriteBehind([charge(2)], [{ account: B, usedUpTo: 1_001n }], STAMP, false)
    await expect(reserving).rejects.toThrow('overspent')
  })

  it('are read by a command while the agent runs', async () => {
    const { journal, path } = await device()
    const id = randomUUID()
    const body = JSON.stringify({ n: 1, kind: 'access', correlationId: id, postings: [] })
    await journal.append([{ n: 1, body, moves: 'used', postings: [], idempotencyRecord: null, inputs: 'x' }], STAMP)
    await journal.append([charge(2)], STAMP)
    expect(await readLedger(path, async ({ state }) => state)).toMatchObject({ lastEntry: 2 })
    expect(await findInLedger(path, id)).toMatchObject({ body, inputs: 'x' })
  })
})

describe('slots', () => {
  async function pendingOnly(): Promise<string> {
    const { directory, journal } = await device()
    for (let n = 1; n <= 10; n += 1) await journal.append([charge(n)], STAMP)
    const after = cut(directory)
    // Into the database, because the damage is to be there.
    new Database(join(after, 'journal.db')).close()
    return after
  }

  const change = (directory: string, sql: string): void => {
    const database = new Database(join(directory, 'journal.db'))
    expect(database.prepare(sql).run().changes).toBeGreaterThan(0)
    database.close()
  }

  it('that are damaged make the ledger damaged, and it delivers the entries before them', async () => {
    const directory = await pendingOnly()
    change(directory, "UPDATE slot SET data = CAST(replace(data, 'access', 'acCess') AS BLOB) WHERE n = 6")
    const journal = await journalIn(directory)
    const { salvages, undeliveredRanges } = await journal.read()
    expect(salvages).toMatchObject([{ salvagedEntries: 6, lostEntries: null }])
    expect(undeliveredRanges).toBe(6)
  })

  it.each([
    ['with a gap', 'UPDATE slot SET data = zeroblob(984) WHERE n = 3'],
    ['of another state', 'UPDATE state SET slot_generation = slot_generation - 1'],
  ])('%s make a damaged ledger', async (_what, sql) => {
    const directory = await pendingOnly()
    change(directory, sql)
    const { salvages } = await (await journalIn(directory)).read()
    expect(salvages).toMatchObject([{ lostEntries: null }])
  })
})

describe('a block', () => {
  it('that is damaged costs its own entries, and the ledger says how many', async () => {
    const { directory, journal, path } = await device()
    const entries = (from: number) => Array.from({ length: BLOCK_ENTRIES }, (_, index) => charge(from + index))
    await journal.append(entries(1), STAMP)
    await journal.seal(SEAL)
    await journal.append(entries(BLOCK_ENTRIES + 1), STAMP)
    await journal.close()
    const database = new Database(path)
    const last = 'SELECT max(first_id) FROM block'
    database.exec(`UPDATE block SET data = CAST(substr(data, 1, 40) AS BLOB) WHERE first_id = (${last})`)
    database.close()
    const { salvages } = await (await journalIn(directory)).read()
    expect(salvages).toMatchObject([{ salvagedEntries: BLOCK_ENTRIES, lostEntries: BLOCK_ENTRIES }])
  })

  it('takes less than 80 bytes for each entry as the agent writes them', async () => {
    const { journal, path } = await device()
    const ids = Array.from({ length: 4 }, () => randomUUID())
    const before = statSync(path).size
    for (let n = 1; n <= 4_000; n += 40) {
      const entries = Array.from({ length: 40 }, (_, index) => {
        const plain = charge(n + index)
        const [instanceId, lineItemId, , condition] = ids
        const item = { item: 'vision-inspection', version: '2.1', count: 1, total: '1500000', condition }
        const about = { instanceId, policyRevision: 1, engine: 1, correlationId: randomUUID(), at: 17e11 + n * 97 }
        const parts = [{ lineItemId, periodIndex: 0, amount: '1500000' }]
        const body = JSON.stringify({ ...(JSON.parse(plain.body) as object), ...about, items: [{ ...item, parts }] })
        return { ...plain, body, inputs: '1;98500000G;' }
      })
      await journal.append(entries, STAMP)
    }
    await journal.close()
    expect((statSync(path).size - before) / 4_000).toBeLessThan(80)
  })
})

it('a commit of one entry writes one page', async () => {
  const { directory, journal } = await device()
  await journal.append([charge(1)], STAMP)
  const size = () => statSync(join(directory, 'journal.db-wal')).size
  const before = size()
  for (let n = 2; n <= 11; n += 1) await journal.append([charge(n, 3n, { inputs: 'x'.repeat(400) })], STAMP)
  expect(size() - before).toBe(10 * (1024 + 24))
})
