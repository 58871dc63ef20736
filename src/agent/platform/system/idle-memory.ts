/** V8 keeps the size of its heap until an allocation needs more, and the C library keeps what was freed. */
import { getHeapStatistics } from 'node:v8'
import { type Timers, repeat } from '../../runtime/timers.ts'

/** From this time after the start, ms, most of the code that it ran is not used again. */
const STARTED_MS = 50

const LOOK_EVERY_MS = 5_000

/** Processor time of all threads between two looks, ms, below which the process is idle. */
export const IDLE_MS_MAX = 100

/** Growth of the heap, bytes, that justifies the pause of a collection. */
export const GROWTH_MIN = 4 * 2 ** 20

export interface IdleMemoryDeps {
  readonly timers: Timers
  /** Used by all threads since the start, ms. */
  readonly processorMs: () => number
  readonly heapBytes: () => number
  readonly release: () => void
}

/** Releases memory at the first idle look, and whenever the heap has grown since. Returns a function that stops it. */
export function releaseWhenIdle({ timers, processorMs, heapBytes, release }: IdleMemoryDeps): () => void {
  let seenMs = processorMs()
  let releasedAt = 0
  return repeat(timers, LOOK_EVERY_MS, () => {
    const before = seenMs
    seenMs = processorMs()
    if (seenMs - before >= IDLE_MS_MAX || heapBytes() - releasedAt < GROWTH_MIN) return
    release()
    releasedAt = heapBytes()
  })
}

/** Releases memory after the start and, with `--expose-gc`, whenever idle. @param giveBack releases memory outside of the heap */
export function releaseIdleMemory(timers: Timers, giveBack: () => void): () => void {
  const cancel = timers.after(STARTED_MS, giveBack)
  const collect = globalThis.gc
  if (collect === undefined) return cancel
  const stop = releaseWhenIdle({
    timers,
    processorMs: () => {
      const { user, system } = process.cpuUsage()
      return (user + system) / 1_000
    },
    heapBytes: () => getHeapStatistics().total_physical_size,
    release: () => {
      collect({ type: 'major', flavor: 'last-resort', execution: 'sync' })
      giveBack()
    },
  })
  return () => {
    cancel()
    stop()
  }
}
