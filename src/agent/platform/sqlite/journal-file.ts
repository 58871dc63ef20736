/**
 * The file of the journal: its transactions, the space that entries may use, checkpoints of its log, and the return of free
 * space to the file system.
 */
import { statSync } from 'node:fs'
import type Database from 'better-sqlite3'
import { sizeInWords } from '../../../core/accounts/in-words.ts'
import { hasSpace, lacksSpace } from '../../../platform/disk-space.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { type JournalStatements, statementsOf } from './journal-statements.ts'
import { PAGE_BYTES } from './open-database.ts'

/**
 * Frames of the write-ahead log that trigger a checkpoint: 2 MiB. Checkpoints block calls: longer logs mean longer waits,
 * shorter logs more flushes. The reserved disk space must cover the log and the next segment.
 */
const CHECKPOINT_FRAMES = 2_000

/** In an idle moment, a checkpoint runs from this many frames on, so that callers rarely meet one. */
const IDLE_CHECKPOINT_FRAMES = 1_000

/** Free pages to keep so that the next writes need not grow the file: 1 MiB. */
const FREE_PAGES_KEPT = 1024n

/** Pages freed per step, 512 KiB; bounds how long a call can wait. */
const SHRINK_PAGES = 512n

/** Truncate the write-ahead log above this size when idle: a little more than a checkpoint leaves, which is reused. */
const LOG_BYTES_KEPT = 2.25 * 1024 * 1024

export interface JournalLimits {
  readonly pagesMax: number
  /** Extra pages for seals, acknowledgements and cleanup, which must succeed on a full disk. */
  readonly diskReservePages: number
  /** At most SEGMENT_ENTRIES_MAX of the protocol. */
  readonly segmentEntriesMax: number
  readonly retentionMs: number
  readonly retainedBytesMax: number
  /** Application sessions of each caller whose last response is kept. */
  readonly answersMax: number
  readonly recentEntries: number
  readonly pastRulesBytesMax: number
}

export class JournalFile {
  readonly database: Database.Database
  /**
   * Whether the reserved disk space exists. While it does not, free database pages replace it: entries may not use the
   * last of them, and only undelivered data is kept.
   */
  hasDiskReserve = true
  /** Whether there are commits that the caller has to flush: {@link JournalFile.leaveFlushes}. */
  hasUnflushed = false
  /** The file gets shorter only by a checkpoint. */
  #hasShrunk = false
  readonly #limits: Pick<JournalLimits, 'pagesMax' | 'diskReservePages'>
  readonly #statements: JournalStatements
  readonly #transaction: Database.Transaction<(work: () => unknown) => unknown>
  /** Sets the page limit for entries; the other statement sets the limit for final deliveries. */
  readonly #allowPages: Database.Statement
  readonly #allowPagesAndDiskReserve: Database.Statement

  constructor(database: Database.Database, limits: Pick<JournalLimits, 'pagesMax' | 'diskReservePages'>) {
    const { pagesMax, diskReservePages } = limits
    this.database = database
    this.#limits = limits
    this.#statements = statementsOf(database)
    this.#transaction = database.transaction((work: () => unknown) => work())
    this.#allowPages = database.prepare(`PRAGMA max_page_count = ${pagesMax}`)
    this.#allowPagesAndDiskReserve = database.prepare(`PRAGMA max_page_count = ${pagesMax + diskReservePages}`)
    this.#allowPages.get()
  }

  /**
   * From now on the caller flushes the write-ahead log after each call that commits, before it answers. Checkpoints of SQLite
   * flush the log first.
   */
  leaveFlushes(): void {
    this.database.pragma('synchronous = NORMAL')
  }

  transact<T>(work: () => T): T {
    this.hasUnflushed = true
    return this.#transaction.immediate(work) as T
  }

  /** Runs work that must succeed on a full disk with the reserved pages. */
  withDiskReserve<T>(work: () => T): T {
    this.#allowPagesAndDiskReserve.get()
    try {
      return work()
    } finally {
      this.#allowPages.get()
    }
  }

  /** @throws CodedError NOT_RECORDED if entries would use space reserved for final deliveries, in the file or on the disk */
  refuseDiskReserve(): void {
    const limit = BigInt(this.#limits.pagesMax)
    if (this.#pages() > limit && this.pagesInUse() > limit) {
      throw new CodedError('NOT_RECORDED', 'the ledger is full')
    }
    if (!this.hasDiskReserve && this.#freePages() < BigInt(this.#limits.diskReservePages)) {
      const reserve = sizeInWords(this.#limits.diskReservePages * PAGE_BYTES)
      throw new CodedError('NOT_RECORDED', `the disk is full: ${reserve} must be free (state.disk_reserve)`)
    }
  }

  pagesInUse(): bigint {
    return this.#pages() - this.#freePages()
  }

  #pages(): bigint {
    return this.#statements.pages.get() as bigint
  }

  #freePages(): bigint {
    return this.#statements.freePages.get() as bigint
  }

  /**
   * One step towards shrinking the file. False when there is nothing (more) to do. While the reserved disk space is missing,
   * twice as many free pages and the log are kept instead.
   */
  shrink(): boolean {
    let isMore = false
    // A full disk may lack the space for it; a later step retries.
    this.ifSpace(() => {
      const kept = this.hasDiskReserve ? FREE_PAGES_KEPT : FREE_PAGES_KEPT + 2n * BigInt(this.#limits.diskReservePages)
      const free = this.#freePages()
      const over = free - kept
      if (over > 0n) {
        this.database.pragma(`incremental_vacuum(${over < SHRINK_PAGES ? over : SHRINK_PAGES})`)
        this.hasUnflushed = true
        this.#hasShrunk = true
        // A file created without auto_vacuum cannot shrink; its free pages are reused.
        isMore = this.#freePages() < free
      }
      if (!isMore && this.hasDiskReserve && this.logBytes > LOG_BYTES_KEPT) this.truncateLog()
    })
    return isMore
  }

  isCheckpointDue(): boolean {
    return this.#logFrames() >= CHECKPOINT_FRAMES
  }

  isIdleCheckpointDue(): boolean {
    return this.#hasShrunk || this.#logFrames() >= IDLE_CHECKPOINT_FRAMES
  }

  /** Frames of the log that no checkpoint has copied. */
  #logFrames(): bigint {
    const [, frames = 0n, copied = 0n] = this.#statements.checkpointSize.get() as readonly bigint[]
    return frames - copied
  }

  get logBytes(): number {
    return statSync(`${this.database.name}-wal`, { throwIfNoEntry: false })?.size ?? 0
  }

  truncateLog(): void {
    if (this.#canCheckpoint()) this.ifSpace(() => this.#statements.truncateLog.get())
  }

  /** A checkpoint without its flushes: the log must be flushed before it, and the database before the next call. */
  copyLog(): void {
    this.database.pragma('synchronous = OFF')
    try {
      if (this.checkpoint()) this.#hasShrunk = false
    } finally {
      this.leaveFlushes()
    }
  }

  /** On a full disk, each attempt would write the pages that have space. */
  #canCheckpoint(): boolean {
    const path = this.database.name
    const growth = Number(this.#pages()) * PAGE_BYTES - (statSync(path, { throwIfNoEntry: false })?.size ?? 0)
    return growth <= 0 || hasSpace(path, growth)
  }

  /**
   * True if the whole log was copied. Copies nothing unless the disk has space for all of it: each attempt would write a part. A
   * failed flush is fatal as in a commit: a second one could succeed without the pages on disk.
   */
  checkpoint(): boolean {
    if (!this.#canCheckpoint()) return false
    let isWhole = false
    this.ifSpace(() => {
      const { log, checkpointed } = this.#statements.checkpoint.get() as { log: bigint; checkpointed: bigint }
      isWhole = log === checkpointed
    })
    return isWhole
  }

  /** Runs work that may wait while the disk is full. */
  ifSpace(work: () => void): void {
    try {
      work()
    } catch (error) {
      if (!lacksSpace(error, this.database.name)) throw error
    }
  }
}
