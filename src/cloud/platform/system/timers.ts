/** Process timers. */
import type { Timers } from '../../runtime/run-repeatedly.ts'

export const systemTimers: Timers = {
  every(ms, call) {
    const timer = setInterval(() => void call(), ms)
    return () => clearInterval(timer)
  },
}
