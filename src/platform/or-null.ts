/** Null if `read` throws: its source may be missing or unreadable. */
export function orNull<T>(read: () => T): T | null {
  try {
    return read()
  } catch {
    return null
  }
}
