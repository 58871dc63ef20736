/** The known word closest to a probable typing error; undefined if none is close. */
export function nearest(word: string, known: Iterable<string>): string | undefined {
  let best: string | undefined
  // Of a short word, at least one letter must remain.
  let bestDistance = Math.min(word.length, Math.max(2, Math.floor(word.length / 3)) + 1)
  for (const candidate of known) {
    const distance = edits(word.toLowerCase(), candidate.toLowerCase())
    if (distance < bestDistance) [best, bestDistance] = [candidate, distance]
  }
  return best
}

/** Damerau-Levenshtein distance. */
function edits(from: string, to: string): number {
  let before: number[] = []
  let last = Array.from({ length: to.length + 1 }, (_, column) => column)
  for (let row = 1; row <= from.length; row++) {
    const line = [row]
    for (let column = 1; column <= to.length; column++) {
      const same = from[row - 1] === to[column - 1]
      const swapped = row > 1 && column > 1 && from[row - 1] === to[column - 2] && from[row - 2] === to[column - 1]
      line[column] = Math.min(
        at(last, column) + 1,
        at(line, column - 1) + 1,
        at(last, column - 1) + (same ? 0 : 1),
        swapped ? at(before, column - 2) + 1 : Infinity,
      )
    }
    ;[before, last] = [last, line]
  }
  return at(last, to.length)
}

function at(line: readonly number[], column: number): number {
  return line[column] ?? Infinity
}
