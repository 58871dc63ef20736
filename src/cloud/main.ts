/** From settings to a running twin, and to the end of it. */
import { startCloud } from './compose.ts'
import type { CloudSettings } from './settings.ts'

/**
 * Runs the twin until the signal asks it to stop. SIGTERM is the caller's: it aborts the signal.
 *
 * @throws CodedError when it cannot start, or had to end by itself
 */
export async function runCloud(
  settings: CloudSettings,
  stop: AbortSignal,
  supervisor?: { ready(): void; stopping(): void },
): Promise<void> {
  const cloud = await startCloud(settings)
  supervisor?.ready()
  const drain = (): void => {
    supervisor?.stopping()
    void cloud.close()
  }
  if (stop.aborted) drain()
  else stop.addEventListener('abort', drain, { once: true })
  await cloud.ended
}
