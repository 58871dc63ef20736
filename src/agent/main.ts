/** Runs an agent from loading its settings to its end. */
import { type Overrides, composeAgent } from './compose.ts'
import type { AgentSettings } from './settings.ts'

export interface AgentProcess {
  /** Reads all sources of the settings. @throws CodedError */
  readonly load: () => AgentSettings
  /** Aborts to stop the agent. */
  readonly stop: AbortSignal
  /** Registers a listener for reload requests. */
  readonly onReload: (listener: () => void) => void
}

/**
 * Runs the agent until the signal aborts, then drains. The caller handles process signals.
 *
 * @throws CodedError if it cannot start or had to end by itself
 */
export async function runAgent(
  { load, stop, onReload }: AgentProcess,
  surroundings: Pick<Overrides, 'supervisor' | 'passedSocket'> = {},
): Promise<void> {
  const wish = {
    early: false,
    reload: (): void => {
      wish.early = true
    },
  }
  onReload(() => wish.reload())
  const agent = await composeAgent(load(), surroundings)
  wish.reload = () => agent.reload(load)
  if (wish.early) wish.reload()
  const drain = (): void => void agent.stop()
  if (stop.aborted) drain()
  else stop.addEventListener('abort', drain, { once: true })
  await agent.ended
}
