/** Runs an agent from loading its settings to its end. */
import { type Overrides, composeAgent } from './compose.ts'
import type { AgentSettings } from './settings.ts'

export interface AgentProcess {
  readonly load: () => AgentSettings
  readonly stop: AbortSignal
  readonly onReload: (listener: () => void) => void
}

/** Until the signal aborts; then drains. @throws CodedError if the agent cannot start or had to end by itself */
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
