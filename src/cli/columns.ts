import { harmless } from './lines.ts'

/** Formats rows as aligned columns. */
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
