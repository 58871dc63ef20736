/** A value as one line of JSON; amounts of micro-tokens become integer text. A terminal finds nothing in it to obey. */
import { harmless } from './lines.ts'

export function jsonLine(value: unknown): string {
  return harmless(JSON.stringify(value, (_key, part: unknown) => (typeof part === 'bigint' ? String(part) : part)))
}
