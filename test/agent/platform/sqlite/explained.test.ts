// What the journal keeps so that decisions can be explained: inputs beside entries, replaced rules, both within bounds.
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { expect, test } from 'vitest'
import type { Journal } from '../../../../src/agent/ledger/journal.ts'
import type { JournalLimits } from '../../../../src/agent/platform/sqlite/journal-file.ts'
import { PAGE_BYTES } from '../../../../src/agent/platform/sqlite/open-database.ts'
import { unverifiedText } from '../../../../src/protocol/signing.ts'
import { INSTANCE } from '../../sync/fake-cloud.ts'
import { IDENTITY, SEAL, STAMP, attach, journalIn, temporaryDirectory } from '../../harness.ts'

const LINE = 'line/i/a/0'

const idOf = (n: number): string => `00000000-0000-4000-8000-${String(n).padStart(12, '0')}`

async function record(journal: Journal, from: number, to: number, revision: number): Promise<void> {
  const entries = Array.from({ length: to - from + 1 }, (_, index) => {
    const n = from + index
    const about = { n, kind: 'access', correlationId: idOf(n), instanceId: INSTANCE, policyRevision: revision }
    // What an application sends along may look like an id.
    const body = JSON.stringify({ ...about, items: [{ metaData: { correlationId: idOf(n - 1) } }], postings: [] })
    return { n, body, moves: 'used' as const, postings: [], idempotencyRecord: null, inputs: `1;${n}G;` }
  })
  await journal.append(entries, STAMP)
}

async function deliver(journal: Journal): Promise<void> {
  for (let more = true; more;) {
    const { seq, document } = await journal.seal(SEAL)
    await journal.acknowledge(seq, null, null)
    const { backlog } = JSON.parse(unverifiedText(document) ?? '') as { backlog: number }
    more = backlog > 0
  }
}

async function journalWith(limits: Partial<JournalLimits> = {}): Promise<{ journal: Journal; path: string }> {
  const directory = temporaryDirectory()
  const journal = await journalIn(directory, { limits })
  await attach(journal, { [LINE]: 100n })
  await journal.savePolicy({ instanceId: INSTANCE, revision: 1, document: 'the first rules' }, null)
  return { journal, path: join(directory, 'journal.db') }
}

test('an entry is found with its inputs, and the rules of its revision, by its own correlation id only', async () => {
  const { journal } = await journalWith()
  await record(journal, 1, 5_000, 1)
  await journal.savePolicy({ instanceId: INSTANCE, revision: 2, document: 'the second rules' }, null)
  await record(journal, 5_001, 5_010, 2)
  const found = { trustedKeys: IDENTITY.trustedKeys }
  expect(await journal.find(idOf(5_005))).toMatchObject({ ...found, inputs: '1;5005G;', rules: 'the second rules' })
  expect(await journal.find(idOf(1))).toMatchObject({ ...found, inputs: '1;1G;', rules: 'the first rules' })
  expect((await journal.find(idOf(17)))?.body).toContain('"n":17,')
  expect(await journal.find(idOf(6_000))).toBeNull()
})

test('delivered entries and their inputs are deleted, except the newest, and rules once no entry refers to them', async () => {
  const { journal, path } = await journalWith({ recentEntries: 10 })
  await record(journal, 1, 10, 1)
  // Entries of two blocks.
  await journal.recent(1)
  await record(journal, 11, 20, 1)
  await journal.savePolicy({ instanceId: INSTANCE, revision: 2, document: 'the second rules' }, null)
  await deliver(journal)
  expect(await journal.find(idOf(10))).toBeNull()
  expect(await journal.find(idOf(11))).toMatchObject({ inputs: '1;11G;', rules: 'the first rules' })
  await record(journal, 21, 10_060, 2)
  await deliver(journal)
  expect(await journal.find(idOf(10_055))).toMatchObject({ rules: 'the second rules' })
  for (let n = 10_061; n < 10_075; n += 1) {
    await record(journal, n, n, 2)
    await deliver(journal)
  }
  await journal.close()
  const database = new Database(path)
  expect(database.prepare('SELECT count(*) FROM past_policy').pluck().get()).toBe(0)
  database.close()
})

test('replaced rules keep within their share of the disk, the oldest go first', async () => {
  const { journal, path } = await journalWith({ pastRulesBytesMax: 250 })
  for (let revision = 2; revision <= 9; revision += 1) {
    await record(journal, revision - 1, revision - 1, revision - 1)
    await journal.savePolicy({ instanceId: INSTANCE, revision, document: String(revision).repeat(100) }, null)
  }
  await journal.close()
  const database = new Database(path)
  expect(database.prepare('SELECT revision FROM past_policy ORDER BY id').pluck().all()).toEqual([7, 8])
  database.close()
})

test('inputs cost the bytes of their text and no more', async () => {
  const sizeOf = async (inputs: string | undefined): Promise<number> => {
    const { journal, path } = await journalWith()
    const body = JSON.stringify({ kind: 'access', correlationId: idOf(1), padding: 'x'.repeat(500), postings: [] })
    for (let n = 1; n <= 4_000; n += 400) {
      const entries = Array.from({ length: 400 }, (_, index) => {
        const entry = { n: n + index, body, moves: 'used' as const, postings: [], idempotencyRecord: null }
        return inputs === undefined ? entry : { ...entry, inputs }
      })
      await journal.append(entries, STAMP)
    }
    await journal.close()
    const database = new Database(path)
    const pages =
      database.prepare('SELECT sum(entries) FROM block').pluck().get() === 4_000
        ? database.pragma('page_count', { simple: true })
        : 0
    database.close()
    return (pages as number) * PAGE_BYTES
  }
  const without = await sizeOf(undefined)
  const grown = (await sizeOf('1;98500000G;')) - without
  expect(grown / 4_000).toBeLessThan(40)
})
