import { join } from 'node:path'
import { agentOptions, type AgentSettings } from '../agent/settings.ts'
import { loadSettings } from '../settings/load.ts'
import type { Io } from './io.ts'
import { settingsFile } from './service-settings.ts'

/** Settings of the local agent, from its file and the environment. @throws CodedError if they are invalid */
export function agentSettings(io: Io): AgentSettings {
  const sources = { file: settingsFile(agentOptions, io), env: io.env, flags: {}, readText: io.readText }
  return loadSettings(agentOptions, sources)
}

export function agentDatabase(flag: string | undefined, io: Io): string {
  return flag ?? join(agentSettings(io).state.directory, 'journal.db')
}
