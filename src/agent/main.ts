/** From settings to a running agent, and to the end of it. */
import { type Overrides, composeAgent } from './compose.ts'
import type { AgentSettings } from './settings.ts'

export interface AgentProcess {
  /** Reads all sources of the settings. @throws CodedError */
  readonly load: () => AgentSettings
  /** Aborted when the agent is asked to stop. */
  readonly stop: AbortSignal
  /** Hears of each wish to reload the settings from here on. */
  readonly onReload: (listener: () => void) => void
}

/**
 * Runs the agent until the signal asks it to stop; then it drains. Signals of the process are the caller's.
 *
 * @throws CodedError when it cannot start, or had to end by itself
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
