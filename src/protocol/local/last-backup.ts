/** Note of `tallygate backup` and `tallygate cloud backup` beside the database. */
import { z } from 'zod'
import { parseJson } from '../parse-json.ts'
import { instant, plainText } from '../wire.ts'

export const LAST_BACKUP_FILE = 'last-backup.json'

export const LAST_BACKUP_BYTES_MAX = 16 * 1024

export const lastBackup = z.strictObject({
  at: instant,
  file: plainText(4_096),
})
export type LastBackup = z.infer<typeof lastBackup>

/** Null if invalid: the note is informative only. */
export function parseLastBackup(text: string): LastBackup | null {
  const parsed = lastBackup.safeParse(parseJson(text))
  return parsed.success ? parsed.data : null
}
