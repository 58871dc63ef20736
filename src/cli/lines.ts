/**
 * Lines for a person, as every command writes them. Names come from whoever asked for something, and a terminal obeys what
 * it is told: a character that would move its cursor, end a line or turn the direction of the text is shown by its number.
 */
import type { Output } from './io.ts'

/** Control characters, separators of lines, and what changes the direction of what follows. */
// oxlint-disable-next-line no-control-regex -- control characters are what this is about
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g

/** The text with nothing in it that a terminal would obey. */
export function harmless(text: string): string {
  return text.replace(UNSEEN, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

/** @param lines without their ends */
export function writeLines(output: Output, lines: readonly string[]): void {
  output.write(linesText(lines))
}

/** @param lines without their ends */
export function linesText(lines: readonly string[]): string {
  return lines.map((line) => `${harmless(line)}\n`).join('')
}
