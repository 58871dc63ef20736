/**
 * Commits of entries. They go into slots, which costs one page for a commit of a few entries; a fold moves many of them into the
 * tables. Everything else reads and writes tables only, so its transactions fold first. What a commit checks is in memory.
 */
import type { AccountId } from '../../../core/accounts/account.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { RecentOfEach } from '../../access/idempotency-cache.ts'
import { BLOCK_ENTRIES, UnstoredEntries } from './entry-blocks.ts'
import { encodeTexts, headAfter } from './entry-texts.ts'
import type { Batch } from './batch.ts'
import type { JournalFile } from './journal-file.ts'
import { type AccountRow, type JournalStatements, type StateRow, statementsOf } from './journal-statements.ts'
import {
  fold,
  type PendingBatch,
  PendingChanges,
  type PendingToFold,
  readAnswerSlots,
  readPending,
  recordOf,
} from './pending-batches.ts'
import { type PlacedRecord, Slots } from './slots.ts'

/** The length of the log is read after this many slots. */
const LOOK_EVERY_SLOTS = 50

/** Pending entries that trigger a fold after the response: whole blocks. */
const PENDING_ENTRIES = 4 * BLOCK_ENTRIES

/** A commit of this many entries goes into blocks at once: writing them to slots first would save nothing. */
const LARGE_ENTRIES = 192

const COUNTER_MAX = 2n ** 63n - 1n

type Transact = <T>(work: () => T) => T

/** What a commit checks without reading rows: current while nothing but commits happens. */
interface Current {
  readonly isOpen: boolean
  readonly lastEntry: number
  readonly head: string
  /** Accounts as the pending commits leave them. */
  readonly accounts: Map<AccountId, AccountRow>
}

export class PendingCommits {
  readonly #file: JournalFile
  readonly #statements: JournalStatements
  readonly #answersMax: number
  /** Slot of the answer of each application session; used ones are contiguous. */
  #answerSlots: RecentOfEach<number>
  readonly #slots: Slots
  /** Of the commits that are only in slots, and their entries. */
  #pending = new PendingChanges()
  #unstored = new UnstoredEntries()
  /** Of the slots that the next commits fill. */
  #generation: number
  #current: Current | null = null
  /** `hasDiskReserve` when the disk last had space for entries. Null: unknown. Commits in slots take no space. */
  #hadSpaceWith: boolean | null = null
  /** Slots written since the length of the log was last read. */
  #slotsWritten = 0

  /** Folds what an earlier process left in slots. @param answersMax stored responses of each caller */
  constructor(file: JournalFile, answersMax: number) {
    const { database } = file
    this.#file = file
    this.#statements = statementsOf(database)
    this.#answersMax = answersMax
    this.#answerSlots = readAnswerSlots(database, answersMax)
    this.#slots = new Slots(database)
    this.#generation = Number(this.#state().slot_generation)
    const { changes, entries, damage } = readPending(database)
    if (damage !== null) throw new Error(`the pending entries are damaged: ${damage}`)
    this.#pending = changes
    this.#unstored = entries
    this.fold()
  }

  /** Returns the hash chain head of the epoch. @throws CodedError NOT_RECORDED */
  append(batch: Batch): string {
    const current = (this.#current ??= this.#readCurrent())
    const { firstN, entries, moves, answers, sessions, reservations, answered, stamp } = batch
    const count = entries.length
    const nextN = count === 0 ? firstN : current.lastEntry + 1
    if (firstN > nextN) throw new CodedError('NOT_RECORDED', 'an entry before it was not recorded')
    if (firstN < nextN) throw new Error('invariant: entries are numbered without gaps')
    if (!current.isOpen) throw new Error('invariant: the epoch is open')
    const accounts = this.#moved(current, batch)
    const texts = encodeTexts(entries)
    const head = headAfter(current.head, texts)
    const commit: PendingBatch = { firstN, moves, answers, sessions, reservations, stamp, count, head }
    const transact = <T>(work: () => T): T => {
      if (answered) return this.#file.withDiskReserve(() => this.#transact(work))
      return this.#transact(() => {
        const result = work()
        this.#file.refuseDiskReserve()
        return result
      })
    }
    const isSmall = count > 0 && count < LARGE_ENTRIES
    const placed = isSmall ? this.#placed(recordOf(commit, texts), transact) : null
    if (placed === null) {
      this.#foldNow(transact, { batch: commit, texts })
      return head
    }
    const { hasDiskReserve } = this.#file
    if (!answered && this.#hadSpaceWith !== hasDiskReserve) {
      this.#file.refuseDiskReserve()
      this.#hadSpaceWith = hasDiskReserve
    }
    this.#writeSlots(placed)
    this.#pending.add(commit)
    this.#unstored.add(texts)
    const known = (this.#current ??= this.#readCurrent())
    for (const row of accounts) known.accounts.set(row.id, row)
    this.#current = { ...known, lastEntry: current.lastEntry + count, head }
    return head
  }

  #writeSlots(placed: PlacedRecord): void {
    this.#file.hasUnflushed = true
    const write = (): void => this.#slots.write(placed, this.#generation)
    // A statement alone is a transaction.
    if (placed.slots === 1) write()
    else this.#transact(write)
    this.#slots.written(placed)
    this.#slotsWritten += placed.slots
  }

  /** Frees the slots if they are not enough. Null: it does not even fit into all of them. */
  #placed(record: Buffer, transact: Transact): PlacedRecord | null {
    const placed = this.#slots.fit(record)
    if (placed !== null || this.#pending.end === null) return placed
    this.#foldNow(transact)
    return this.#slots.fit(record)
  }

  #foldNow(transact: Transact, more?: PendingToFold['more']): void {
    transact(() => this.#fold(more))
    this.#afterFold()
  }

  #fold(more?: PendingToFold['more']): void {
    fold(this.#file.database, { changes: this.#pending, entries: this.#unstored, more }, this.#answerSlots)
  }

  #afterFold(): void {
    this.#generation = Number(this.#state().slot_generation)
    this.#hadSpaceWith = null
    this.#slotsWritten = Infinity
    this.#pending = new PendingChanges()
    this.#unstored.clear()
    this.#slots.clear()
    this.#current = null
  }

  #readCurrent(): Current {
    const { epoch, fenced, last_entry, entry_head } = this.#state()
    return {
      isOpen: epoch !== 0n && fenced === 0n,
      lastEntry: Number(last_entry),
      head: entry_head,
      accounts: new Map(),
    }
  }

  /** The accounts after a commit. @throws Error if one would break a constraint of its table */
  #moved({ accounts }: Current, { moves, reservations }: Pick<Batch, 'moves' | 'reservations'>): readonly AccountRow[] {
    const changed = new Map<AccountId, AccountRow>()
    const rowOf = (account: AccountId): AccountRow | undefined =>
      changed.get(account) ?? accounts.get(account) ?? (this.#statements.account.get(account) as AccountRow | undefined)
    for (const { account, used, refunded, burned, allowance } of moves) {
      const row = rowOf(account) ?? (allowance > 0n ? { ...NEW_ACCOUNT, id: account } : undefined)
      if (row === undefined) throw new Error(`invariant: ${account} is known`)
      changed.set(account, {
        ...row,
        used: row.used + used,
        refunded: row.refunded + refunded,
        burned: row.burned + burned,
        allowance: allowance > row.allowance ? allowance : row.allowance,
      })
    }
    for (const { account, usedUpTo } of reservations) {
      const row = rowOf(account)
      if (row === undefined) throw new Error(`invariant: ${account} is known`)
      changed.set(account, { ...row, reserved: usedUpTo })
    }
    for (const row of changed.values()) requireSound(row)
    return [...changed.values()]
  }

  /** Folds pending commits into the tables, if there are any. May use the reserved disk space. */
  fold(): void {
    if (this.#pending.end !== null) this.runWithDiskReserve(() => undefined)
  }

  /** Folds pending commits and runs work that must succeed on a full disk, in one transaction. */
  runWithDiskReserve<T>(work: () => T): T {
    return this.#file.withDiskReserve(() => this.run(work))
  }

  /** Folds pending commits and runs work, in one transaction. */
  run<T>(work: () => T): T {
    const result = this.#transact(() => {
      this.#fold()
      return work()
    })
    this.#afterFold()
    return result
  }

  #transact<T>(work: () => T): T {
    try {
      return this.#file.transact(work)
    } catch (error) {
      this.#answerSlots = readAnswerSlots(this.#file.database, this.#answersMax)
      throw error
    }
  }

  /**
   * One piece of work that is due after a call. Call it once the call was answered: then only the next caller waits, and never
   * for two of them. True: the next piece is a checkpoint.
   */
  tidyWhenDue(): boolean {
    if (this.#unstored.compressOne()) return false
    if (this.#unstored.count < PENDING_ENTRIES && !this.#slots.isLow) return this.#isCheckpointDue()
    this.#file.ifSpace(() => this.run(() => undefined))
    return false
  }

  #isCheckpointDue(): boolean {
    if (this.#slotsWritten < LOOK_EVERY_SLOTS) return false
    this.#slotsWritten = 0
    return this.#file.isCheckpointDue()
  }

  /** As the last fold left it. */
  #state(): StateRow {
    return this.#statements.state.get() as StateRow
  }
}

const NEW_ACCOUNT: Omit<AccountRow, 'id'> = {
  granted: 0n,
  used: 0n,
  refunded: 0n,
  returned: 0n,
  exhausted: 0n,
  unlimited: 0n,
  overdraft: 0n,
  reserved: 0n,
  allowance: 0n,
  burned: 0n,
  sealed_used: 0n,
  sealed_refunded: 0n,
  sealed_returned: 0n,
}

/** As the constraints of the account table, which check it again at the fold. */
function requireSound({ id, ...row }: AccountRow): void {
  const { granted, used, refunded, returned, unlimited, allowance, burned } = row
  const top = used > row.reserved ? used : row.reserved
  if (unlimited === 0n && top - refunded + returned > granted + allowance) {
    throw new Error(`invariant: ${id} is never overspent`)
  }
  if (refunded > used || burned > used) throw new Error(`invariant: ${id} has used what is refunded or burned`)
  if (used < 0n || refunded < 0n || burned < 0n || top > COUNTER_MAX || allowance > COUNTER_MAX) {
    throw new Error(`invariant: the counters of ${id} are within their range`)
  }
}
