/** Columns of text. The first row names them. @param left number of left-aligned columns; the others are right-aligned */
export function table(rows: readonly (readonly string[])[], left: number): string {
  return aligned(rows, left)
    .map((row) => row.join('  ').trimEnd())
    .join('\n')
}

/** The same as Markdown. */
export function markdown(rows: readonly (readonly string[])[], left: number): string {
  const [head = [], ...body] = aligned(rows, left)
  const rule = head.map((cell, column) => (column < left ? '-'.repeat(cell.length) : `${'-'.repeat(cell.length - 1)}:`))
  return [head, rule, ...body].map((row) => `| ${row.join(' | ')} |`).join('\n')
}

function aligned(rows: readonly (readonly string[])[], left: number): readonly (readonly string[])[] {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(3, ...rows.map((row) => row[column]?.length ?? 0)))
  return rows.map((row) =>
    row.map((cell, column) => (column < left ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0))),
  )
}
