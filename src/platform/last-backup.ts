import { lstatSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import {
  LAST_BACKUP_BYTES_MAX,
  LAST_BACKUP_FILE,
  type LastBackup,
  parseLastBackup,
} from '../protocol/local/last-backup.ts'
import { orNull } from './or-null.ts'

export function readLastBackup(directory: string): LastBackup | null {
  const path = join(directory, LAST_BACKUP_FILE)
  return orNull(() => {
    const found = lstatSync(path)
    return found.isFile() && found.size <= LAST_BACKUP_BYTES_MAX ? parseLastBackup(readFileSync(path, 'utf8')) : null
  })
}
