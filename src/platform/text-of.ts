import { readFileSync } from 'node:fs'

/** Null if the file cannot be read. */
export function textOf(path: string): string | null {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return null
  }
}
