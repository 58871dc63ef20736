/** From settings to a running agent, and to the end of it. */
import { type Agent, type Overrides, composeAgent } from './compose.ts'
import type { AgentSettings } from './settings.ts'

/**
 * Starts the agent; resolves when it listens.
 *
 * @throws CodedError when the state, the key or the socket cannot be used; a cloud that is out of reach is no reason
 */
async function startAgent(settings: AgentSettings, overrides: Overrides = {}): Promise<Agent> {
  return composeAgent(settings, overrides)
}

/**
 * Runs the agent until the signal asks it to stop. SIGTERM is the caller's: it aborts the signal.
 *
 * @throws CodedError when it cannot start, or had to end by itself
 */
export async function runAgent(settings: AgentSettings, stop: AbortSignal): Promise<void> {
  const agent = await startAgent(settings)
  const drain = (): void => void agent.stop()
  if (stop.aborted) drain()
  else stop.addEventListener('abort', drain, { once: true })
  await agent.ended
}
