// A backup that takes the place of a ledger: what either of them owes the cloud is kept.
import { copyFileSync, existsSync, readdirSync, renameSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import Database from 'better-sqlite3'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { backUpLedger } from '../../../../src/agent/platform/sqlite/backup.ts'
import { restoreLedger } from '../../../../src/agent/platform/sqlite/restore-ledger.ts'
import { inspectDatabase } from '../../../../src/agent/platform/sqlite/inspect-database.ts'
import { SEAL, STAMP, entry, journalIn, temporaryDirectory } from '../../harness.ts'
import { fillDisk, readOnlyView, smallDisk } from '../../../support/mounts.ts'
import { BEGIN } from '../../sync/fake-time.ts'
import { A, damage, deliveredBy, deviceWithBacklog, entries, largeBacklog, rangesOf } from './damaged.ts'

/** A device with a backup that has 40 undelivered entries, and 60 more in its ledger. */
async function backedUp() {
  const device = await deviceWithBacklog()
  const file = join(device.directory, 'backup.db')
  await backUpLedger(device.path, file)
  await device.journal.append(entries(61, 60), STAMP)
  await device.journal.close()
  return { ...device, file }
}

/** The ledger of {@link deviceWithBacklog}, with more entries. */
async function continued(path: string, count: number) {
  const directory = dirname(path)
  const journal = await journalIn(directory)
  await journal.append(entries(61, count), STAMP)
  await journal.close()
  return { directory }
}

async function undeliveredRangesIn(directory: string): Promise<number | undefined> {
  const journal = await journalIn(directory)
  const { undeliveredRanges } = await journal.read()
  await journal.close()
  return undeliveredRanges
}

describe('a backup that takes the place of a ledger', () => {
  it('is refused on a read-only file system, with that reason', async ({ skip }) => {
    const { directory, file } = await backedUp()
    const path = join(readOnlyView(skip, directory), 'journal.db')
    await expect(restoreLedger(file, path, BEGIN)).rejects.toMatchObject({
      code: 'STATE_UNWRITABLE',
      message: `${path}: the file system is read-only`,
    })
  })

  it('is refused on a full disk, and works once there is space', async ({ skip }) => {
    const { file, path } = await backedUp()
    const disk = smallDisk(skip, '1m')
    const restored = join(disk, 'journal.db')
    copyFileSync(path, restored)
    const freeSpace = fillDisk(disk)
    await expect(restoreLedger(file, restored, BEGIN)).rejects.toMatchObject({
      code: 'STATE_UNWRITABLE',
      message: `${restored}: database or disk is full`,
    })
    freeSpace()
    expect(await restoreLedger(file, restored, BEGIN)).toMatchObject({ undelivered: 100 })
  })

  it('is refused on a disk with space for the log of the new ledger, but not for its pages', async ({ skip }) => {
    const path = await largeBacklog()
    const file = `${path}.backup`
    await backUpLedger(path, file)
    const [disk, large] = [smallDisk(skip, '8m'), temporaryDirectory()]
    const [restored, elsewhere] = [disk, large].map((directory) => join(directory, 'journal.db')) as [string, string]
    await restoreLedger(file, elsewhere, BEGIN)
    const freeSpace = fillDisk(disk, 1.5 * statSync(elsewhere).size)
    await expect(restoreLedger(file, restored, BEGIN)).rejects.toMatchObject({ code: 'STATE_UNWRITABLE' })
    expect(readdirSync(disk)).toEqual(['filler'])
    freeSpace()
    expect(await restoreLedger(file, restored, BEGIN)).toMatchObject({ undelivered: 340 })
    expect(await undeliveredRangesIn(disk)).toBe(340)
  })

  it('is not read if there is no space for its copy', async ({ skip }) => {
    const { file, path } = await backedUp()
    const disk = smallDisk(skip, '1m')
    fillDisk(disk)
    vi.stubEnv('TMPDIR', disk)
    onTestFinished(() => void vi.unstubAllEnvs())
    await expect(restoreLedger(file, path, BEGIN)).rejects.toMatchObject({
      code: 'LEDGER_UNREADABLE',
      message: `${file} cannot be read: ${disk} has no space for a copy; set TMPDIR to a directory with more space.`,
    })
    vi.stubEnv('TMPDIR', join(disk, 'missing'))
    await expect(restoreLedger(file, path, BEGIN)).rejects.toMatchObject({ code: 'LEDGER_UNREADABLE' })
  })

  it('is not made on a full disk', async ({ skip }) => {
    const { path } = await backedUp()
    const disk = smallDisk(skip, '1m')
    fillDisk(disk)
    const full = join(disk, 'backup.db')
    const message = `Cannot write ${full}: the disk is full (no space or no inodes).`
    await expect(backUpLedger(path, full)).rejects.toMatchObject({ code: 'OUTPUT_UNWRITABLE', message })
  })

  it('is not made of a ledger with a damaged table, also one that the verification does not read', async () => {
    const { directory, path } = await backedUp()
    damage(path, 'session')
    await expect(backUpLedger(path, join(directory, 'second.db'))).rejects.toMatchObject({
      code: 'DATABASE_CORRUPT',
      message: `${path}: database disk image is malformed`,
    })
  })

  it('is not made in a directory that does not exist', async () => {
    const { directory, path } = await backedUp()
    const missing = join(directory, 'missing', 'backup.db')
    const message = `Cannot write ${missing}: its directory does not exist.`
    await expect(backUpLedger(path, missing)).rejects.toMatchObject({ code: 'OUTPUT_UNWRITABLE', message })
  })

  it('names the problem of the path', async () => {
    const { directory, path } = await backedUp()
    const absent = join(directory, 'absent', 'backup.db')
    const refusals: readonly [to: string, reason: string][] = [
      [absent, 'its directory does not exist'],
      [directory, 'it is a directory'],
    ]
    for (const [to, reason] of refusals)
      await expect(backUpLedger(path, to)).rejects.toThrow(`Cannot write ${to}: ${reason}.`)
  })

  it('may itself have an undelivered range', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.fence()
    await journal.attach(9)
    await journal.close()
    const file = join(directory, 'backup.db')
    await backUpLedger(path, file)
    const other = temporaryDirectory()
    expect(await restoreLedger(file, join(other, 'journal.db'), BEGIN)).toMatchObject({ undelivered: 40 })
    expect(await undeliveredRangesIn(other)).toBe(40)
  })

  it('keeps the undelivered usage of the ledger, also when it is restored twice', async () => {
    const { directory, file, path } = await backedUp()
    expect(await restoreLedger(file, path, BEGIN)).toMatchObject({ undelivered: 100 })
    expect(await restoreLedger(file, path, BEGIN)).toMatchObject({ undelivered: 100 })
    expect(await inspectDatabase(path)).toMatchObject({ state: { backlog: 100 } })
    expect(await undeliveredRangesIn(directory)).toBe(100)
  })

  it.each([10, 20])(
    'is refused if it has %i other entries than the ledger: those of one would be lost',
    async (count) => {
      const { journal, path } = await deviceWithBacklog()
      await journal.close()
      const other = temporaryDirectory()
      copyFileSync(path, join(other, 'journal.db'))
      const copy = await journalIn(other)
      const entriesOfCopy = entries(61, count).map((each) => ({
        ...each,
        body: each.body.replace('}', ',"of":"copy"}'),
      }))
      await copy.append(entriesOfCopy, STAMP)
      const file = join(other, 'backup.db')
      await backUpLedger(join(other, 'journal.db'), file)
      await copy.close()
      const { directory } = await continued(path, 15)
      const refused = restoreLedger(file, path, BEGIN)
      await expect(refused).rejects.toMatchObject({ code: 'BACKUP_FOREIGN' })
      await expect(refused).rejects.toThrow('epoch 1')
      expect(await inspectDatabase(path)).toMatchObject({ state: { backlog: 55 } })
      const again = await journalIn(directory)
      const { seq } = await again.seal(SEAL)
      await again.acknowledge(seq, null, null)
      await again.close()
      expect(await restoreLedger(file, path, BEGIN)).toMatchObject({ undelivered: 40 + count, lost: 0 })
    },
  )

  it('is refused if the entries of the ledger follow others than its last one', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.close()
    const other = temporaryDirectory()
    copyFileSync(path, join(other, 'journal.db'))
    const copy = await journalIn(other)
    await copy.append([entry(61, [])], STAMP)
    const file = join(other, 'backup.db')
    await backUpLedger(join(other, 'journal.db'), file)
    await copy.close()
    await continued(path, 1)
    const delivering = await journalIn(directory)
    const { seq } = await delivering.seal(SEAL)
    await delivering.acknowledge(seq, null, null)
    await delivering.append(entries(62, 5), STAMP)
    await delivering.close()
    await expect(restoreLedger(file, path, BEGIN)).rejects.toMatchObject({ code: 'BACKUP_FOREIGN' })
  })

  it('leaves the end of an earlier epoch final if the ledger has delivered all before it', async () => {
    const { directory, file, path } = await backedUp()
    const journal = await journalIn(directory)
    const { seq } = await journal.seal(SEAL)
    await journal.acknowledge(seq, null, null)
    await journal.append(entries(121, 5), STAMP)
    await journal.fence()
    await journal.attach(9, { isWhole: true, cloudEnd: null })
    await journal.close()
    expect(await restoreLedger(file, path, BEGIN)).toMatchObject({ undelivered: 40 + 5, lost: 0 })
    const restored = await journalIn(directory)
    expect(await rangesOf(restored)).toEqual([
      { first: 21, count: 40, final: false },
      { first: 121, count: 5, final: true },
    ])
  })

  it('keeps the entries of a ledger if the backup has delivered later ones', async () => {
    const { journal, path } = await deviceWithBacklog()
    await journal.close()
    const other = temporaryDirectory()
    copyFileSync(path, join(other, 'journal.db'))
    const later = await continued(join(other, 'journal.db'), 40)
    const whole = join(other, 'whole.db')
    await backUpLedger(join(other, 'journal.db'), whole)
    const delivering = await journalIn(later.directory)
    const { seq } = await delivering.seal(SEAL)
    await delivering.acknowledge(seq, null, null)
    await delivering.append(entries(101, 10), STAMP)
    const file = join(other, 'backup.db')
    await backUpLedger(join(other, 'journal.db'), file)
    // An older image of the disk, which has served since.
    const { directory } = await continued(path, 5)
    const image = join(directory, 'image.db')
    await backUpLedger(path, image)
    await delivering.close()
    expect(await restoreLedger(file, path, BEGIN)).toMatchObject({ undelivered: 45 + 10, lost: 0 })
    const restored = await journalIn(directory)
    const delivered = [...entries(21, 45), ...entries(101, 10)].map(({ body }) => body)
    expect(await deliveredBy(restored)).toEqual(delivered)
    await restored.close()
    // The ledger has delivered entries that are later than all of the backup.
    expect(await restoreLedger(image, join(other, 'journal.db'), BEGIN)).toMatchObject({ undelivered: 55, lost: 0 })
    // One that has the entries between them.
    expect(await restoreLedger(whole, join(other, 'journal.db'), BEGIN)).toMatchObject({ undelivered: 90, lost: 0 })
    expect(await undeliveredRangesIn(other)).toBe(90)
  })

  it('keeps the readable usage of a damaged ledger, as a salvage does', async () => {
    const { directory, file, path } = await backedUp()
    damage(path)
    expect(await restoreLedger(file, path, BEGIN)).toMatchObject({ undelivered: 100, lost: 0 })
    expect(await undeliveredRangesIn(directory)).toBe(100)
  })

  it.each(['empty', 'missing'])('keeps the usage in the log of a ledger whose database is %s', async (kind) => {
    const { directory, journal, path } = await deviceWithBacklog()
    const file = join(directory, 'backup.db')
    await backUpLedger(path, file)
    await journal.append(entries(61, 60), STAMP)
    const left = join(temporaryDirectory(), 'journal.db')
    copyFileSync(`${path}-wal`, `${left}-wal`)
    if (kind === 'empty') writeFileSync(left, '')
    await journal.close()
    const { undelivered, replaced } = await restoreLedger(file, left, BEGIN)
    expect(undelivered).toBe(100)
    expect(existsSync(replaced ?? '')).toBe(true)
    expect(await undeliveredRangesIn(dirname(left))).toBe(100)
  })

  it('says that an empty ledger may have had more', async () => {
    const { file, path } = await backedUp()
    writeFileSync(path, '')
    expect(await restoreLedger(file, path, BEGIN)).toMatchObject({ undelivered: 40, lost: null })
  })

  it('gives the stored responses that a damaged ledger does not, so that a retry is not charged twice', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    const answered = (n: number, session: string, request: number) => ({
      ...entry(n, [{ account: A, amount: 3n }]),
      idempotencyRecord: { session, n: request, requestHash: 'hash', answer: `answer ${n}`, policyRevision: 1 },
    })
    await journal.append([answered(61, 'one', 1), answered(62, 'other', 1)], STAMP)
    const file = join(directory, 'backup.db')
    await backUpLedger(path, file)
    await journal.append([answered(63, 'one', 2)], STAMP)
    await journal.close()
    const responses = async () => {
      const restored = await journalIn(directory)
      const { idempotencyCache } = await restored.read()
      await restored.close()
      return idempotencyCache.map(({ session, n }) => `${session} ${n}`)
    }
    await restoreLedger(file, path, BEGIN)
    expect(await responses()).toEqual(['other 1', 'one 2'])
    damage(path)
    await restoreLedger(file, path, BEGIN)
    expect(await responses()).toEqual(['one 1', 'other 1'])
  })

  it('replaces a ledger with a damaged head, which proves none of its entries', async () => {
    const { directory, file, path } = await backedUp()
    const database = new Database(path)
    database.exec("UPDATE state SET acked_head = 'damaged'")
    database.close()
    expect(await restoreLedger(file, path, BEGIN)).toMatchObject({ undelivered: 40, lost: 60 })
    expect(await undeliveredRangesIn(directory)).toBe(40)
  })

  it('reports usage that is in neither the damaged ledger nor the backup', async () => {
    const { directory, file, path } = await backedUp()
    damage(path, 'block')
    expect(await restoreLedger(file, path, BEGIN)).toMatchObject({ undelivered: 40, lost: 60 })
    expect(await undeliveredRangesIn(directory)).toBe(40)
    writeFileSync(path, 'no database '.repeat(2_000))
    expect(await restoreLedger(file, path, BEGIN)).toMatchObject({ undelivered: 40, lost: null })
  })

  it('is not undone by a salvage that was not finished', async () => {
    const { directory, file, path } = await backedUp()
    const other = temporaryDirectory()
    const broken = 'no database '.repeat(2_000)
    writeFileSync(join(other, 'journal.db'), broken)
    await (await journalIn(other)).close()
    renameSync(join(other, 'journal.db'), `${path}.salvaged`)
    writeFileSync(path, broken)
    const { replaced } = await restoreLedger(file, path, BEGIN)
    expect(replaced).not.toBeNull()
    expect(existsSync(`${path}.salvaged`)).toBe(false)
    // The one that was damaged is beside it, not over the one that had its name.
    expect(readdirSync(directory).filter((name) => name.startsWith('journal.db.damaged-'))).toHaveLength(1)
    expect(await undeliveredRangesIn(directory)).toBe(40)
  })

  it('waits until the blocks of the ledger are closed, but may itself have some', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.appendWriteBehind([], [{ account: A, usedUpTo: 5_000n }], STAMP, false)
    const file = join(directory, 'backup.db')
    await backUpLedger(path, file)
    await journal.close()
    await expect(restoreLedger(file, path, BEGIN)).rejects.toMatchObject({ code: 'RESERVATION_OPEN' })
    expect(await inspectDatabase(path)).toMatchObject({ state: { open_reservations: 1 } })
    expect(await undeliveredRangesIn(directory)).toBe(0)
    const again = await journalIn(directory)
    expect((await again.read()).openReservations.get(A)).toBe(5_000n)
    await again.appendWriteBehind([], [{ account: A, usedUpTo: 180n }], STAMP, false)
    await again.close()
    expect(await restoreLedger(file, path, BEGIN)).toMatchObject({ undelivered: 40, lost: 0 })
  })
})
