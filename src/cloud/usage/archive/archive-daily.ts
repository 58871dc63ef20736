/** Archives what is older than the retention: once a day, by one of the nodes. After a failure, once an hour. */
import { CodedError } from '../../../protocol/errors.ts'
import { type ArchiveUsageDeps, archiveUsage } from './archive-usage.ts'
import type { ArchivePlace } from './place.ts'

const DAY_MS = 86_400_000
const RETRY_MS = 3_600_000

export interface ArchiveDailyDeps extends Omit<ArchiveUsageDeps, 'place' | 'holder' | 'isStopping'> {
  /** Read at each run. Null: the usage is kept in the store. */
  readonly terms: () => { readonly retentionMs: number; readonly place: string } | null
  /** @throws CodedError CONFIG_INVALID */
  readonly open: (place: string, signal: AbortSignal) => ArchivePlace
  readonly newHolder: () => string
  readonly trustsClock: () => boolean
  readonly onState: (state: ArchiveState) => void
}

export interface ArchiveState {
  /** When a run of any node last archived everything that was due, POSIX ms; null: never. */
  readonly finishedAt: number | null
  readonly failed: boolean
}

export class ArchiveDaily {
  readonly #deps: ArchiveDailyDeps
  readonly #stopping = new AbortController()
  #failedAt: number | null = null

  constructor(deps: ArchiveDailyDeps) {
    this.#deps = deps
  }

  /** @throws CodedError of {@link archiveUsage} */
  async step(): Promise<void> {
    const { store, terms, now, onState } = this.#deps
    const due = terms()
    if (due === null || this.#stopping.signal.aborted) return
    try {
      if (await this.#isDue(now())) await this.#run(due)
    } finally {
      const { finishedAt } = await store.read((reader) => reader.usageArchives.archiving())
      onState({ finishedAt, failed: this.#failedAt !== null })
    }
  }

  /** Ends a run between two steps. */
  stop(): void {
    this.#stopping.abort()
  }

  async #isDue(at: number): Promise<boolean> {
    const { store, trustsClock } = this.#deps
    if (!trustsClock()) return false
    if (this.#failedAt !== null && Math.abs(at - this.#failedAt) < RETRY_MS) return false
    const { finishedAt } = await store.read((reader) => reader.usageArchives.archiving())
    return finishedAt === null || Math.abs(at - finishedAt) >= DAY_MS
  }

  async #run({ retentionMs, place }: { readonly retentionMs: number; readonly place: string }): Promise<void> {
    const { open, newHolder, now, ...deps } = this.#deps
    const { signal } = this.#stopping
    const run = { ...deps, now, place: open(place, signal), holder: newHolder(), isStopping: () => signal.aborted }
    try {
      await archiveUsage(run, now() - retentionMs)
      this.#failedAt = null
    } catch (error) {
      // Another node archives, or this one stops: the next run continues.
      if (signal.aborted || (error instanceof CodedError && error.code === 'ARCHIVE_IN_USE')) return
      this.#failedAt = now()
      throw error
    }
  }
}
