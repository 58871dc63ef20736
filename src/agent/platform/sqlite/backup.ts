/** Backup of a ledger while the agent runs. */
import { randomUUID } from 'node:crypto'
import { chmodSync, constants, copyFileSync, mkdtempSync, renameSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import Database from 'better-sqlite3'
import { CodedError } from '../../../protocol/errors.ts'
import { unwritableReason } from '../../../protocol/file-reasons.ts'
import { DISK_OR_QUOTA_FULL, isFailedWrite, lacksSpace } from '../../../platform/disk-space.ts'
import type { LedgerBundle } from '../../../protocol/local/ledger-bundle.ts'
import { flush } from '../../../platform/flush.ts'
import { refuseDirectory } from '../../../platform/refuse-directory.ts'
import { type Verification, verifyLedger } from '../../ledger/verify-ledger.ts'
import { scratchAt } from '../system/scratch.ts'
import { copyConsistently } from './consistent-snapshot.ts'
import { flushDirectoryOf } from './open-database.ts'
import { readLedgerCopy } from './read-ledger.ts'
import { requireIntegrity } from './require-integrity.ts'

export interface BackedUp extends Pick<LedgerBundle, 'deviceId' | 'state'> {
  readonly verification: Verification
}

/**
 * Writes the ledger's content at one moment during the call to a single file, replacing it at the end. Needs space for
 * two copies in the directory of `to`. Root makes them in the directory for temporary files, if `to` is in that of another
 * user, who could put links in their place.
 *
 * @param path the agent's database; the agent may run
 * @throws CodedError LEDGER_UNREADABLE, DATABASE_CORRUPT, DATABASE_NEWER, OUTPUT_UNWRITABLE
 */
export async function backUpLedger(path: string, to: string): Promise<BackedUp> {
  const isOfOther = isOfOtherUser(dirname(to))
  const place = isOfOther ? tmpdir() : dirname(to)
  const unwritable = (cause: unknown): CodedError => {
    const isFull = lacksSpace(cause, join(place, 'backup.db'))
    const where = isOfOther && isFull ? ` (copies are made in ${place}; TMPDIR can name another directory)` : ''
    const reason = isFull && isFailedWrite(cause) ? DISK_OR_QUOTA_FULL : unwritableReason(cause)
    return new CodedError('OUTPUT_UNWRITABLE', `Cannot write ${to}: ${reason}${where}.`, { cause })
  }
  atPlace(() => refuseDirectory(to), unwritable)
  const folder = atPlace(() => mkdtempSync(join(place, '.tallygate-backup-')), unwritable)
  const isGone = scratchAt(folder)
  try {
    const [copy, whole] = [join(folder, 'journal.db'), join(folder, 'backup.db')]
    await copyConsistently(path, copy)
    const backedUp = await readLedgerCopy(copy, path, async (ledger): Promise<BackedUp> => {
      const { deviceId, state } = ledger
      return { deviceId, state, verification: await verifyLedger(ledger) }
    })
    const database = new Database(copy)
    try {
      // SQL literal: quotes are doubled.
      atPlace(() => database.exec(`VACUUM INTO '${whole.replaceAll("'", "''")}'`), unwritable)
    } finally {
      database.close()
    }
    requireIntegrity(whole, path)
    atPlace(() => {
      chmodSync(whole, 0o600)
      flush(whole)
      if (isOfOther) copyInto(whole, to)
      else renameSync(whole, to)
      flushDirectoryOf(to)
    }, unwritable)
    return backedUp
  } catch (error) {
    throw lacksSpace(error, join(folder, 'backup.db')) ? unwritable(error) : error
  } finally {
    rmSync(folder, { recursive: true, force: true })
    isGone()
  }
}

/** Than root, who runs this command. */
function isOfOtherUser(directory: string): boolean {
  const owner = statSync(directory, { throwIfNoEntry: false })
  return process.geteuid?.() === 0 && owner !== undefined && owner.uid !== 0
}

/** Through no link: a new file replaces the other one. */
function copyInto(from: string, to: string): void {
  const partial = `${to}.${randomUUID()}.partial`
  try {
    copyFileSync(from, partial, constants.COPYFILE_EXCL)
    flush(partial)
    renameSync(partial, to)
  } catch (error) {
    rmSync(partial, { force: true })
    throw error
  }
}

function atPlace<T>(work: () => T, coded: (cause: unknown) => CodedError): T {
  try {
    return work()
  } catch (cause) {
    throw coded(cause)
  }
}
