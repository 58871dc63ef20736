import { UNSEEN } from '../html/unseen.ts'
import type { Output } from './io.ts'

/** Names come from requesters: unseen characters become escapes, as in JSON. */
export function harmless(text: string): string {
  return text.replace(UNSEEN, (char) =>
    char.replace(/./gs, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`),
  )
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

const NARROW = /^[\u0020-\u02ff]*$/

/** East Asian scripts and emoji, which terminals show in two columns. */
const WIDE =
  /\p{Emoji_Presentation}|\uFE0F|[\u1100-\u115F\u2E80-\u303E\u3041-\uA4CF\uA960-\uA97C\uAC00-\uD7A3\uF900-\uFAFF\uFE30-\uFE6F\uFF01-\uFF60\uFFE0-\uFFE6]|[\u{1B000}-\u{1B2FF}\u{20000}-\u{3FFFD}]/u

const graphemes = new Intl.Segmenter()

/** Columns of a terminal. */
function widthOf(text: string): number {
  if (NARROW.test(text)) return text.length
  let width = 0
  for (const { segment } of graphemes.segment(text)) {
    if (WIDE.test(segment)) width += 2
    else if (!/^[\p{M}\p{Default_Ignorable_Code_Point}]+$/u.test(segment)) width += 1
  }
  return width
}

/** Longer cells, such as a long name, move only the rest of the row. Key ids have 43 characters. */
const WIDTH_MAX = 48

const GAP = '  '

/** A column is cut only if as many characters of it are left. */
const CUT_MIN = 16

/** @param widthMax wider rows are cut, and the last columns left out, but never the first two */
export function columns(given: readonly (readonly string[])[], widthMax = Infinity): readonly string[] {
  const rows = given.map((row) => row.map(harmless))
  const widths = rows[0]?.map((_, column) => widthOfColumn(rows, column)) ?? []
  const shown = Math.max(2, columnsWithin(widths, widthMax))
  return rows.map((row) => {
    const cells = row.map((cell, column) => cell + ' '.repeat(Math.max(0, (widths[column] ?? 0) - widthOf(cell))))
    const [least = '', line = ''] = [2, shown].map((count) => cells.slice(0, count).join(GAP).trimEnd())
    if (widthOf(line) <= widthMax) return line
    return widthOf(least) < widthMax ? cut(line, widthMax) : least
  })
}

function columnsWithin(widths: readonly number[], widthMax: number): number {
  let left = widthMax + GAP.length
  for (const [column, width] of widths.entries()) {
    if (left < GAP.length + Math.min(width, CUT_MIN)) return column
    left -= GAP.length + width
  }
  return widths.length
}

function cut(line: string, widthMax: number): string {
  let shown = ''
  for (const { segment } of graphemes.segment(line)) {
    if (widthOf(shown + segment) >= widthMax) break
    shown += segment
  }
  return `${shown.trimEnd()}…`
}

function widthOfColumn(rows: readonly (readonly string[])[], column: number): number {
  return rows.reduce((widest, row) => {
    const width = widthOf(row[column] ?? '')
    return width <= WIDTH_MAX ? Math.max(widest, width) : widest
  }, 0)
}

/** @param empty the sentence in place of a table without rows */
export function table(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  empty: string,
  widthMax?: number,
): readonly string[] {
  return rows.length === 0 ? [empty] : columns([head, ...rows], widthMax)
}

/** One line of JSON. Micro-token amounts become integer strings; terminal control characters are escaped. */
export function jsonLine(value: unknown): string {
  return harmless(JSON.stringify(value, (_key, part: unknown) => (typeof part === 'bigint' ? String(part) : part)))
}
