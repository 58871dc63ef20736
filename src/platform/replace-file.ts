import { renameSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { flush } from './flush.ts'

/**
 * Writes a file that only its owner can read: a power cut leaves the old or the new one.
 * @param partial beside it, written first
 */
export function replaceFile(path: string, text: string, partial = `${path}.new`): void {
  writeFileSync(partial, text, { mode: 0o600, flush: true })
  renameSync(partial, path)
  flush(dirname(path))
}
