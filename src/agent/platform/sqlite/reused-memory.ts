const KEPT_BYTES_MAX = 1024 * 1024

/**
 * Memory that is used again and again, because the garbage collector hardly sees buffers. Longer pieces than 1 MiB are not kept.
 * @returns a function for a piece of a length, which is valid until its next call
 */
export function reusedMemory(): (length: number) => Buffer {
  let kept = Buffer.alloc(0)
  return (length) => {
    if (length > KEPT_BYTES_MAX) return Buffer.allocUnsafe(length)
    if (length > kept.length) kept = Buffer.alloc(Math.min(2 * length, KEPT_BYTES_MAX))
    return kept.subarray(0, length)
  }
}
