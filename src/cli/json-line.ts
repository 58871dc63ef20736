/** One line of JSON. Micro-token amounts become integer strings; terminal control characters are escaped. */
import { harmless } from './lines.ts'

export function jsonLine(value: unknown): string {
  return harmless(JSON.stringify(value, (_key, part: unknown) => (typeof part === 'bigint' ? String(part) : part)))
}
