/**
 * What `tallygate backup`, or `tallygate cloud backup`, leaves beside the database that it has copied: when the last good copy was
 * made, and where it was put. It says nothing about where that copy is by then.
 */
import { z } from 'zod'
import { parseJson } from '../parse-json.ts'
import { instant, plainText } from '../wire.ts'

/** Beside the database. */
export const LAST_BACKUP_FILE = 'last-backup.json'

/** Of such a file, bytes: what is longer is none. */
export const LAST_BACKUP_BYTES_MAX = 16 * 1024

export const lastBackup = z.strictObject({
  /** POSIX ms by the clock of the machine. */
  at: instant,
  file: plainText(4_096),
})
export type LastBackup = z.infer<typeof lastBackup>

/** Null for anything else: it is told, and decides nothing. */
export function parseLastBackup(text: string): LastBackup | null {
  const parsed = lastBackup.safeParse(parseJson(text))
  return parsed.success ? parsed.data : null
}
