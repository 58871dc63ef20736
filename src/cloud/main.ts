import { setFlagsFromString } from 'node:v8'
import { CodedError } from '../protocol/errors.ts'
import { type Cloud, startCloud } from './compose.ts'
import type { CloudSettings } from './settings.ts'

export interface CloudProcess {
  /** Reads all sources of the settings. @throws CodedError */
  readonly load: () => CloudSettings
  readonly stop: AbortSignal
  readonly onReload: (listener: () => void) => void
}

/**
 * Runs the cloud until the signal aborts. The caller handles the signals of the process.
 * @throws CodedError when it cannot start, or stopped because of a failure
 */
export async function runCloud(
  { load, stop, onReload }: CloudProcess,
  supervisor?: { ready(): void; stopping(): void },
): Promise<void> {
  // By default, the heap grows to a multiple of what is in use while devices deliver: see benchmarks.md.
  setFlagsFromString('--heap-growing-percent=40')
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
    // Stopped before it served: nothing to release.
    if (stop.aborted && error instanceof CodedError && error.code === 'STOPPING') return
    throw error
  }
  supervisor?.ready()
  wish.reload = () => cloud.reload(load)
  if (wish.early) wish.reload()
  const drain = (): void => {
    void cloud.close()
    supervisor?.stopping()
  }
  if (stop.aborted) drain()
  else stop.addEventListener('abort', drain, { once: true })
  await cloud.ended
}
