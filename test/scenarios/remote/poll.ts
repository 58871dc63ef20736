/** For what other processes do in their own time. */
import { setTimeout as pause } from 'node:timers/promises'

/** Asks until it is so; the time limit of the test ends what never is. */
export async function poll<T>(look: () => Promise<T>, isSo: (seen: T) => boolean, signal?: AbortSignal): Promise<T> {
  for (;;) {
    const seen = await look()
    if (isSo(seen)) return seen
    await pause(10, undefined, { signal })
  }
}
