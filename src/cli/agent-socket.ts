import type { Command } from 'commander'
import { HttpClient } from '../client/http.ts'
import { agentSettings } from './agent-database.ts'
import type { Io } from './io.ts'

export interface SocketFlags {
  readonly socket?: string
}

export function withSocketFlag(command: Command): Command {
  return command.option('--socket <path>', 'agent socket (default: from the agent settings)')
}

/** @throws CodedError if the agent settings are invalid */
export function agentClient(flags: SocketFlags, io: Io): HttpClient {
  const path = flags.socket ?? agentSettings(io).socket.path
  return new HttpClient({ address: `unix:${path}`, unreachable: 'AGENT_UNREACHABLE' })
}
