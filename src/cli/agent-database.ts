/** The database of the agent on this machine: as `--db` says, or in the state directory of the agent's own settings. */
import { join } from 'node:path'
import { agentOptions, type AgentSettings } from '../agent/settings.ts'
import { loadSettings } from '../settings/load.ts'
import type { Io } from './io.ts'
import { settingsFile } from './service-settings.ts'

/** Settings of the agent of this machine, from its file and the environment. @throws CodedError when they are wrong */
export function agentSettings(io: Io): AgentSettings {
  const sources = { file: settingsFile(agentOptions, io), env: io.env, flags: {}, readText: io.readText }
  return loadSettings(agentOptions, sources)
}

export function agentDatabase(flag: string | undefined, io: Io): string {
  return flag ?? join(agentSettings(io).state.directory, 'journal.db')
}
