/** Names come from requesters: characters that control a terminal or change the text direction become escapes. */
import type { Output } from './io.ts'

// oxlint-disable-next-line no-control-regex -- control characters are intended here
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g

export function harmless(text: string): string {
  return text.replace(UNSEEN, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

export function writeLines(output: Output, lines: readonly string[]): void {
  output.write(linesText(lines))
}

export function linesText(lines: readonly string[]): string {
  return lines.map((line) => `${harmless(line)}\n`).join('')
}

/** The number itself if no date can show it. */
export function instantText(instant: number | null): string {
  if (instant === null) return 'never'
  const date = new Date(instant)
  return Number.isNaN(date.getTime()) ? String(instant) : date.toISOString()
}

export function counted(count: number, one: string, many: string): string {
  return `${count} ${count === 1 ? one : many}`
}

export function columns(given: readonly (readonly string[])[]): readonly string[] {
  const rows = given.map((row) => row.map(harmless))
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0))) ?? []
  return rows.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd(),
  )
}

/** @param empty the sentence in place of a table without rows */
export function table(head: readonly string[], rows: readonly (readonly string[])[], empty: string): readonly string[] {
  return rows.length === 0 ? [empty] : columns([head, ...rows])
}

/** One line of JSON. Micro-token amounts become integer strings; terminal control characters are escaped. */
export function jsonLine(value: unknown): string {
  return harmless(JSON.stringify(value, (_key, part: unknown) => (typeof part === 'bigint' ? String(part) : part)))
}
