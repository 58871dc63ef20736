import { copyFileSync, existsSync, readFileSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import fc from '../support/fast-check.ts'
import { describe, expect, it, test } from 'vitest'
import { verifyLedger } from '../../src/agent/ledger/verify-ledger.ts'
import { readLedger } from '../../src/agent/platform/sqlite/read-ledger.ts'
import { ENGINE } from '../../src/core/engine.ts'
import type { Journal } from '../../src/agent/ledger/journal.ts'
import type { EntryBodyWire, Segment, SyncAnswerWire } from '../../src/protocol/edge/sync.ts'
import type { LedgerBundle } from '../../src/protocol/local/ledger-bundle.ts'
import { signDocument } from '../../src/protocol/signing.ts'
import { withEntryTable } from '../../sim/device/entry-table.ts'
import { IDENTITY, SEAL, STAMP, journalIn, payloadOf, temporaryDirectory } from '../agent/harness.ts'
import { DEVICE, INSTANCE } from '../agent/sync/fake-cloud.ts'
import { type NewSigner, newSigner } from '../support/new-signer.ts'
import { BEGIN } from '../agent/sync/fake-time.ts'
import { sizeProblem } from '../../src/cli/commands/verify.ts'
import { tallygate } from './outside.ts'

const LINE = 'line/i/a/0'

interface Verified {
  readonly whole: boolean
  readonly findings: readonly { readonly kind: string; readonly where: string }[]
  readonly checked: Record<string, number>
}

async function record(journal: Journal, n: number, amount: bigint, engine = ENGINE.version): Promise<void> {
  const body: EntryBodyWire = {
    n,
    kind: 'access',
    at: BEGIN,
    earliest: BEGIN,
    latest: null,
    instanceId: INSTANCE,
    policyRevision: 1,
    engine,
    correlationId: '5c8ec4fd-f17f-4657-bf09-74a97ddc9f8b',
    requester: { type: 'user', value: 'ada' },
    items: [],
    postings: [{ account: LINE, amount: String(amount) }],
  }
  const postings = [{ account: LINE, amount }]
  await journal.append([{ n, body: JSON.stringify(body), moves: 'used', postings, idempotencyRecord: null }], STAMP)
}

/** A segment, and the receipt and grant that the cloud signs for it. */
async function exchange(journal: Journal, key: NewSigner, granted: bigint, unlimited = false): Promise<void> {
  const sealed = await journal.seal(SEAL)
  const { entries } = payloadOf(sealed.document) as Segment
  const { epoch, seq, hash } = sealed
  const to = entries.first + entries.bodies.length - 1
  const grant = {
    term: seq,
    lifetimeMs: 1_000,
    expiresAt: BEGIN + 1_000,
    accounts: [{ account: LINE, granted: String(granted), exhausted: false, available: '0', unlimited }],
  }
  const answer: SyncAnswerWire = {
    outcome: 'MERGED',
    deviceId: DEVICE,
    epoch,
    seq,
    hash,
    receipt: { epoch, seq, hash, entries: { from: entries.first, to, head: entries.head }, retainUntil: BEGIN },
    grant,
    policies: [],
    directives: [],
    releases: [],
    sessions: [],
    nextSyncMs: 1,
    time: BEGIN,
  }
  const document = await signDocument('sync-answer', JSON.stringify(answer), key.signer)
  const accounts = [{ account: LINE, granted, exhausted: false, available: '0', unlimited }]
  await journal.acknowledge(seq, { ...grant, agedMs: 0, accounts }, null, { document, retainUntil: BEGIN })
}

/** A device with three acknowledged entries in two segments, one in flight and one that is not sealed. */
async function ledger(): Promise<{ directory: string; path: string; journal: Journal; key: NewSigner }> {
  const directory = temporaryDirectory()
  const key = await newSigner()
  const journal = await journalIn(directory)
  await journal.saveIdentity({ ...IDENTITY, trustedKeys: [JSON.stringify(key.jwk)] })
  await journal.attach(1)
  await exchange(journal, key, 100n)
  await record(journal, 1, 10n)
  await record(journal, 2, 20n)
  await exchange(journal, key, 100n)
  await record(journal, 3, 5n)
  await exchange(journal, key, 150n)
  await record(journal, 4, 1n)
  await journal.seal(SEAL)
  await record(journal, 5, 2n)
  return { directory, path: join(directory, 'journal.db'), journal, key }
}

/** The same, at rest, and altered. */
async function altered(...statements: readonly string[]): Promise<string> {
  const { path, journal } = await ledger()
  await journal.close()
  const database = new Database(path)
  database.pragma('ignore_check_constraints = ON')
  const change = (): void => statements.forEach((statement) => database.exec(statement))
  if (statements.some((statement) => statement.includes(' entry '))) withEntryTable(database, change)
  else change()
  database.close()
  return path
}

async function verify(...args: readonly string[]): Promise<Verified & { readonly code: number }> {
  const { code, out, err } = await tallygate(['verify', '--json', ...args], {
    readText: (path) => readFileSync(path, 'utf8'),
  })
  if (out === '') throw new Error(err)
  return { code, ...(JSON.parse(out) as Verified) }
}

const kinds = ({ findings }: Verified) => findings.map(({ kind, where }) => `${where}: ${kind}`)

test('the check of a ledger leaves turns to others, such as Ctrl-C, between segments and between entries', async () => {
  const { path } = await ledger()
  for (const last of [4, 4 + 5]) {
    let steps = 0
    const giveWay = () => ((steps += 1) === last ? Promise.reject(new Error('stopped')) : undefined)
    const checked = readLedger(path, (read) => verifyLedger(read, giveWay))
    await expect(checked).rejects.toThrow('stopped')
    expect(steps).toBe(last)
  }
})

test('a ledger that is whole is said to be, while the agent runs on, and is left as it is', async () => {
  const { path, journal } = await ledger()
  const before = readFileSync(path)
  expect(await verify('--db', path)).toMatchObject({
    code: 0,
    whole: true,
    findings: [],
    checked: { entries: 5, chained: 5, segments: 4, receipts: 3, accounts: 1 },
  })
  expect(readFileSync(path).equals(before)).toBe(true)
  await record(journal, 6, 1n)
  expect(await verify('--db', path)).toMatchObject({ whole: true, checked: { entries: 6 } })
  const { out } = await tallygate(['verify', '--db', path])
  expect(out).toBe(
    `The ledger in ${path} is intact: checked 6 entries (6 chained), 4 segments, 3 receipts, 1 account.\n`,
  )
  const env = { TALLYGATE_AGENT_STATE_DIRECTORY: join(path, '..') }
  expect((await tallygate(['verify'], { env })).out).toBe(out)
})

test('entries of other engine versions are chained and counted like all, and said not to be compared', async () => {
  const { path, journal } = await ledger()
  await record(journal, 6, 1n, 3)
  await record(journal, 7, 1n, 3)
  expect(await verify('--db', path)).toMatchObject({
    code: 0,
    whole: true,
    checked: { entries: 7, chained: 7 },
    engines: [
      { engine: ENGINE.version, entries: 5 },
      { engine: 3, entries: 2 },
    ],
  })
  const { code, out } = await tallygate(['verify', '--db', path])
  expect([code, out.split('\n')[1]]).toEqual([
    0,
    `2 entries were decided by engine 3, this is engine ${ENGINE.version}: the decisions are not compared.`,
  ])
  await journal.close()
  const database = new Database(path)
  withEntryTable(database, () =>
    database.exec(`UPDATE entry SET body = replace(body, '"engine":3', '"engine":1') WHERE body LIKE '%"engine":3%'`),
  )
  database.close()
  expect(await verify('--db', path)).toMatchObject({ code: 65, whole: false })
})

test('an account that was unlimited is whole before it gets a limit, with it, and when the cloud has granted what was used', async () => {
  const directory = temporaryDirectory()
  const key = await newSigner()
  const journal = await journalIn(directory)
  await journal.saveIdentity({ ...IDENTITY, trustedKeys: [JSON.stringify(key.jwk)] })
  await journal.attach(1)
  await exchange(journal, key, 10n, true)
  await record(journal, 1, 500n)
  const path = join(directory, 'journal.db')
  expect(await verify('--db', path)).toMatchObject({ code: 0, findings: [] })
  await journal.limit([LINE])
  expect(await verify('--db', path)).toMatchObject({ code: 0, findings: [] })
  await exchange(journal, key, 500n)
  expect(await verify('--db', path)).toMatchObject({ code: 0, findings: [] })
  await journal.close()
  const database = new Database(path)
  database.pragma('ignore_check_constraints = ON')
  database.exec('UPDATE account SET granted = 501')
  expect(kinds(await verify('--db', path))).toEqual([`${LINE}: GRANT`])
  database.exec('UPDATE account SET granted = 499')
  expect(kinds(await verify('--db', path))).toEqual([`${LINE}: OVERSPENT`, `${LINE}: GRANT`])
  database.close()
})

describe('a ledger that was altered', () => {
  it.each<[string, readonly string[], readonly string[]]>([
    [
      'an entry that is sealed',
      [`UPDATE entry SET body = replace(body, '"20"', '"2"') WHERE n = 2`],
      ['entry 2: ENTRY_CHAIN', `${LINE}: COUNTERS`],
    ],
    [
      'an entry that is not sealed',
      [`UPDATE entry SET body = replace(body, '"user"', '"robot"') WHERE n = 5`],
      ['entry 5: ENTRY_CHAIN'],
    ],
    ['an entry that is gone', ['DELETE FROM entry WHERE n = 5'], ['entry 5: ENTRY_MISSING', `${LINE}: COUNTERS`]],
    ['an entry that is no entry', [`UPDATE entry SET body = '[' WHERE n = 5`], ['entry 5: ENTRY_MALFORMED']],
    ['use that is written down', ['UPDATE account SET used = 36'], [`${LINE}: COUNTERS`]],
    ['a grant that the cloud did not give', ['UPDATE account SET granted = 900'], [`${LINE}: GRANT`]],
    ['no limit', ['UPDATE account SET unlimited = 1'], [`${LINE}: GRANT`]],
    ['more overdraft', ['UPDATE account SET overdraft = 7'], [`${LINE}: GRANT`]],
    ['another shortage', ['UPDATE account SET exhausted = 1'], [`${LINE}: GRANT`]],
    ['a larger allowance', ['UPDATE account SET allowance = 1000'], [`${LINE}: GRANT`]],
    ['a longer life of the grant', ['UPDATE state SET grant_lifetime_ms = 9000'], ['grant of epoch 1: GRANT']],
    ['a later end of the grant', ['UPDATE state SET grant_expires_at = 9e15'], ['grant of epoch 1: GRANT']],
    ['no grant, whose life never ends', ['UPDATE state SET grant_term = NULL'], ['grant of epoch 1: GRANT']],
    [
      'a grant without its proof',
      ['UPDATE account SET proof = NULL', 'UPDATE state SET grant_proof = NULL'],
      [`${LINE}: GRANT`],
    ],
    ['use as of the last segment', ['UPDATE account SET used = 18, sealed_used = 16'], [`${LINE}: COUNTERS`]],
    [
      'entries that the cloud is said to have',
      ['UPDATE state SET acked_entry = 4'],
      ['segment 4 of epoch 1: SEGMENT_CHAIN'],
    ],
    [
      'rules that the cloud did not sign',
      [`INSERT INTO policy (instance_id, revision, document, confirmed_at) VALUES ('${INSTANCE}', 1, 'e30.e30.AA', 0)`],
      [`policy of ${INSTANCE}: POLICY`],
    ],
    ['more spent than granted', ['UPDATE account SET returned = 150'], [`${LINE}: OVERSPENT`]],
    [
      'a segment of another content',
      [`UPDATE segment SET hash = '${'a'.repeat(64)}' WHERE seq = 2`],
      ['segment 2 of epoch 1: SEGMENT_MALFORMED', 'segment 3 of epoch 1: SEGMENT_CHAIN'],
    ],
    [
      'a receipt that the cloud did not sign',
      ["UPDATE segment_document SET answer = replace(answer, '.', '.e') WHERE id = 2"],
      ['segment 2 of epoch 1: RECEIPT'],
    ],
    [
      'the receipt of another segment',
      ['UPDATE segment_document SET answer = (SELECT answer FROM segment_document WHERE id = 3) WHERE id = 2'],
      ['segment 2 of epoch 1: RECEIPT'],
    ],
    [
      'a segment that is no document',
      [`UPDATE segment_document SET document = 'x' WHERE id = 4`],
      ['segment 4 of epoch 1: SEGMENT_MALFORMED'],
    ],
  ])('is found out by %s', async (_what, statements, expected) => {
    const result = await verify('--db', await altered(...statements))
    expect(result.code).toBe(65)
    for (const finding of expected) expect(kinds(result)).toContain(finding)
  })

  it('names the key that it cannot read', async () => {
    const { path, journal } = await ledger()
    await journal.saveIdentity({ ...IDENTITY, trustedKeys: ['{}'] })
    expect(kinds(await verify('--db', path))).toContain('the pinned keys: KEYS')
  })
})

describe('an exported ledger', () => {
  it('says the same as the database, and what was changed in it is found', async () => {
    const { directory, path } = await ledger()
    const file = join(directory, 'ledger.json')
    await verify('--db', path, '--export', file)
    expect(await verify(file)).toMatchObject({ code: 0, checked: { entries: 5, receipts: 3 } })
    const bundle = JSON.parse(readFileSync(file, 'utf8')) as LedgerBundle
    const entries = bundle.entries.map((each) => (each.n === 3 ? { ...each, body: bundle.entries[0]!.body } : each))
    writeFileSync(file, JSON.stringify({ ...bundle, entries }))
    const result = await verify(file)
    expect(result.code).toBe(65)
    expect(kinds(result)).toContain('entry 3: ENTRY_CHAIN')
  })

  it.each([
    ['SQLite format 3', 'is not JSON.'],
    ['{}', 'is not an exported ledger: bundle.format: '],
  ])('is refused with the file to use if it contains %s', async (text, problem) => {
    const file = join(temporaryDirectory(), 'ledger.json')
    writeFileSync(file, text)
    const { code, err } = await tallygate(['verify', file], { readText: (path) => readFileSync(path, 'utf8') })
    expect(code).toBe(66)
    expect(err.startsWith(`tallygate: LEDGER_UNREADABLE: ${file} ${problem}`)).toBe(true)
    expect(err).toMatch(/\. Use a file of `tallygate verify --export`\. If it is a database, name it with --db\.\n$/)
  })

  it('that is too large is refused with what to do instead', async () => {
    const file = join(temporaryDirectory(), 'ledger.json')
    writeFileSync(file, '')
    truncateSync(file, 256 * 1024 * 1024)
    expect(sizeProblem(file)).toBeNull()
    truncateSync(file, 256 * 1024 * 1024 + 1)
    const readText = () => {
      throw new Error('it is larger than 256 MiB')
    }
    const { code, err } = await tallygate(['verify', file], { readText })
    expect([code, err]).toEqual([
      66,
      `tallygate: LEDGER_UNREADABLE: ${file} is larger than 256 MiB, so tallygate verify cannot read it. To check this ledger elsewhere, make a copy of the database with tallygate backup, and name the copy with --db.\n`,
    ])
  })

  it('never replaces its database', async () => {
    const { path } = await ledger()
    const before = readFileSync(path)
    expect((await tallygate(['verify', '--db', path, '--export', path])).code).toBe(64)
    expect(readFileSync(path).equals(before)).toBe(true)
  })

  it('never makes it fail, whatever stands in it', { timeout: 60_000 }, async () => {
    const { directory, path } = await ledger()
    const file = join(directory, 'ledger.json')
    await verify('--db', path, '--export', file)
    const bundle = JSON.parse(readFileSync(file, 'utf8')) as Record<string, unknown>
    const strange = fc.oneof(
      fc.jsonValue(),
      fc.constantFrom('', '-1', 'a.b.c', '{"__proto__":1}', '9'.repeat(19), -1, 2 ** 53, 1e400),
    )
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...leavesOf(bundle)), strange, async (path, value) => {
        const text = JSON.stringify(withLeaf(bundle, path, value))
        const { code } = await tallygate(['verify', 'bundle'], { readText: () => text })
        expect([0, 65, 66]).toContain(code)
      }),
      { numRuns: 300 },
    )
  })
})

describe('a file that is no ledger', () => {
  it('is refused when it is not there, no database, of another program, or with other tables', async () => {
    const directory = temporaryDirectory()
    const code = async (path: string) => (await tallygate(['verify', '--db', path])).code
    expect(await code(join(directory, 'none.db'))).toBe(66)
    writeFileSync(join(directory, 'text.db'), 'no database at all, and long enough to be looked at '.repeat(200))
    expect(await code(join(directory, 'text.db'))).toBe(65)
    new Database(join(directory, 'other.db')).exec('CREATE TABLE a (b)').close()
    expect(await code(join(directory, 'other.db'))).toBe(65)
    const endless =
      'WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT i AS id, i AS n, i AS body FROM r'
    expect(await code(await altered('DROP TABLE block', `CREATE VIEW block AS ${endless}`))).toBe(65)
    expect((await tallygate(['verify', 'bundle', '--db', 'x'])).code).toBe(64)
    const notUtf8 = Object.assign(new TypeError('bytes'), { code: 'ERR_ENCODING_INVALID_ENCODED_DATA' })
    const readText = () => {
      throw notUtf8
    }
    const bundle = await tallygate(['verify', 'journal.db'], { readText })
    expect(bundle.code).toBe(66)
    expect(bundle.err).toContain('If it is a database, name it with --db.')
  })

  it('never makes it fail, wherever bytes were changed', { timeout: 120_000 }, async () => {
    const { directory, path, journal } = await ledger()
    await journal.close()
    const whole = readFileSync(path)
    const damaged = join(directory, 'damaged.db')
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.nat(whole.length - 1), fc.nat(255)), { minLength: 1, maxLength: 40 }),
        async (changes) => {
          const bytes = Buffer.from(whole)
          for (const [at, value] of changes) bytes[at] = value
          writeFileSync(damaged, bytes)
          const { code } = await tallygate(['verify', '--db', damaged])
          expect([0, 65]).toContain(code)
        },
      ),
      { numRuns: 80 },
    )
  })

  it('is read together with its log, also one that is cut off', async () => {
    const { directory, path } = await ledger()
    const copy = join(directory, 'copy.db')
    copyFileSync(path, copy)
    const log = readFileSync(`${path}-wal`)
    expect(existsSync(`${path}-wal`)).toBe(true)
    for (const part of [0, 0.3, 0.7, 1]) {
      writeFileSync(`${copy}-wal`, log.subarray(0, Math.floor(log.length * part)))
      const { code } = await tallygate(['verify', '--db', copy])
      expect([0, 65]).toContain(code)
    }
    expect((await tallygate(['verify', '--db', copy])).code).toBe(0)
  })
})

type Path = readonly (string | number)[]

function leavesOf(value: unknown, path: Path = []): Path[] {
  if (typeof value !== 'object' || value === null) return [path]
  return [path, ...Object.entries(value).flatMap(([key, each]) => leavesOf(each, [...path, key]))].filter(
    ({ length }) => length > 0,
  )
}

function withLeaf(value: unknown, [key, ...rest]: Path, leaf: unknown): unknown {
  if (key === undefined) return leaf
  if (Array.isArray(value)) {
    const all: readonly unknown[] = value
    return all.map((each, index) => (index === Number(key) ? withLeaf(each, rest, leaf) : each))
  }
  const record = value as Record<string, unknown>
  return { ...record, [key]: withLeaf(record[key], rest, leaf) }
}
