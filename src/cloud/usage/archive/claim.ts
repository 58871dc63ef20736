/** The claim of the one process that archives. A claim that was not renewed for a while passes to the next process. */
import { CodedError } from '../../../protocol/errors.ts'
import type { Store, Transaction } from '../../storage/store.ts'

/** How long a process that archives may be silent before another one takes over, ms. One call of a place fits in it. */
export const ARCHIVER_SILENT_MS_MAX = 180_000

const RENEW_EVERY_MS = 10_000

export interface ArchiveClaimDeps {
  readonly store: Pick<Store, 'transaction'>
  /** Unique name of this run, for people. */
  readonly holder: string
  readonly now: () => number
}

export class ArchiveClaim {
  readonly #deps: ArchiveClaimDeps
  #seenAt: number

  private constructor(deps: ArchiveClaimDeps, seenAt: number) {
    this.#deps = deps
    this.#seenAt = seenAt
  }

  /** @throws CodedError ARCHIVE_IN_USE */
  static async take(deps: ArchiveClaimDeps): Promise<ArchiveClaim> {
    const { store, holder, now } = deps
    const at = now()
    const other = await store.transaction(async (tx) => {
      if (await tx.usageArchives.claim(holder, at, ARCHIVER_SILENT_MS_MAX)) return null
      return tx.usageArchives.archiving()
    })
    if (other !== null) throw inUse(other.holder, other.seenAt)
    return new ArchiveClaim(deps, at)
  }

  /** Until the transaction ends, no process can take over. @throws CodedError ARCHIVE_IN_USE if one has */
  async transaction<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    const { store, holder, now } = this.#deps
    const at = now()
    const result = await store.transaction(async (tx) => {
      if (!(await tx.usageArchives.renew(holder, at))) {
        const { holder: other, seenAt } = await tx.usageArchives.archiving()
        throw inUse(other, seenAt)
      }
      return work(tx)
    })
    this.#seenAt = at
    return result
  }

  /** Until now, no process has taken over. @throws CodedError ARCHIVE_IN_USE if one has */
  async check(): Promise<void> {
    await this.transaction(async () => undefined)
  }

  /** Call it often during long work. @throws CodedError ARCHIVE_IN_USE if another process has taken over */
  async renew(): Promise<void> {
    if (Math.abs(this.#deps.now() - this.#seenAt) >= RENEW_EVERY_MS) await this.check()
  }

  /** @param finishedAt null: not everything that was due is archived */
  async release(finishedAt: number | null): Promise<void> {
    const { store, holder } = this.#deps
    await store.transaction((tx) => tx.usageArchives.release(holder, finishedAt))
  }
}

function inUse(holder: string | null, seenAt: number): CodedError {
  const until = new Date(seenAt + ARCHIVER_SILENT_MS_MAX).toISOString()
  return new CodedError(
    'ARCHIVE_IN_USE',
    `${holder ?? 'Another process'} archives the usage. If it has ended without notice, another process can archive after ${until}.`,
  )
}
