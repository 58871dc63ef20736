/**
 * A disk: the journal's real tables in memory, to be copied, restored and wiped. Commits are atomic and survive power
 * cuts in sequence. The disk can be full, and a flush can fail.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import type { Batch } from '../../src/agent/platform/sqlite/batch.ts'
import type { JournalLimits } from '../../src/agent/platform/sqlite/journal-file.ts'
import { type JournalCall, JournalHandler } from '../../src/agent/platform/sqlite/journal-handler.ts'
import { JournalStore } from '../../src/agent/platform/sqlite/journal-store.ts'
import { openDatabase } from '../../src/agent/platform/sqlite/open-database.ts'
import type { NewSegment } from '../../src/agent/ledger/journal.ts'
import type { LeftLog } from '../../src/agent/ledger/volatile-log.ts'
import { openOrSalvage } from '../../src/agent/platform/sqlite/salvage-journal.ts'
import { withEntryTable } from './entry-table.ts'

export type Damage = 'FILE' | 'ENTRY' | 'COUNTERS'

/** A call of the journal that took effect, and what the audit checks of it. */
export type Effect =
  | { readonly name: 'append'; readonly entries: Batch['entries'] }
  | { readonly name: 'acknowledge'; readonly args: Parameters<JournalStore['acknowledge']> }
  | { readonly name: 'attach' | 'storeSeal' }

/** The empty journal of every new device. */
let empty: Buffer | undefined

function emptyJournal(): Buffer {
  if (empty !== undefined) return empty
  const folder = mkdtempSync(join(tmpdir(), 'tallygate-sim-'))
  try {
    const database = openDatabase(join(folder, 'journal.db'))
    database.pragma('locking_mode = NORMAL')
    database.pragma('journal_mode = DELETE')
    // Few, so that folds are frequent.
    database.exec('DELETE FROM slot WHERE n >= 8')
    empty = database.serialize()
    database.close()
    return empty
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

export class Disk {
  database!: Database.Database
  /** Only the disk reserve can be written. */
  full = false
  diskReserve = true
  /** Of the last call; null: it failed, or has none that is audited. */
  effect: Effect | null = null

  constructor(image: Buffer = emptyJournal()) {
    this.#load(image)
  }

  image(): Buffer {
    return this.database.serialize()
  }

  put(image: Buffer): void {
    this.database.close()
    this.#load(image)
  }

  wipe(): void {
    this.put(emptyJournal())
    this.diskReserve = true
  }

  /**
   * Damages a part of the disk; the product replaces it with what it can salvage.
   * @param left the volatile log left by the previous process of this boot
   * @returns false if there is nothing to damage in this way
   */
  damage(damage: Damage, limits: JournalLimits, left: LeftLog | undefined): boolean {
    const folder = mkdtempSync(join(tmpdir(), 'tallygate-sim-'))
    try {
      const path = join(folder, 'journal.db')
      writeFileSync(path, this.image())
      if (!spoil(path, damage)) return false
      const log = left === undefined ? null : { log: left, bootId: left.bootId }
      openOrSalvage({ path, limits, later: [], left: log }, 0).close()
      const salvaged = new Database(path)
      salvaged.pragma('journal_mode = DELETE')
      this.put(salvaged.serialize())
      salvaged.close()
      return true
    } finally {
      rmSync(folder, { recursive: true, force: true })
    }
  }

  close(): void {
    this.database.close()
  }

  /** Runs a call, and what is due after it. */
  run(handler: JournalHandler, call: JournalCall): Error | null {
    this.effect = null
    const error = handler.run(call)
    handler.answered()
    return error
  }

  #load(image: Buffer): void {
    this.database = new Database(image)
    this.database.defaultSafeIntegers(true)
    this.database.pragma('foreign_keys = ON')
  }
}

/** The product's handler and store over a disk. */
export function handlerOn(disk: Disk, path: string, limits: JournalLimits): JournalHandler {
  return new JournalHandler({
    path,
    open: () => new StoreOnDisk(disk, limits),
    diskReserve: {
      fill: () => (disk.diskReserve ||= !disk.full),
      release: () => {
        const was = disk.diskReserve
        disk.diskReserve = false
        return was
      },
    },
  })
}

class StoreOnDisk extends JournalStore {
  readonly #disk: Disk

  constructor(disk: Disk, limits: JournalLimits) {
    super(disk.database, limits)
    this.#disk = disk
  }

  override append(batch: Batch): string {
    this.#needRoom(batch.answered)
    const head = super.append(batch)
    this.#disk.effect = { name: 'append', entries: batch.entries }
    return head
  }

  override saveClock(...args: Parameters<JournalStore['saveClock']>): void {
    this.#needRoom(false)
    super.saveClock(...args)
  }

  override storeSeal(document: string): NewSegment {
    this.#needRoom(true)
    const sealed = super.storeSeal(document)
    this.#disk.effect = { name: 'storeSeal' }
    return sealed
  }

  override acknowledge(...args: Parameters<JournalStore['acknowledge']>): void {
    this.#needRoom(true)
    super.acknowledge(...args)
    this.#disk.effect = { name: 'acknowledge', args }
  }

  override attach(...args: Parameters<JournalStore['attach']>): void {
    this.#needRoom(true)
    super.attach(...args)
    this.#disk.effect = { name: 'attach' }
  }

  override close(): void {
    // The database outlives the process.
  }

  #needRoom(hasDiskReserve: boolean): void {
    const { full, diskReserve } = this.#disk
    if (full && !(hasDiskReserve && !diskReserve))
      throw new Database.SqliteError('database or disk is full', 'SQLITE_FULL')
  }
}

function spoil(path: string, damage: Damage): boolean {
  if (damage === 'FILE') {
    writeFileSync(path, 'what stood here cannot be read any more')
    return true
  }
  const database = new Database(path)
  try {
    if (damage === 'COUNTERS') {
      database.exec('DROP TABLE account')
      return true
    }
    // In the middle of the undelivered ones.
    const sql = `DELETE FROM entry WHERE id = (
      SELECT entry_base + acked_entry + (last_entry - acked_entry + 1) / 2 FROM state WHERE last_entry > acked_entry)`
    return withEntryTable(database, () => database.prepare(sql).run().changes > 0)
  } finally {
    database.close()
  }
}
