// What the SQLite journal promises beyond the contract: what it does when processes are killed, disks are full, files are
// strange, and states are shared.
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import Database from 'better-sqlite3'
import { describe, expect, it } from 'vitest'
import {
  PAGE_BYTES,
  hasSchema,
  migrations,
  openDatabase,
  refusalOf,
} from '../../../../src/agent/platform/sqlite/open-database.ts'
import type { Posting } from '../../../../src/core/accounts/account.ts'
import type { Journal } from '../../../../src/agent/ledger/journal.ts'
import { CHAIN_START, entryHash } from '../../../../src/protocol/signing.ts'
import type { Segment } from '../../../../src/protocol/edge/sync.ts'
import {
  attach,
  entry,
  grant,
  grantedAccount,
  journalIn,
  payloadOf,
  SEAL,
  STAMP,
  temporaryDirectory,
} from '../../harness.ts'
import { readOnlyView } from '../../../support/mounts.ts'
import { INSTANCE } from '../../sync/fake-cloud.ts'
import { BEGIN } from '../../sync/fake-time.ts'

const A = 'line/i/a/0'
const FULL = { code: 'NOT_RECORDED' }

describe('a process that is killed', () => {
  it('has lost nothing that it said was durable, and recorded nothing that it had not begun', async () => {
    const directory = temporaryDirectory()
    const prepared = await journalIn(directory)
    await attach(prepared, { [A]: 10n ** 12n })
    await prepared.close()

    let before = 0
    for (const commits of [1, 40, 90, 25, 60]) {
      const child = spawn(process.execPath, [new URL('./committing-process.ts', import.meta.url).pathname, directory])
      const killed = once(child, 'close')
      let told = 0
      let seen = 0
      for await (const line of createInterface({ input: child.stdout })) {
        told = Number(line)
        seen += 1
        if (seen === commits) child.kill('SIGKILL')
      }
      await killed
      expect(seen).toBeGreaterThanOrEqual(commits)

      const journal = await journalIn(directory)
      const { lastEntry, accounts, idempotencyCache } = await journal.read()
      expect(lastEntry).toBeGreaterThanOrEqual(told)
      expect(lastEntry).toBeLessThanOrEqual(told + 50)
      expect(told).toBeGreaterThan(before)
      expect(accounts.get(A)?.used).toBe(BigInt(lastEntry))
      expect(Math.max(...idempotencyCache.map(({ n }) => n))).toBe(lastEntry)
      await journal.close()
      before = lastEntry
    }

    // The chain over everything that was ever recorded, worked out again from what the segments hold.
    const journal = await journalIn(directory)
    let head = CHAIN_START
    for (let sealed = 0; sealed < before;) {
      const { document, seq } = await journal.seal(SEAL)
      const { entries } = payloadOf(document) as Segment
      for (const [index, body] of entries.bodies.entries()) {
        expect(JSON.parse(body)).toMatchObject({ n: entries.first + index })
        head = entryHash(head, body)
      }
      expect(entries.head).toBe(head)
      sealed += entries.bodies.length
      await journal.acknowledge(seq, null, null)
    }
  })

  it('leaves the log to the next one if the flush of a checkpoint failed, and ends by itself', async () => {
    const directory = temporaryDirectory()
    const prepared = await journalIn(directory)
    await attach(prepared, { [A]: 1_000_000_000n })
    await prepared.close()
    const program = new URL('./committing-process.ts', import.meta.url).pathname
    const child = spawn(process.execPath, [program, directory, 'FAILING_CHECKPOINT'])
    const ended = once(child, 'close')
    let told = 0
    for await (const line of createInterface({ input: child.stdout })) told = Number(line)
    expect((await ended)[0]).toBe(0)
    expect(told).toBeGreaterThan(0)
    // SQLite deletes it when it closes the database, whose pages may not be on the disk.
    expect(statSync(join(directory, 'journal.db-wal')).size).toBeGreaterThan(PAGE_BYTES)
    expect((await (await journalIn(directory)).read()).lastEntry).toBeGreaterThanOrEqual(told)
  })
})

describe('the database file', () => {
  it('is flushed with every commit also when it is opened again', () => {
    const path = join(temporaryDirectory(), 'journal.db')
    for (let open = 0; open < 3; open += 1) {
      const database = openDatabase(path)
      expect(database.pragma('synchronous', { simple: true })).toBe(2n)
      expect(database.pragma('journal_mode', { simple: true })).toBe('wal')
      expect(database.pragma('page_size', { simple: true })).toBe(BigInt(PAGE_BYTES))
      database.exec('UPDATE state SET grant_aged_ms = 1')
      expect(existsSync(`${path}-shm`)).toBe(false)
      database.close()
    }
  })

  it('begins a new log when it is opened: a killed process may not have flushed the old one', () => {
    const [path, left] = ['a.db', 'b.db'].map((name) => join(temporaryDirectory(), name)) as [string, string]
    const database = openDatabase(path)
    database.exec('UPDATE state SET grant_aged_ms = 7')
    for (const suffix of ['', '-wal']) copyFileSync(`${path}${suffix}`, `${left}${suffix}`)
    database.close()
    expect(statSync(`${left}-wal`).size).toBeGreaterThan(0)
    const opened = openDatabase(left)
    expect(statSync(`${left}-wal`).size).toBe(0)
    expect(opened.prepare('SELECT grant_aged_ms FROM state').pluck().get()).toBe(7n)
    opened.close()
  })

  it('and its log are readable by their owner only', async () => {
    const directory = join(temporaryDirectory(), 'state')
    const journal = await journalIn(directory)
    await attach(journal, {})
    for (const name of ['journal.db', 'journal.db-wal'])
      expect(statSync(join(directory, name)).mode & 0o777).toBe(0o600)
    expect(statSync(directory).mode & 0o777).toBe(0o700)
  })

  it('of a newer version is refused and left unchanged', async () => {
    const path = join(temporaryDirectory(), 'journal.db')
    openDatabase(path).close()
    const newer = new Database(path)
    newer.exec('CREATE TABLE newer (a)')
    newer.pragma('user_version = 99')
    newer.close()
    const before = readFileSync(path)
    expect(() => openDatabase(path)).toThrow(expect.objectContaining({ code: 'DATABASE_NEWER' }))
    expect(readFileSync(path).equals(before)).toBe(true)
  })

  it('has another schema after its last migration: otherwise the version before would take it for damaged', () => {
    const database = openDatabase(join(temporaryDirectory(), 'journal.db'))
    expect(hasSchema(database, migrations().length - 1)).toBe(false)
    database.close()
  })

  it('of another program, or that is no database, is refused and left unchanged', async () => {
    const directory = temporaryDirectory()
    const foreign = join(directory, 'foreign.db')
    const database = new Database(foreign)
    database.exec('CREATE TABLE theirs (a)')
    database.close()
    const text = join(directory, 'text.db')
    writeFileSync(text, 'this is a text, and not a short one at that. '.repeat(200))
    for (const path of [foreign, text]) {
      const before = readFileSync(path)
      expect(() => openDatabase(path)).toThrow(expect.objectContaining({ code: 'DATABASE_CORRUPT' }))
      expect(readFileSync(path).equals(before)).toBe(true)
    }
  })

  it('whose making was interrupted is made', async () => {
    const directory = temporaryDirectory()
    writeFileSync(join(directory, 'journal.db'), '')
    const journal = await journalIn(directory)
    expect(await journal.read()).toMatchObject({ epoch: 0 })
  })

  it('in an unusable place is refused with the reason', async () => {
    const occupied = join(temporaryDirectory(), 'file')
    writeFileSync(occupied, '')
    await expect(journalIn(join(occupied, 'state'))).rejects.toMatchObject({ code: 'STATE_UNWRITABLE' })
    const tooLong = join(temporaryDirectory(), 'x'.repeat(300))
    await expect(journalIn(tooLong)).rejects.toMatchObject({ code: 'STATE_UNWRITABLE' })
  })

  it.each([
    ['for which no file descriptor is left', 'EMFILE', 'open', 'OPEN_FILES_USED_UP'],
    ['whose migrations are being replaced', 'ENOENT', 'scandir', 'STATE_UNWRITABLE'],
    ['whose log could not be flushed', 'EIO', 'fsync', 'DISK_FAILED'],
  ])('%s is refused, not salvaged', (_what, of, syscall, code) => {
    const error = Object.assign(new Error(`${of}: ${syscall}`), { code: of, syscall })
    expect(refusalOf(error, '/journal.db')).toMatchObject({ code })
  })

  it.skipIf(process.getuid?.() !== 0)('in a directory of another user is refused, not salvaged', async () => {
    const directory = temporaryDirectory()
    await (await journalIn(directory)).close()
    const files = readdirSync(directory)
    process.seteuid?.(65_534)
    try {
      await expect(journalIn(directory)).rejects.toMatchObject({
        code: 'STATE_UNWRITABLE',
        message: expect.stringContaining('the user with the id 65534 may not read and write') as string,
      })
    } finally {
      process.seteuid?.(0)
    }
    expect(readdirSync(directory)).toEqual(files)
  })

  it('on a read-only file system is refused with that reason', async ({ skip }) => {
    const directory = temporaryDirectory()
    await (await journalIn(directory)).close()
    const path = join(readOnlyView(skip, directory), 'journal.db')
    expect(() => openDatabase(path)).toThrow(
      expect.objectContaining({ code: 'STATE_UNWRITABLE', message: `${path}: the file system is read-only` }),
    )
  })
})

describe('a state directory', () => {
  it('is locked by one journal at a time, in all processes, and free after it closes', async () => {
    const directory = temporaryDirectory()
    const first = await journalIn(directory)
    await attach(first, { [A]: 1_000_000n })
    await expect(journalIn(directory)).rejects.toMatchObject({ code: 'STATE_IN_USE' })
    const other = spawn(process.execPath, [new URL('./committing-process.ts', import.meta.url).pathname, directory])
    const words = other.stderr.toArray() as Promise<Buffer[]>
    const [code] = (await once(other, 'close')) as [number]
    expect(code).not.toBe(0)
    expect(Buffer.concat(await words).toString()).toContain('STATE_IN_USE')
    // The refused ones have changed nothing, and have not taken the lock away.
    await first.append([entry(1, [{ account: A, amount: 1n }])], STAMP)
    await expect(journalIn(directory)).rejects.toMatchObject({ code: 'STATE_IN_USE' })
    await first.close()
    expect(await (await journalIn(directory)).read()).toMatchObject({ lastEntry: 1 })
  })
})

describe('a full ledger', () => {
  const big = (n: number) => ({ ...entry(n, [{ account: A, amount: 1n }]), body: bodyOf(n) })
  const bodyOf = (n: number): string =>
    JSON.stringify({
      n,
      kind: 'access',
      postings: [{ account: A, amount: '1' }],
      filler: randomBytes(1_500).toString('hex'),
    })

  it('refuses entries as surely not recorded, still delivers, and records again when that has made room', async () => {
    const journal = await journalIn(temporaryDirectory(), {
      limits: { pagesMax: 700, diskReservePages: 2_400, retainedBytesMax: 100_000 },
    })
    await attach(journal, { [A]: 1_000_000n })
    let recorded = 0
    const fill = async (): Promise<number> => {
      const before = recorded
      for (;;) {
        try {
          await journal.append([big(recorded + 1)], STAMP)
          recorded += 1
        } catch (error) {
          expect(error).toMatchObject(FULL)
          return recorded - before
        }
      }
    }
    expect(await fill()).toBeGreaterThan(100)
    await expect(journal.saveClock(STAMP)).rejects.toMatchObject(FULL)
    expect(await journal.read()).toMatchObject({ lastEntry: recorded })
    expect((await journal.read()).accounts.get(A)?.used).toBe(BigInt(recorded))
    await expect(journal.append([big(recorded + 1)], STAMP)).rejects.toMatchObject(FULL)

    // As often as it may be: what a delivery leaves free beyond the limit is not for entries.
    for (let round = 0, delivered = 0; round < 3; round += 1) {
      while (delivered < recorded) {
        const { document, seq } = await journal.seal(SEAL)
        delivered += (payloadOf(document) as Segment).entries.bodies.length
        await journal.acknowledge(seq, null, null)
      }
      expect(journal.condition()).not.toBeNull()
      await journal.saveClock(STAMP)
      expect(journal.condition()).toBeNull()
      expect(await fill()).toBeGreaterThan(50)
      expect((await journal.read()).accounts.get(A)?.used).toBe(BigInt(recorded))
    }
  })

  it('sets disk space aside in a file, so that it can still seal a segment on a full disk', async () => {
    const directory = temporaryDirectory()
    const journal = await journalIn(directory, { limits: { diskReservePages: 32 } })
    await journal.read()
    expect(statSync(join(directory, 'journal.db-disk-reserve'))).toMatchObject({ size: 32 * PAGE_BYTES })
    expect(statSync(join(directory, 'journal.db-disk-reserve')).blocks * 512).toBeGreaterThanOrEqual(32 * PAGE_BYTES)
  })
})

describe('a disk that is full', () => {
  it('refuses entries on a full disk, still delivers, and accepts them when there is space again', async () => {
    const directory = temporaryDirectory()
    // A directory in the place of the file: the space cannot be set aside.
    const diskReserve = join(directory, 'journal.db-disk-reserve')
    mkdirSync(diskReserve)
    const journal = await journalIn(directory, { limits: { diskReservePages: 32 } })
    await journal.read()
    await attach(journal, { [A]: 10n })
    const append = () => journal.append([entry(1, [{ account: A, amount: 1n }])], STAMP)
    const message = 'the disk is full: 32.0 KiB must be free (state.disk_reserve)'
    await expect(append()).rejects.toMatchObject({ ...FULL, message })
    const { seq } = await journal.seal(SEAL)
    await journal.acknowledge(seq, null, null)
    await expect(append()).rejects.toMatchObject(FULL)
    await expect(journal.saveClock(STAMP)).rejects.toMatchObject(FULL)
    rmSync(diskReserve, { recursive: true })
    await journal.saveClock(STAMP)
    expect(journal.condition()).toBeNull()
    await append()
    expect(statSync(diskReserve).size).toBe(32 * PAGE_BYTES)
    expect((await journal.read()).accounts.get(A)?.used).toBe(1n)
  })

  it('keeps nothing that is delivered', async () => {
    const directory = temporaryDirectory()
    mkdirSync(join(directory, 'journal.db-disk-reserve'))
    const journal = await journalIn(directory)
    await journal.read()
    await attach(journal, {})
    const seqs = [await grant(journal, 2, {}), await grant(journal, 3, {})]
    for (const seq of seqs) expect(await journal.sealed(seq)).toBeNull()
  })
})

describe('a batch that fails', () => {
  it('leaves no changes, and neither does a batch behind it', async () => {
    const journal = await journalIn(temporaryDirectory(), { limits: { pagesMax: 240 } })
    await attach(journal, { [A]: 1_000n })
    const long = { ...entry(1, [{ account: A, amount: 5n }]), body: randomBytes(320 * 1024).toString('hex') }
    const failing = journal.append([long], STAMP)
    const behind = journal.append([entry(2, [{ account: A, amount: 7n }])], STAMP)
    await expect(failing).rejects.toMatchObject(FULL)
    await expect(behind).rejects.toMatchObject(FULL)
    await journal.append([entry(1, [{ account: A, amount: 3n }])], STAMP)
    expect((await journal.read()).accounts.get(A)?.used).toBe(3n)
    expect(await journal.recent(10)).toMatchObject([{ n: 1 }])
  })

  it('because it breaks a rule of the ledger ends the journal, once and for all', async () => {
    const broken: Error[] = []
    const directory = temporaryDirectory()
    const journal = await journalIn(directory, { onBroken: (error) => broken.push(error) })
    await attach(journal, { [A]: 10n })
    await expect(journal.append([entry(1, [{ account: A, amount: 11n }])], STAMP)).rejects.toThrow('overspent')
    await expect(journal.append([entry(1, [{ account: A, amount: 1n }])], STAMP)).rejects.toThrow('overspent')
    await expect(journal.seal(SEAL)).rejects.toThrow('overspent')
    expect(broken).toHaveLength(1)
    await journal.close()
    // The broken database stays open until its process ends.
    const after = temporaryDirectory()
    cpSync(directory, after, { recursive: true })
    expect((await (await journalIn(after)).read()).accounts.get(A)?.used).toBe(0n)
  })

  it.each([
    ['a gap in the numbers', (journal: Journal) => journal.append([entry(0, [])], STAMP), 'without gaps'],
    ['a second segment in flight', (journal: Journal) => journal.seal(SEAL).then(() => journal.seal(SEAL)), 'at most'],
    ['an epoch that does not rise', (journal: Journal) => journal.attach(1), 'rise'],
    ['a refund of what was not used', (journal: Journal) => journal.append([refund], STAMP), 'has used'],
  ])('never takes %s', async (_what, attempt, why) => {
    const journal = await journalIn(temporaryDirectory())
    await attach(journal, { [A]: 10n })
    await expect(attempt(journal)).rejects.toThrow(why)
  })

  const refund = entry(1, [{ account: A, amount: 1n }], { moves: 'refunded' })
})

describe('a long backlog', () => {
  it('is delivered in bounded segments, each with only the counters of its entries', async () => {
    const journal = await journalIn(temporaryDirectory())
    await attach(journal, { [A]: 10n ** 9n })
    const entries = Array.from({ length: 2_300 }, (_, index) => entry(index + 1, [{ account: A, amount: 2n }]))
    await journal.append(entries, STAMP)
    await journal.append([entry(2_301, [{ account: A, amount: 100n }], { moves: 'refunded' })], STAMP)

    const segments: Segment[] = []
    for (let round = 0; round < 3; round += 1) {
      const { document, seq, final } = await journal.seal({
        ...SEAL,
        final: true,
        returns: round === 0 ? [{ account: A, amount: 1_000n }] : [],
      })
      segments.push(payloadOf(document) as Segment)
      expect(final).toBe(round === 2)
      await journal.acknowledge(seq, null, null)
    }
    expect(segments.map(({ entries, backlog }) => [entries.first, entries.bodies.length, backlog])).toEqual([
      [1, 1_000, 1_301],
      [1_001, 1_000, 301],
      [2_001, 301, 0],
    ])
    // What is given up may come from a later refund: only the segment that leaves nothing behind tells it.
    expect(segments.map(({ counters }) => counters)).toEqual([
      [{ account: A, used: '2000', refunded: '0', returned: '0' }],
      [{ account: A, used: '4000', refunded: '0', returned: '0' }],
      [{ account: A, used: '4600', refunded: '100', returned: '1000' }],
    ])
  })

  it('of long entries is cut by their text, one entry at the least', async () => {
    const journal = await journalIn(temporaryDirectory())
    await attach(journal, { [A]: 10n })
    const lengths = [1_200_000, 500_000, 499_000, 400_000]
    for (const [index, length] of lengths.entries()) {
      await journal.append([{ ...entry(index + 1, []), body: `{"postings":[],"x":"${'x'.repeat(length)}"}` }], STAMP)
    }
    const sizes: number[] = []
    for (let round = 0; round < 3; round += 1) {
      const { document, seq } = await journal.seal(SEAL)
      sizes.push((payloadOf(document) as Segment).entries.bodies.length)
      await journal.acknowledge(seq, null, null)
    }
    expect(sizes).toEqual([1, 2, 1])
  })
})

describe('the retention', () => {
  it('of a policy that was fetched after the cloud had named it counts from when it was named', async () => {
    const journal = await journalIn(temporaryDirectory())
    await attach(journal, {})
    const { seq } = await journal.seal(SEAL)
    await journal.acknowledge(seq, null, { time: BEGIN, policies: [{ instanceId: INSTANCE, revision: 3 }] })
    await journal.savePolicy({ instanceId: INSTANCE, revision: 3, document: 'signed' }, null)
    expect((await journal.read()).policies).toMatchObject([{ revision: 3, confirmedAt: BEGIN }])
    await journal.savePolicy({ instanceId: INSTANCE, revision: 4, document: 'signed' }, null)
    expect((await journal.read()).policies).toMatchObject([{ revision: 4, confirmedAt: 0 }])
  })

  it('keeps acknowledged segments as long as the retention time and the space permit', async () => {
    let now = BEGIN
    const journal = await journalIn(temporaryDirectory(), {
      now: () => now,
      limits: { retentionMs: 1_000, retainedBytesMax: 10_000_000 },
    })
    await attach(journal, {})
    const first = await grant(journal, 2, {})
    now += 900
    const second = await grant(journal, 3, {})
    expect(await journal.sealed(first)).not.toBeNull()
    now += 200
    const third = await grant(journal, 4, {})
    expect(await journal.sealed(first)).toBeNull()
    expect(await journal.sealed(second)).not.toBeNull()
    // A clock that was far ahead and is set right must not keep what it dated for ever.
    now = BEGIN - 1_000_000
    await grant(journal, 5, {})
    now += 1_100
    await grant(journal, 6, {})
    expect(await journal.sealed(third)).toBeNull()
  })

  it('of acknowledged segments is bounded in bytes, the oldest first', async () => {
    const journal = await journalIn(temporaryDirectory(), { limits: { retainedBytesMax: 3_000 } })
    await attach(journal, {})
    const seqs: number[] = []
    for (let term = 2; term < 12; term += 1) seqs.push(await grant(journal, term, {}))
    const kept = await Promise.all(seqs.map(async (seq) => (await journal.sealed(seq)) !== null))
    expect(kept.lastIndexOf(false)).toBe(kept.indexOf(true) - 1)
    expect(kept.at(-1)).toBe(true)
    expect(kept[0]).toBe(false)
  })

  it('keeps the responses that prove grants, however much space the segments take', async () => {
    const journal = await journalIn(temporaryDirectory(), { limits: { retainedBytesMax: 1 } })
    await attach(journal, {})
    const { seq } = await journal.seal(SEAL)
    const accounts = [{ account: A, granted: 5n, exhausted: false, unlimited: false, overdraft: 0n }]
    const proven = { term: 2, lifetimeMs: 1, expiresAt: BEGIN, agedMs: 0, accounts }
    await journal.acknowledge(seq, proven, null, { document: 'the grant', retainUntil: BEGIN })
    await journal.append([entry(1, [{ account: A, amount: 5n }])], STAMP)
    for (let n = 0; n < 3; n += 1) {
      const later = await journal.seal(SEAL)
      await journal.acknowledge(later.seq, null, null, { document: `answer ${n}`, retainUntil: BEGIN })
    }
    const news = await journal.seal(SEAL)
    await journal.acknowledge(news.seq, { ...proven, term: 3, accounts: [] }, null, {
      document: 'another grant',
      retainUntil: BEGIN,
    })
    await journal.seal(SEAL)
    expect((await journal.read()).signedAnswers).toContain('the grant')
  })

  it('keeps answers that prove grants no longer than others for limits without balance', async () => {
    let now = BEGIN
    const directory = temporaryDirectory()
    const journal = await journalIn(directory, { now: () => now, limits: { retentionMs: 1_000 } })
    await attach(journal, {})
    const limits = ['used', 'returned', 'refunded', 'left'].map((value) => `limit/i/a/user/${value}/0`)
    const [used = '', returned = '', refunded = '', left = ''] = limits
    const sealed = async (
      name: string,
      accounts: readonly string[],
      returns: readonly Posting[] = [],
    ): Promise<number> => {
      const { seq } = await journal.seal({ ...SEAL, returns })
      const granted = accounts.map((account) => grantedAccount(account, 5n))
      const received = { term: seq, lifetimeMs: 1, expiresAt: BEGIN, agedMs: 0, accounts: granted }
      await journal.acknowledge(seq, received, null, { document: name, retainUntil: now })
      return seq
    }
    for (const account of limits) await sealed(account, [account])
    const charges = [used, returned, refunded].map((account) => ({ account, amount: 5n }))
    await journal.append(
      [
        ...charges.map((posting, index) => entry(1 + index, [posting])),
        entry(4, [{ account: returned, amount: 5n }], { moves: 'refunded' }),
        entry(5, [{ account: refunded, amount: 2n }], { moves: 'refunded' }),
      ],
      STAMP,
    )
    await sealed('returns', [], [{ account: returned, amount: 5n }])
    now += 2_000
    for (let n = 0; n < 3; n += 1) await sealed('later', [])
    expect((await journal.read()).signedAnswers).toEqual([refunded, left, 'later'])
    await journal.close()
    const again = await journalIn(directory)
    const { accounts, salvages } = await again.read()
    expect(salvages).toEqual([])
    expect(accounts.get(returned)).toMatchObject({ granted: 5n, used: 5n, refunded: 5n, returned: 5n })
  })

  it('keeps the final segment of an epoch until the next one, however large it is', async () => {
    let now = BEGIN
    const limits = { retainedBytesMax: 1, retentionMs: 1 }
    const journal = await journalIn(temporaryDirectory(), { limits, now: () => now })
    await attach(journal, {})
    await journal.fence()
    const { seq, final } = await journal.seal({ ...SEAL, final: true })
    await journal.acknowledge(seq, null, null)
    now += 1_000
    await journal.saveClock(STAMP)
    expect(final).toBe(true)
    expect(await journal.sealed(seq)).toMatchObject({ seq, final: true })
  })

  it('of the last answers is the most recently used, over restarts', async () => {
    const directory = temporaryDirectory()
    const answer = (session: string, n: number) => ({
      idempotencyRecord: { session, n, requestHash: 'h', answer: `{"n":${n}}`, policyRevision: 1 },
    })
    let journal = await journalIn(directory, { limits: { answersMax: 3 } })
    await attach(journal, {})
    await journal.append(
      [entry(1, [], answer('a', 1)), entry(2, [], answer('b', 1)), entry(3, [], answer('c', 1))],
      STAMP,
    )
    await journal.append([entry(4, [], answer('a', 2))], STAMP)
    await journal.append([entry(5, [], answer('d', 1))], STAMP)
    await journal.close()
    journal = await journalIn(directory, { limits: { answersMax: 3 } })
    const { idempotencyCache } = await journal.read()
    expect(idempotencyCache.map(({ session, n }) => [session, n])).toEqual([
      ['c', 1],
      ['a', 2],
      ['d', 1],
    ])
  })

  it('keeps as many responses for each caller, whatever other callers request, over restarts', async () => {
    const directory = temporaryDirectory()
    const answer = (session: string) => ({
      idempotencyRecord: { session, n: 1, requestHash: 'h', answer: '{}', policyRevision: 1 },
    })
    const limits = { answersMax: 2 }
    let journal = await journalIn(directory, { limits })
    await attach(journal, {})
    await journal.append([entry(1, [], answer('uid:1000 till'))], STAMP)
    for (let n = 2; n <= 6; n += 1) {
      if (n === 4) {
        await journal.close()
        journal = await journalIn(directory, { limits })
      }
      await journal.append([entry(n, [], answer(`uid:1001 name-${n}`))], STAMP)
    }
    await journal.append([entry(7, [], answer('uid:1000 kiosk'))], STAMP)
    await journal.close()
    journal = await journalIn(directory, { limits })
    const { idempotencyCache } = await journal.read()
    expect(idempotencyCache.map(({ session }) => session)).toEqual([
      'uid:1000 till',
      'uid:1001 name-5',
      'uid:1001 name-6',
      'uid:1000 kiosk',
    ])
  })

  it('keeps the newest thousand acknowledged entries, and the entries in the same block', async () => {
    const journal = await journalIn(temporaryDirectory())
    await attach(journal, {})
    for (let round = 0; round < 3; round += 1) {
      const entries = Array.from({ length: 600 }, (_, index) => entry(round * 600 + index + 1, []))
      await journal.append(entries, STAMP)
      const { seq } = await journal.seal(SEAL)
      await journal.acknowledge(seq, null, null)
    }
    const recent = await journal.recent(5_000)
    expect(recent.length).toBeGreaterThanOrEqual(1_000)
    expect(recent.length).toBeLessThan(1_256)
    expect(recent[0]).toMatchObject({ n: 1_800 })
  })
})
