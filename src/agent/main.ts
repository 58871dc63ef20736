/** From settings to a running agent, and to the end of it. */
import { type Overrides, composeAgent } from './compose.ts'
import type { AgentSettings } from './settings.ts'

/**
 * Runs the agent until the signal asks it to stop; then it drains. SIGTERM is the caller's: it aborts the signal.
 *
 * @throws CodedError when it cannot start, or had to end by itself
 */
export async function runAgent(
  settings: AgentSettings,
  stop: AbortSignal,
  surroundings: Pick<Overrides, 'supervisor' | 'passedSocket'> = {},
): Promise<void> {
  const agent = await composeAgent(settings, surroundings)
  const drain = (): void => void agent.stop()
  if (stop.aborted) drain()
  else stop.addEventListener('abort', drain, { once: true })
  await agent.ended
}
