const numbers = (version: string): readonly number[] | null =>
  /^\d+\.\d+\.\d+$/.test(version) ? version.split('.').map(Number) : null

/** Whether `version` is MAJOR.MINOR.PATCH and above `current`. */
export function newerVersion(version: string, current: string): boolean {
  const [next, now] = [numbers(version), numbers(current)]
  if (next === null || now === null) return false
  const at = next.findIndex((number, index) => number !== now[index])
  return at !== -1 && (next[at] ?? 0) > (now[at] ?? 0)
}

/** The changelog with the entries under "Unreleased" moved to a section of this version; null if there are none. */
export function dated(changelog: string, version: string, date: string): string | null {
  const [before, after] = changelog.split('## Unreleased\n')
  if (before === undefined || after === undefined) return null
  const [entries = ''] = after.split('\n## ')
  if (entries.trim() === '') return null
  return `${before}## Unreleased\n\n## ${version} (${date})\n${after}`
}
