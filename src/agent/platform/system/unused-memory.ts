/** What a process can do without: free memory of the C library, and pages of its program, which the kernel maps again when used. */
import { readFileSync } from 'node:fs'
import koffi from 'koffi'
import { orNull } from '../../../platform/or-null.ts'

const MADV_DONTNEED = 4

/** Beginning and end, in hexadecimal digits. */
type Range = readonly [from: string, to: string]

/**
 * Returns a function that gives such memory back to the system. Where the system is not Linux, or its C library is not
 * glibc, it does less.
 */
export function openUnusedMemory(): () => void {
  const trim = callOf('int malloc_trim(size_t pad)')
  const advise = callOf('int madvise(uintptr_t from, size_t bytes, int advice)')
  return () => {
    trim?.(0)
    const map = orNull(() => readFileSync('/proc/self/smaps', 'latin1')) ?? ''
    for (const [from, to] of programRanges(map, process.execPath)) {
      const start = BigInt(`0x${from}`)
      advise?.(start, BigInt(`0x${to}`) - start, MADV_DONTNEED)
    }
  }
}

/**
 * Parts of a file that a process cannot write and has not changed: code and constants. The kernel maps a page of them again
 * when it is used, from its cache or from the file.
 *
 * @param map text of `/proc/PID/smaps`
 * @param program path of the file. Not a library: another thread may be loading it, which changes its ranges
 */
export function programRanges(map: string, program: string): readonly Range[] {
  return map.split(/^(?=[0-9a-f]+-)/m).flatMap((mapping) => {
    const [, from, to, file] = /^([0-9a-f]+)-([0-9a-f]+) r-[x-]p \S+ \S+ \d+ +(\/.*)$/m.exec(mapping) ?? []
    // A changed page that is swapped out is not counted as anonymous.
    const isUnchanged = /^Anonymous: +0 kB$/m.test(mapping) && /^Swap: +0 kB$/m.test(mapping)
    return from === undefined || to === undefined || file !== program || !isUnchanged ? [] : [[from, to]]
  })
}

/** Null where the C library lacks it. */
function callOf(signature: string): ((...values: (number | bigint)[]) => number) | null {
  return orNull(() => koffi.load(null).func(signature))
}
