// A disk that outlives the process: the journal's real store in SQLite in memory. The
// process can end right after any commit, and writes can be refused.
import { entryBody, type EntryBody, SEGMENT_ENTRIES_MAX } from '../../src/protocol/edge/sync.ts'
import { type JournalOptions, openJournal } from '../../src/agent/platform/sqlite/journal.ts'
import type { Batch } from '../../src/agent/platform/sqlite/batch.ts'
import type { JournalLimits } from '../../src/agent/platform/sqlite/journal-file.ts'
import type { JournalCall } from '../../src/agent/platform/sqlite/journal-handler.ts'
import type { StartRunner } from '../../src/agent/platform/sqlite/journal-runner.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import { JournalStore } from '../../src/agent/platform/sqlite/journal-store.ts'
import type { Journal, Snapshot } from '../../src/agent/ledger/journal.ts'
import { Disk, handlerOn } from '../../sim/device/disk.ts'
import { folded } from '../../sim/device/entry-table.ts'
import { flushFailed } from '../../sim/device/journal-runner.ts'
import { JOURNAL_LIMITS } from './harness.ts'

export type DurableEntry = EntryBody & { readonly epoch: number }

const READS: ReadonlySet<JournalCall['name']> = new Set([
  ...(['read', 'recent', 'sealed', 'sealedEarlier', 'proofs', 'prepareSeal', 'findStep', 'close'] as const),
])

const PATH = '/journal.db'

export class TestDisk extends Disk {
  /** Every entry that ever became durable, over all epochs. */
  readonly history: DurableEntry[] = []
  commits = 0
  /** The process ends right after this many commits; Infinity: never. */
  commitsUntilCrash = Infinity
  /** The next writes are refused, as by a full disk. */
  refusals = 0
  segmentEntriesMax = SEGMENT_ENTRIES_MAX
  /** The process that has the disk; another one has no effect any more. */
  #process: object = {}
  readonly #limits: JournalLimits

  constructor(image?: Buffer) {
    super(image)
    const entriesMax = (): number => this.segmentEntriesMax
    this.#limits = {
      ...JOURNAL_LIMITS,
      get segmentEntriesMax() {
        return entriesMax()
      },
    }
  }

  open(options: Pick<JournalOptions, 'sign' | 'now' | 'onBroken'>): Promise<Journal> {
    const log = { info: () => undefined, warn: () => undefined }
    return openJournal({ ...options, path: PATH, limits: this.#limits, log }, this.#runner)
  }

  /** The process is gone: its calls are neither carried out nor answered. */
  detach(): void {
    this.#process = {}
  }

  /** What a process would find that starts now. */
  read(): Snapshot {
    return folded(this.database, () => new JournalStore(this.database, this.#limits).read())
  }

  /** Runs SQL on what the process left. */
  change(sql: string, ...values: readonly unknown[]): void {
    this.database.prepare(sql).run(...values)
  }

  copy(): TestDisk {
    const copy = new TestDisk(this.image())
    copy.history.push(...this.history)
    return copy
  }

  /** Counts a commit. True: the process ends right after it. */
  committed(): boolean {
    this.commits += 1
    this.commitsUntilCrash -= 1
    if (this.commitsUntilCrash > 0) return false
    this.commitsUntilCrash = Infinity
    return true
  }

  readonly #runner: StartRunner = ({ path, limits }) => {
    const handler = handlerOn(this, path, limits)
    const process = {}
    this.#process = process
    const run = (call: JournalCall): Error | null => {
      const isWrite = !READS.has(call.name)
      if (isWrite && this.refusals > 0) {
        this.refusals -= 1
        return new CodedError('NOT_RECORDED', 'the disk is full')
      }
      const error = this.run(handler, call)
      if (!isWrite || error !== null) return error
      if (this.effect?.name === 'append') this.#record(this.effect.entries)
      return this.committed() ? flushFailed(path) : null
    }
    return {
      post: (call) => {
        queueMicrotask(() => {
          if (this.#process === process) call.done(run(call))
        })
      },
    }
  }

  #record(entries: Batch['entries']): void {
    const epoch = Number(this.database.prepare('SELECT epoch FROM state').pluck().get())
    for (const { body } of entries) {
      this.history.push({ ...entryBody.parse(JSON.parse(body)), epoch })
    }
  }
}
