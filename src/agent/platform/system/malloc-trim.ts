/** Returns free memory of the C library to the system. Only glibc has such a call; elsewhere it does nothing. */
import koffi from 'koffi'

export function openMallocTrim(): () => void {
  try {
    const call = koffi.load(null).func('int malloc_trim(size_t pad)') as (pad: number) => number
    return () => void call(0)
  } catch {
    return () => undefined
  }
}
