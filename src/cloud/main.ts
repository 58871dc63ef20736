/** From settings to a running twin, and to the end of it. */
import { CodedError } from '../protocol/errors.ts'
import { type Cloud, startCloud } from './compose.ts'
import type { CloudSettings } from './settings.ts'

export interface CloudProcess {
  /** Reads all sources of the settings. @throws CodedError */
  readonly load: () => CloudSettings
  /** Aborted when the twin is asked to stop. */
  readonly stop: AbortSignal
  /** Hears of each wish to reload the settings from here on. */
  readonly onReload: (listener: () => void) => void
}

/**
 * Runs the twin until the signal asks it to stop. Signals of the process are the caller's.
 *
 * @throws CodedError when it cannot start, or had to end by itself
 */
export async function runCloud(
  { load, stop, onReload }: CloudProcess,
  supervisor?: { ready(): void; stopping(): void },
): Promise<void> {
  const wish = {
    early: false,
    reload: (): void => {
      wish.early = true
    },
  }
  onReload(() => wish.reload())
  let cloud: Cloud
  try {
    cloud = await startCloud(load(), { stop })
  } catch (error) {
    // It was told to stop before it served: there is nothing to let go of.
    if (stop.aborted && error instanceof CodedError && error.code === 'STOPPING') return
    throw error
  }
  supervisor?.ready()
  wish.reload = () => cloud.reload(load)
  if (wish.early) wish.reload()
  const drain = (): void => {
    supervisor?.stopping()
    void cloud.close()
  }
  if (stop.aborted) drain()
  else stop.addEventListener('abort', drain, { once: true })
  await cloud.ended
}
