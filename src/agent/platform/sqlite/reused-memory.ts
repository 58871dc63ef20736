const KEPT_BYTES_MAX = 1024 * 1024

/**
 * A buffer that is reused, because buffers hardly make the garbage collector run. More than 1 MiB is not kept.
 * @returns a function that returns a part of this length, valid until the next call
 */
export function reusedMemory(): (length: number) => Buffer {
  let kept = Buffer.alloc(0)
  return (length) => {
    if (length > KEPT_BYTES_MAX) return Buffer.allocUnsafe(length)
    if (length > kept.length) kept = Buffer.alloc(Math.min(2 * length, KEPT_BYTES_MAX))
    return kept.subarray(0, length)
  }
}
