/** Records the last good backup beside the database, for status, doctor and monitoring. */
import { randomUUID } from 'node:crypto'
import { rmSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { LAST_BACKUP_FILE, type LastBackup } from '../protocol/local/last-backup.ts'
import { unwritableReason } from '../protocol/file-reasons.ts'
import { actAsOwnerOf } from '../platform/act-as-owner-of.ts'
import { replaceFile } from '../platform/replace-file.ts'

/** Returns a message for the user, or null: a failure does not affect the backup. */
export function noteBackup(database: string, file: string, now: number): string | null {
  const directory = dirname(database)
  const note: LastBackup = { at: now, file: resolve(file).replaceAll(/\p{C}/gu, '?') }
  const partial = join(directory, `.${LAST_BACKUP_FILE}.${randomUUID()}`)
  try {
    using _rights = actAsOwnerOf(directory)
    replaceFile(join(directory, LAST_BACKUP_FILE), `${JSON.stringify(note)}\n`, partial)
    return null
  } catch (error) {
    rmSync(partial, { force: true })
    const reason = unwritableReason(error)
    return `The backup is good, but its time could not be recorded in ${directory}: ${reason}. Status and doctor will not show this backup.`
  }
}
