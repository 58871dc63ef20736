import type { Timers } from '../../runtime/timers.ts'

/** Longest timeout that Node supports; longer waits are shortened to it. */
const LONGEST_MS = 2 ** 31 - 1

export const systemTimers: Timers = {
  after(ms, call) {
    const timer = setTimeout(call, Math.min(ms, LONGEST_MS))
    return () => clearTimeout(timer)
  },
}

/** Resolves after `ms`, or once the signal aborts. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted === true) {
      resolve()
      return
    }
    const end = (): void => {
      cancel()
      signal?.removeEventListener('abort', end)
      resolve()
    }
    const cancel = systemTimers.after(ms, end)
    signal?.addEventListener('abort', end, { once: true })
  })
}
