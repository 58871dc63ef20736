/** Notes beside a database when and where its last good backup was made, for status, doctor and monitoring. */
import { randomUUID } from 'node:crypto'
import { closeSync, fchownSync, fsyncSync, openSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { LAST_BACKUP_FILE, type LastBackup } from '../protocol/local/last-backup.ts'

/**
 * The note belongs to whom the directory belongs to. The backup is good without it too: what keeps it from being written is told.
 *
 * @returns what the person should know; null for nothing
 */
export function noteBackup(database: string, file: string, now: number): string | null {
  const directory = dirname(database)
  const note: LastBackup = { at: now, file: resolve(file).replaceAll(/\p{C}/gu, '?') }
  // A name that nobody can have prepared: root writes here into a directory of somebody else.
  const partial = join(directory, `.${LAST_BACKUP_FILE}.${randomUUID()}`)
  try {
    const { uid, gid } = statSync(directory)
    const handle = openSync(partial, 'wx', 0o600)
    try {
      if (process.getuid?.() === 0) fchownSync(handle, uid, gid)
      writeFileSync(handle, `${JSON.stringify(note)}\n`)
      fsyncSync(handle)
    } finally {
      closeSync(handle)
    }
    renameSync(partial, join(directory, LAST_BACKUP_FILE))
    return null
  } catch (error) {
    rmSync(partial, { force: true })
    const reason = error instanceof Error ? error.message : String(error)
    return `The backup is good; that it was made could not be noted in ${directory}, so status and doctor do not know of it: ${reason}`
  }
}
