/** How deep a JSON value nests: parsing has no limit of its own, and whatever is recursive after it has. */

/** Deeper than any document of the APIs; shallow enough for every recursive function. */
export const JSON_DEPTH_MAX = 64

/** Looks level by level, so that it has no limit itself. */
export function isDeeperThan(root: unknown, levels: number): boolean {
  let level: unknown[] = [root]
  for (let depth = 0; level.length > 0; depth += 1) {
    if (depth > levels) return true
    level = level.flatMap((value) =>
      typeof value === 'object' && value !== null ? (Object.values(value) as unknown[]) : [],
    )
  }
  return false
}
