/**
 * The socket of the agent on this machine: as `--socket` says, or as the agent's own settings say, so that a technician
 * who has configured the agent needs to say nothing.
 */
import type { Command } from 'commander'
import { agentOptions } from '../agent/settings.ts'
import { HttpClient } from '../client/http.ts'
import { loadSettings } from '../settings/load.ts'
import type { Io } from './io.ts'
import { settingsFile } from './service-settings.ts'

export interface SocketFlags {
  readonly socket?: string
}

export function withSocketFlag(command: Command): Command {
  return command.option('--socket <path>', "socket of the agent (default: the one of the agent's settings)")
}

/** A client of the agent. @throws CodedError when there are settings and they are wrong */
export function agentClient(flags: SocketFlags, io: Io): HttpClient {
  return new HttpClient({ address: `unix:${flags.socket ?? configured(io)}`, unreachable: 'AGENT_UNREACHABLE' })
}

function configured(io: Io): string {
  const sources = { file: settingsFile(agentOptions, io), env: io.env, flags: {}, readText: io.readText }
  return loadSettings(agentOptions, sources).socket.path
}
