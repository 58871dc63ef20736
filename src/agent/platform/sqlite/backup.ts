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
import { scratchAt } from '../../../platform/scratch.ts'
import { copyConsistently } from './consistent-snapshot.ts'
import { flushDirectoryOf, refusalOf } from './open-database.ts'
import { readLedgerCopy } from './read-ledger.ts'
import { requireIntegrity } from './require-integrity.ts'

export interface BackedUp extends Pick<LedgerBundle, 'deviceId' | 'state'> {
  readonly verification: Verification
}

/** Files that {@link copyLedger} makes, and its caller removes. */
export interface LedgerCopy {
  readonly path: string
  readonly to: string
  readonly folder: string
  /** Beside `to`, if the folder is in another directory; otherwise null. */
  readonly partial: string | null
}

/**
 * Writes the ledger's content at one moment during the call to a single file, replacing it at the end. Needs space for
 * two copies in the directory of `to`. Root makes them in the directory for temporary files, if `to` is in that of another
 * user, who could put links in their place.
 *
 * @param path the agent's database; the agent may run
 * @param copy calls {@link copyLedger}, also in another process
 * @throws CodedError LEDGER_UNREADABLE, DATABASE_CORRUPT, DATABASE_NEWER, OUTPUT_UNWRITABLE
 */
export async function backUpLedger(
  path: string,
  to: string,
  copy: (files: LedgerCopy) => Promise<BackedUp> = copyLedger,
): Promise<BackedUp> {
  // A short name: with a suffix, the name of `to` can be too long.
  const partial = isOfOtherUser(dirname(to)) ? join(dirname(to), `.tallygate-backup-${randomUUID()}`) : null
  const place = partial === null ? dirname(to) : tmpdir()
  const folder = atPlace(
    () => {
      refuseDirectory(to)
      return mkdtempSync(join(place, '.tallygate-backup-'))
    },
    (cause) => unwritable({ to, folder: join(place, 'folder'), partial }, cause),
  )
  const files = partial === null ? [folder] : [folder, partial]
  const areGone = files.map(scratchAt)
  try {
    return await copy({ path, to, folder, partial })
  } finally {
    for (const file of files) rmSync(file, { recursive: true, force: true })
    for (const isGone of areGone) isGone()
  }
}

/** @throws CodedError as {@link backUpLedger} */
export async function copyLedger({ path, ...files }: LedgerCopy): Promise<BackedUp> {
  const { to, folder, partial } = files
  const coded = (cause: unknown): CodedError => unwritable(files, cause)
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
      atPlace(
        () => database.exec(`VACUUM INTO '${whole.replaceAll("'", "''")}'`),
        (cause) => damageOf(cause, path) ?? coded(cause),
      )
    } finally {
      database.close()
    }
    requireIntegrity(whole, path)
    atPlace(() => {
      chmodSync(whole, 0o600)
      flush(whole)
      if (partial !== null) {
        // Through no link: a new file replaces the other one.
        copyFileSync(whole, partial, constants.COPYFILE_EXCL)
        flush(partial)
      }
      renameSync(partial ?? whole, to)
      flushDirectoryOf(to)
    }, coded)
    return backedUp
  } catch (error) {
    throw lacksSpace(error, join(folder, 'backup.db')) ? coded(error) : error
  }
}

function unwritable({ to, folder, partial }: Omit<LedgerCopy, 'path'>, cause: unknown): CodedError {
  const place = dirname(folder)
  const isFull = lacksSpace(cause, join(place, 'backup.db'))
  const where = partial !== null && isFull ? ` (copies are made in ${place}; TMPDIR can name another directory)` : ''
  const reason = isFull && isFailedWrite(cause) ? DISK_OR_QUOTA_FULL : unwritableReason(cause)
  return new CodedError('OUTPUT_UNWRITABLE', `Cannot write ${to}: ${reason}${where}.`, { cause })
}

/** In a table that the verification does not read. */
function damageOf(cause: unknown, path: string): CodedError | null {
  const refusal = refusalOf(cause, path)
  return refusal instanceof CodedError && refusal.code === 'DATABASE_CORRUPT' ? refusal : null
}

/** Than root, who runs this command. */
function isOfOtherUser(directory: string): boolean {
  const owner = statSync(directory, { throwIfNoEntry: false })
  return process.geteuid?.() === 0 && owner !== undefined && owner.uid !== 0
}

function atPlace<T>(work: () => T, coded: (cause: unknown) => CodedError): T {
  try {
    return work()
  } catch (cause) {
    throw coded(cause)
  }
}
