/** For what may not exist, or not be readable: null if `read` throws. */
export function orNull<T>(read: () => T): T | null {
  try {
    return read()
  } catch {
    return null
  }
}
