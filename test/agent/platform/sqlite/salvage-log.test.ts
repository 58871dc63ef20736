// A journal, damaged or replaced, beside the volatile log of a device that spends ahead of its disk.
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { describe, expect, it } from 'vitest'
import { backUpLedger } from '../../../../src/agent/platform/sqlite/backup.ts'
import { restoreLedger } from '../../../../src/agent/platform/sqlite/restore-ledger.ts'
import { TmpfsLog } from '../../../../src/agent/platform/tmpfs/volatile-log.ts'
import type { Journal, IdempotencyRecord, PendingEntry } from '../../../../src/agent/ledger/journal.ts'
import type { BootLog } from '../../../../src/agent/ledger/volatile-log.ts'
import { CHAIN_START, entryHash } from '../../../../src/protocol/signing.ts'
import { IDENTITY, SEAL, STAMP, attach, entry, journalIn, temporaryDirectory } from '../../harness.ts'
import { A, damage, deliveredBy } from './damaged.ts'

const BOOT = 'this boot'
const OWNER = { deviceId: IDENTITY.deviceId, epoch: 1 }
const OTHER = { deviceId: 'other device', epoch: 1 }
const DELIVERED = 20
const RECORDED = 33
const ANSWERED = 60

const answerTo = (n: number): IdempotencyRecord => ({
  session: `app ${n % 4}`,
  n,
  requestHash: `request ${n}`,
  answer: `answer ${n}`,
  policyRevision: 1,
})
const charge = (n: number): PendingEntry => ({
  ...entry(n, [{ account: A, amount: 3n }]),
  idempotencyRecord: answerTo(n),
})
const charges = (from: number, to: number): PendingEntry[] =>
  Array.from({ length: to - from + 1 }, (_, index) => charge(from + index))
const headAt = (n: number): string => charges(1, n).reduce((head, { body }) => entryHash(head, body), CHAIN_START)

interface Written {
  readonly directory: string
  readonly log: TmpfsLog
}

/** Entries 1 to 20 are delivered, those to 33 recorded, those to 60 answered from the log. */
async function device(): Promise<Written> {
  const directory = temporaryDirectory()
  const journal = await journalIn(directory)
  await attach(journal, { [A]: 1_000_000n })
  await journal.append(charges(1, DELIVERED), STAMP)
  const { seq } = await journal.seal(SEAL)
  await journal.acknowledge(seq, null, null)
  await journal.appendWriteBehind(charges(DELIVERED + 1, RECORDED), [{ account: A, usedUpTo: 900n }], STAMP, false)
  await journal.close()
  const log = new TmpfsLog({ directory: join(directory, 'run'), name: 'ledger', bootId: BOOT })
  log.begin(OWNER, { n: RECORDED, head: headAt(RECORDED) })
  for (const each of charges(RECORDED + 1, ANSWERED)) log.write([each])
  return { directory, log }
}

async function reopened({ directory, log }: Written, bootId = BOOT): Promise<Journal> {
  const left = log.left()
  const boot: BootLog | null = left === undefined ? null : { log: left, bootId }
  return journalIn(directory, { left: boot })
}

const bodiesOf = (entries: readonly PendingEntry[]) => entries.map(({ body }) => body)
const salvageOf = async (journal: Journal) => (await journal.read()).salvages?.[0]
const answersOf = async (journal: Journal) => (await journal.read()).idempotencyCache.map(({ n }) => n)

describe('a damaged journal whose volatile log fits', () => {
  it('is continued by the log: every answered charge is delivered, and none is reported as lost', async () => {
    const written = await device()
    damage(join(written.directory, 'journal.db'), 'policy')
    const journal = await reopened(written)
    expect(await salvageOf(journal)).toMatchObject({ salvagedEntries: ANSWERED - DELIVERED, lostEntries: 0 })
    expect(await deliveredBy(journal)).toEqual(bodiesOf(charges(DELIVERED + 1, ANSWERED)))
  })

  it('gives the answers of its last requests again, so that a retry is not charged twice', async () => {
    const written = await device()
    damage(join(written.directory, 'journal.db'), 'policy')
    const journal = await reopened(written)
    expect((await journal.read()).idempotencyCache).toEqual([57, 58, 59, 60].map(answerTo))
    // Also when the ledger that has taken its place continues.
    await journal.attach(9)
    await journal.append([{ ...entry(1, []), idempotencyRecord: answerTo(61) }], STAMP)
    expect(await answersOf(journal)).toEqual([58, 59, 60, 61])
  })

  it('gives no answer again whose entry cannot be read, because a retry would not be charged', async () => {
    const written = await device()
    written.log.remove()
    damage(join(written.directory, 'journal.db'), 'block')
    const journal = await reopened(written)
    const { salvagedEntries } = (await salvageOf(journal)) ?? { salvagedEntries: -1 }
    expect(await answersOf(journal)).toEqual([30, 31, 32, 33].filter((n) => n <= DELIVERED + salvagedEntries))
  })

  it('is continued by the log when a backup replaces it', async () => {
    for (const damaged of ['policy', 'block', 'all']) {
      const { directory, log } = await device()
      const path = join(directory, 'journal.db')
      const file = join(directory, 'backup.db')
      await backUpLedger(path, file)
      if (damaged === 'all') rmSync(path)
      else damage(path, damaged)
      const left = log.left()
      if (left === undefined) throw new Error('the log can be read')
      expect(await restoreLedger(file, path, 0, { left: { log: left, bootId: BOOT } })).toMatchObject({
        undelivered: ANSWERED - DELIVERED,
        lost: damaged === 'all' ? null : 0,
      })
      const journal = await journalIn(directory)
      expect(await deliveredBy(journal)).toEqual(bodiesOf(charges(DELIVERED + 1, ANSWERED)))
    }
  })

  it('is not continued by a log of another boot, nor by one that belongs to another chain', async () => {
    const other = await device()
    damage(join(other.directory, 'journal.db'), 'policy')
    const journal = await reopened(other, 'another boot')
    // The blocks were open: what was spent of them beyond the journal is not known.
    expect(await salvageOf(journal)).toMatchObject({ salvagedEntries: RECORDED - DELIVERED, lostEntries: null })

    const foreign = await device()
    foreign.log.begin(OWNER, { n: RECORDED, head: headAt(RECORDED - 1) })
    foreign.log.write(charges(RECORDED + 1, RECORDED + 3))
    damage(join(foreign.directory, 'journal.db'), 'policy')
    const beside = await reopened(foreign)
    expect(await salvageOf(beside)).toMatchObject({ salvagedEntries: RECORDED - DELIVERED + 3, lostEntries: null })
    // They were answered: the cloud bills them as those of another writer.
    expect(await deliveredBy(beside)).toEqual(bodiesOf(charges(DELIVERED + 1, RECORDED + 3)))
  })

  it('recovers the entries of the log, although the entries before them cannot be read', async () => {
    const written = await device()
    damage(join(written.directory, 'journal.db'), 'block')
    const journal = await reopened(written)
    expect(await salvageOf(journal)).toEqual(
      expect.objectContaining({ salvagedEntries: ANSWERED - RECORDED, lostEntries: RECORDED - DELIVERED }),
    )
    expect(await deliveredBy(journal)).toEqual(bodiesOf(charges(RECORDED + 1, ANSWERED)))
    expect((await journal.read()).idempotencyCache).toEqual([57, 58, 59, 60].map(answerTo))
  })

  it.each([
    ['longer', 40],
    ['shorter', 57],
  ])('brings a log that is %s than the entries before unreadable ones, and those', async (_, end) => {
    const written = await device()
    const { directory, log } = written
    const journal = await journalIn(directory)
    await journal.appendWriteBehind(charges(RECORDED + 1, end), [{ account: A, usedUpTo: 900n }], STAMP, false)
    // Proves the entries before it. The later ones get a block of their own.
    await journal.seal(SEAL)
    await journal.appendWriteBehind(charges(end + 1, ANSWERED), [{ account: A, usedUpTo: 900n }], STAMP, false)
    await journal.close()
    log.begin(OWNER, { n: ANSWERED, head: headAt(ANSWERED) })
    log.write(charges(ANSWERED + 1, ANSWERED + 10))
    const database = new Database(join(directory, 'journal.db'))
    database.prepare('UPDATE block SET data = ? WHERE first_n = ?').run(Buffer.from('damaged'), end + 1)
    database.close()
    damage(join(directory, 'journal.db'), 'policy')
    const salvaged = await reopened(written)
    expect(await salvageOf(salvaged)).toMatchObject({
      salvagedEntries: end - DELIVERED + 10,
      lostEntries: ANSWERED - end,
    })
    expect(await deliveredBy(salvaged)).toEqual(
      bodiesOf([...charges(DELIVERED + 1, end), ...charges(ANSWERED + 1, ANSWERED + 10)]),
    )
  })

  it('loses nothing of a log whose entries the journal has already taken', async () => {
    const written = await device()
    const { log } = written
    log.begin(OWNER, { n: DELIVERED - 5, head: headAt(DELIVERED - 5) })
    log.write(charges(DELIVERED - 4, RECORDED))
    damage(join(written.directory, 'journal.db'), 'block')
    const journal = await reopened(written)
    expect(await salvageOf(journal)).toMatchObject({ salvagedEntries: RECORDED - DELIVERED, lostEntries: 0 })
    expect(await deliveredBy(journal)).toEqual(bodiesOf(charges(DELIVERED + 1, RECORDED)))
  })

  it('reports no entry of the log as lost, although the ledger proves none', async () => {
    const written = await device()
    const { directory, log } = written
    log.begin(OWNER, { n: DELIVERED - 5, head: headAt(DELIVERED - 5) })
    log.write(charges(DELIVERED - 4, RECORDED))
    const database = new Database(join(directory, 'journal.db'))
    database.exec("UPDATE state SET acked_head = 'damaged'")
    database.close()
    damage(join(directory, 'journal.db'), 'policy')
    const journal = await reopened(written)
    expect(await salvageOf(journal)).toMatchObject({ salvagedEntries: RECORDED - DELIVERED + 5, lostEntries: 0 })
    expect(await deliveredBy(journal)).toEqual(bodiesOf(charges(DELIVERED - 4, RECORDED)))
  })

  it('is restored from its backup, which has the entries of both chains too', async () => {
    const written = await device()
    const { directory, log } = written
    const path = join(directory, 'journal.db')
    log.begin(OWNER, { n: RECORDED - 3, head: headAt(RECORDED - 4) })
    log.write(charges(RECORDED - 2, RECORDED + 3))
    damage(path, 'policy')
    await (await reopened(written)).close()
    log.remove()
    const file = join(directory, 'backup.db')
    await backUpLedger(path, file)
    const both = [...charges(DELIVERED + 1, RECORDED), ...charges(RECORDED - 2, RECORDED + 3)]
    expect(await restoreLedger(file, path, 0)).toMatchObject({ undelivered: both.length, lost: 0 })
    expect(await deliveredBy(await journalIn(directory))).toEqual(bodiesOf(both))
  })
})

describe('the log of another device', () => {
  it('adds nothing to a damaged journal at the same path', async () => {
    const written = await device()
    written.log.begin(OTHER, { n: RECORDED, head: headAt(RECORDED) })
    written.log.write(charges(RECORDED + 1, ANSWERED))
    damage(join(written.directory, 'journal.db'), 'policy')
    const journal = await reopened(written)
    expect(await deliveredBy(journal)).toEqual(bodiesOf(charges(DELIVERED + 1, RECORDED)))
  })

  it('adds nothing to a backup that is restored to the directory of that device', async () => {
    const { directory, log } = await device()
    const file = join(directory, 'backup.db')
    const path = join(directory, 'journal.db')
    await backUpLedger(path, file)
    rmSync(path)
    log.begin(OTHER, { n: 0, head: CHAIN_START })
    log.write(charges(1, ANSWERED))
    const restored = await restoreLedger(file, path, 0, { left: { log: log.left()!, bootId: BOOT } })
    expect(restored).toMatchObject({ replaced: null, undelivered: RECORDED - DELIVERED })
    const journal = await journalIn(directory)
    expect(await deliveredBy(journal)).toEqual(bodiesOf(charges(DELIVERED + 1, RECORDED)))
    expect((await answersOf(journal)).toSorted()).toEqual([30, 31, 32, 33])
  })
})

describe('an intact journal that a backup replaces', () => {
  const restored = async ({ directory, log }: Written, bootId = BOOT) => {
    const path = join(directory, 'journal.db')
    const file = join(directory, 'backup.db')
    await backUpLedger(path, file)
    const left = log.left()
    if (left === undefined) throw new Error('the log can be read')
    return restoreLedger(file, path, 0, { left: { log: left, bootId } })
  }
  const closeReservations = async ({ directory }: Written, upTo: number): Promise<void> => {
    const journal = await journalIn(directory)
    await journal.appendWriteBehind(charges(RECORDED + 1, upTo), [{ account: A, usedUpTo: 0n }], STAMP, false)
    await journal.close()
  }

  it('is continued by the log, also if reservations are open', async () => {
    const written = await device()
    const result = { undelivered: ANSWERED - DELIVERED, lost: 0 }
    expect(await restored(written)).toMatchObject(result)
    // The log is still there.
    expect(await restored(written)).toMatchObject(result)
    const journal = await journalIn(written.directory)
    expect(await deliveredBy(journal)).toEqual(bodiesOf(charges(DELIVERED + 1, ANSWERED)))
    expect(await answersOf(journal)).toEqual([57, 58, 59, 60])
  })

  it('is continued by entries of the log that cost nothing, without reservations', async () => {
    const written = await device()
    await closeReservations(written, RECORDED)
    written.log.begin(OWNER, { n: RECORDED, head: headAt(RECORDED) })
    const free = { ...entry(RECORDED + 1, []), idempotencyRecord: answerTo(RECORDED + 1) }
    written.log.write([free])
    expect(await restored(written)).toMatchObject({ undelivered: RECORDED + 1 - DELIVERED, lost: 0 })
    const journal = await journalIn(written.directory)
    expect((await deliveredBy(journal)).at(-1)).toBe(free.body)
    expect((await answersOf(journal)).toSorted()).toEqual([31, 32, 33, 34])
  })

  it('gains nothing from a log whose entries it has, or has delivered', async () => {
    const recorded = await device()
    await closeReservations(recorded, ANSWERED + 5)
    expect(await restored(recorded)).toMatchObject({ undelivered: ANSWERED + 5 - DELIVERED, lost: 0 })

    const delivered = await device()
    await closeReservations(delivered, ANSWERED)
    const journal = await journalIn(delivered.directory)
    const { seq } = await journal.seal(SEAL)
    await journal.acknowledge(seq, null, null)
    await journal.append([charge(ANSWERED + 1)], STAMP)
    await journal.close()
    expect(await restored(delivered)).toMatchObject({ undelivered: 1, lost: 0 })
  })

  it('is not replaced while reservations are open that no log of this boot explains', async () => {
    const written = await device()
    await expect(restored(written, 'another boot')).rejects.toMatchObject({ code: 'RESERVATION_OPEN' })
    written.log.begin(OWNER, { n: RECORDED, head: headAt(RECORDED - 1) })
    await expect(restored(written)).rejects.toMatchObject({ code: 'RESERVATION_OPEN' })
  })
})
