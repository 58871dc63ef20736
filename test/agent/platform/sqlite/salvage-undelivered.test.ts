// What a damaged journal owed of earlier epochs, and of blocks that were open in it.
import {
  closeSync,
  copyFileSync,
  openSync,
  readFileSync,
  readdirSync,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { describe, expect, it } from 'vitest'
import { PAGE_BYTES } from '../../../../src/agent/platform/sqlite/open-database.ts'
import fc from '../../../support/fast-check.ts'
import { fillDisk, smallDisk } from '../../../support/mounts.ts'
import { SEAL, STAMP, entry, journalIn, temporaryDirectory } from '../../harness.ts'
import { A, damage, deliveredBy, deviceWithBacklog, entries, largeBacklog, rangesOf } from './damaged.ts'

async function salvagedFrom(directory: string) {
  const journal = await journalIn(directory)
  const { undeliveredRanges, salvages } = await journal.read()
  await journal.close()
  const counts = (salvages ?? []).map(({ salvagedEntries, lostEntries }) => ({ salvagedEntries, lostEntries }))
  return { undeliveredRanges, counts }
}

const MIB = 1024 * 1024

/** By this process, to files. */
function bytesWritten(): number {
  return Number(/^wchar: (\d+)$/m.exec(readFileSync('/proc/self/io', 'utf8'))?.[1])
}

/** Gives rows of a table a value that its definition forbids. */
function setImpossible(path: string, table: string, change: string): void {
  const database = new Database(path)
  database.unsafeMode().pragma('writable_schema = ON')
  const definition = `UPDATE sqlite_schema SET sql = replace(replace(sql, 'NOT NULL', ''), ' STRICT', ' ') WHERE name = ?`
  database.prepare(definition).run(table)
  database.close()
  const damaged = new Database(path)
  damaged.exec(`UPDATE ${table} SET ${change}`)
  damaged.close()
}

it('a response beside one that cannot be salvaged outlasts the next response', async () => {
  const { directory, journal, path } = await deviceWithBacklog()
  const answered = (n: number, session: string) =>
    entry(n, [], { idempotencyRecord: { session, n: 1, requestHash: 'h', answer: '{}', policyRevision: 1 } })
  await journal.append([answered(61, 'a'), answered(62, 'b'), answered(63, 'c')], STAMP)
  await journal.close()
  setImpossible(path, 'answer', `request_hash = NULL WHERE session = 'b'`)
  const salvaged = await journalIn(directory)
  await salvaged.fence()
  await salvaged.attach(9)
  await salvaged.append([answered(1, 'd')], STAMP)
  await salvaged.close()
  const reopened = await journalIn(directory)
  expect((await reopened.read()).idempotencyCache.map(({ session }) => session)).toEqual(['a', 'c', 'd'])
  await reopened.close()
})

describe('undelivered ranges of a damaged journal', () => {
  it('are salvaged, although no segment contains them', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.fence()
    await journal.attach(9)
    await journal.append(
      [1, 2, 3, 4, 5].map((n) => entry(n, [])),
      STAMP,
    )
    await journal.close()
    damage(path)
    expect(await salvagedFrom(directory)).toEqual({
      undeliveredRanges: 45,
      counts: [{ salvagedEntries: 45, lostEntries: 0 }],
    })
  })

  it('are kept until they are delivered, also those of the last epoch', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.fence()
    await journal.attach(9)
    const later = [1, 2, 3, 4, 5].map((n) => entry(n, []))
    await journal.append(later, STAMP)
    await journal.close()
    damage(path)
    const salvaged = await journalIn(directory, { limits: { recentEntries: 0, segmentEntriesMax: 10 } })
    expect(await deliveredBy(salvaged)).toEqual([...entries(21, 40), ...later].map(({ body }) => body))
  })

  it('are of unknown number if the table that names them is damaged', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.fence()
    await journal.attach(9)
    await journal.append([entry(1, [])], STAMP)
    await journal.close()
    damage(path, 'undelivered_ranges')
    expect(await salvagedFrom(directory)).toEqual({
      undeliveredRanges: 1,
      counts: [{ salvagedEntries: 1, lostEntries: null }],
    })
  })

  it('are salvaged if the definition of a table is damaged, which a later write would not survive', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.close()
    const bytes = readFileSync(path)
    bytes.write('whole IN (1, 1)', bytes.indexOf('whole IN (0, 1)'))
    writeFileSync(path, bytes)
    expect(await salvagedFrom(directory)).toEqual({
      undeliveredRanges: 40,
      counts: [{ salvagedEntries: 40, lostEntries: 0 }],
    })
  })

  it.each([
    ['answer', 'request_hash', 'NULL', { salvagedEntries: 42, lostEntries: 0 }],
    ['answer', 'entry_id', 'entry_id - 0.5', { salvagedEntries: 42, lostEntries: 0 }],
    ['policy', 'document', 'NULL', { salvagedEntries: 42, lostEntries: 0 }],
    ['session', 'snapshot', 'NULL', { salvagedEntries: 42, lostEntries: 0 }],
    ['undelivered_ranges', 'acked_head', 'NULL', { salvagedEntries: 1, lostEntries: null }],
    ['undelivered_ranges', 'entry_base', "'x'", { salvagedEntries: 1, lostEntries: null }],
    ['state', 'acked_entry', 'NULL', { salvagedEntries: 41, lostEntries: null }],
  ])('are salvaged if a row of the table %s has an impossible %s', async (table, column, value, counts) => {
    const { directory, journal, path } = await deviceWithBacklog()
    const idempotencyRecord = { session: 's', n: 1, requestHash: 'h', answer: '{}', policyRevision: 1 }
    await journal.savePolicy({ instanceId: 'i', revision: 1, document: 'x' }, null)
    const session = { id: 's', ended: false, since: 1, document: '{}', snapshot: '{}' }
    await journal.append([entry(61, [], { idempotencyRecord, session })], STAMP)
    await journal.fence()
    await journal.attach(9)
    await journal.append([entry(1, [])], STAMP)
    await journal.close()
    setImpossible(path, table, `${column} = ${value}`)
    expect((await salvagedFrom(directory)).counts).toEqual([counts])
  })

  it('are delivered or counted as lost, whatever is damaged', { timeout: 60_000 }, async () => {
    const { journal, path } = await deviceWithBacklog()
    await journal.fence()
    await journal.attach(9)
    const later = [1, 2, 3, 4, 5].map((n) => entry(n, []))
    await journal.append(later, STAMP)
    await journal.close()
    const whole = readFileSync(path)
    const owed = [...entries(21, 40), ...later].map(({ body }) => body)
    const page = fc.integer({ min: 0, max: whole.length / PAGE_BYTES - 1 })
    const spot = fc.record({ page, from: fc.constantFrom(0, 0, 8, 100), byte: fc.constantFrom(0, 0xff, 0xa5) })
    await fc.assert(
      fc.asyncProperty(spot, async ({ page, from, byte }) => {
        const directory = temporaryDirectory()
        const bytes = Buffer.from(whole)
        bytes.fill(byte, page * PAGE_BYTES + from, (page + 1) * PAGE_BYTES)
        writeFileSync(join(directory, 'journal.db'), bytes)
        const salvaged = await journalIn(directory)
        const { salvages = [] } = await salvaged.read()
        const delivered = new Set(await deliveredBy(salvaged))
        await salvaged.close()
        const missing = owed.filter((body) => !delivered.has(body)).length
        const [found] = salvages
        if (found?.lostEntries !== null) expect(found?.lostEntries ?? 0).toBeGreaterThanOrEqual(missing)
      }),
      { numRuns: 60 },
    )
  })

  it('are not closed by an end with a damaged head, which the cloud could never read', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    const { seq } = await journal.seal(SEAL)
    await journal.acknowledge(seq, null, null)
    await journal.fence()
    await journal.attach(9, { isWhole: true, cloudEnd: null })
    await journal.close()
    const intact = temporaryDirectory()
    copyFileSync(path, join(intact, 'journal.db'))
    damage(join(intact, 'journal.db'))
    expect(await rangesOf(await journalIn(intact))).toEqual([{ first: 61, count: 0, final: true }])
    const database = new Database(path)
    database.exec("UPDATE undelivered_ranges SET acked_head = 'damaged'")
    database.close()
    damage(path)
    expect(await rangesOf(await journalIn(directory))).toEqual([])
  })

  it('are salvaged again when the journal that a salvage made is damaged too', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.close()
    for (let times = 0; times < 3; times += 1) {
      damage(path)
      // Each salvage is one of its own journal.
      expect(await salvagedFrom(directory)).toEqual({
        undeliveredRanges: 40,
        counts: [{ salvagedEntries: 40, lostEntries: 0 }],
      })
    }
  })

  it('are salvaged with those in slots, though the header forbids writes', async () => {
    const { journal, path } = await deviceWithBacklog()
    const copied = temporaryDirectory()
    const copy = join(copied, 'journal.db')
    await journal.append([entry(61, [])], STAMP)
    for (const suffix of ['', '-wal']) copyFileSync(`${path}${suffix}`, `${copy}${suffix}`)
    // Without a log, which has a whole header.
    const database = new Database(copy)
    database.pragma('wal_checkpoint(TRUNCATE)')
    database.close()
    damage(copy)
    const file = openSync(copy, 'r+')
    writeSync(file, Buffer.from([3]), 0, 1, 18)
    closeSync(file)
    expect(await salvagedFrom(copied)).toEqual({
      undeliveredRanges: 41,
      counts: [{ salvagedEntries: 41, lostEntries: 0 }],
    })
  })

  it.for([
    ['for a copy', (size: number) => size - PAGE_BYTES],
    ['for what is made of a copy', (size: number) => 2 * size],
  ] as const)('wait until the disk has space %s', async ([, leftOf], { skip }) => {
    const path = await largeBacklog()
    const disk = smallDisk(skip, '8m')
    copyFileSync(path, join(disk, 'journal.db'))
    damage(join(disk, 'journal.db'))
    const { size } = statSync(path)
    const freeSpace = fillDisk(disk, leftOf(size))
    const before = bytesWritten()
    await expect(journalIn(disk)).rejects.toMatchObject({ code: 'STATE_UNWRITABLE' })
    expect(readdirSync(disk).filter((name) => /\.(?:copy|draft)/.test(name))).toEqual([])
    // Each start repeats this.
    expect(bytesWritten() - before).toBeLessThan(size / 2)
    freeSpace()
    expect(await salvagedFrom(disk)).toMatchObject({ counts: [{ salvagedEntries: 340, lostEntries: 0 }] })
  })

  it('wait until the disk has space for the database and its log together', async ({ skip }) => {
    const { path } = await deviceWithBacklog()
    const disk = smallDisk(skip, '8m')
    const place = join(disk, 'journal.db')
    for (const suffix of ['', '-wal']) copyFileSync(`${path}${suffix}`, `${place}${suffix}`)
    damage(place)
    const [size, logSize] = [statSync(place).size, statSync(`${place}-wal`).size]
    const freeSpace = fillDisk(disk, size + logSize / 2)
    const before = bytesWritten()
    await expect(journalIn(disk)).rejects.toMatchObject({ code: 'STATE_UNWRITABLE' })
    expect(bytesWritten() - before).toBeLessThan(size / 2)
    freeSpace()
    expect((await salvagedFrom(disk)).counts).toHaveLength(1)
  })

  it('are salvaged if the disk has space for a copy and for the new ledger, but not for its log as well', async ({
    skip,
  }) => {
    const path = await largeBacklog()
    const [disk, large] = [smallDisk(skip, '8m'), temporaryDirectory()]
    for (const directory of [disk, large]) {
      copyFileSync(path, join(directory, 'journal.db'))
      damage(join(directory, 'journal.db'))
    }
    await salvagedFrom(large)
    fillDisk(disk, statSync(path).size + 1.5 * statSync(join(large, 'journal.db')).size)
    expect(await salvagedFrom(disk)).toMatchObject({ counts: [{ salvagedEntries: 340, lostEntries: 0 }] })
  })

  it('are salvaged with the reserved disk space if the disk has none for the new ledger', async ({ skip }) => {
    const { journal, path } = await deviceWithBacklog()
    await journal.close()
    const disk = smallDisk(skip, '8m')
    const place = join(disk, 'journal.db')
    copyFileSync(path, place)
    damage(place)
    writeFileSync(`${place}-disk-reserve`, Buffer.alloc(MIB))
    fillDisk(disk, statSync(place).size + 8 * PAGE_BYTES)
    expect(await salvagedFrom(disk)).toMatchObject({ counts: [{ salvagedEntries: 40, lostEntries: 0 }] })
  })

  it('of a log without its database are salvaged with the reserved disk space, too', async ({ skip }) => {
    const { path } = await deviceWithBacklog()
    const disk = smallDisk(skip, '8m')
    const place = join(disk, 'journal.db')
    writeFileSync(place, '')
    copyFileSync(`${path}-wal`, `${place}-wal`)
    writeFileSync(`${place}-disk-reserve`, Buffer.alloc(MIB))
    fillDisk(disk)
    expect(await salvagedFrom(disk)).toMatchObject({ counts: [{ salvagedEntries: 40 }] })
  })

  it('are incomplete while a block is open, because its use is unknown', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.appendWriteBehind([], [{ account: A, usedUpTo: 5_000n }], STAMP, false)
    await journal.close()
    damage(path)
    expect(await salvagedFrom(directory)).toEqual({
      undeliveredRanges: 40,
      counts: [{ salvagedEntries: 40, lostEntries: null }],
    })
  })
})
