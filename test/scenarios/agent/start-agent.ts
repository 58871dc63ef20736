// A whole agent in this process, with real files and a real socket.
import { join } from 'node:path'
import { pino } from 'pino'
import { onTestFinished } from 'vitest'
import { type Agent, composeAgent } from '../../../src/agent/compose.ts'
import { agentOptions } from '../../../src/agent/settings.ts'
import { loadSettings } from '../../../src/settings/load.ts'

export interface AgentPlace {
  /** Its state is in `state`, its socket is `agent.sock`. */
  readonly directory: string
  readonly enrollmentToken: string
  /** Names of options without dashes. */
  readonly flags?: Readonly<Record<string, string>>
}

/** It hears of no change notifications, and stops when the test is over. */
export async function startAgent({ directory, enrollmentToken, flags }: AgentPlace): Promise<Agent> {
  const settings = loadSettings(agentOptions, {
    file: null,
    env: { TALLYGATE_AGENT_ENROLLMENT_TOKEN: enrollmentToken },
    flags: { 'state-directory': join(directory, 'state'), 'socket-path': join(directory, 'agent.sock'), ...flags },
    readText: () => '',
  })
  const agent = await composeAgent(settings, { log: pino({ level: 'silent' }), push: null })
  onTestFinished(() => agent.stop())
  return agent
}
