/**
 * The socket of the agent on this machine: as `--socket` says, or as the agent's own settings say, so that a technician
 * who has configured the agent needs to say nothing.
 */
import type { Command } from 'commander'
import { HttpClient } from '../client/http.ts'
import { agentSettings } from './agent-database.ts'
import type { Io } from './io.ts'

export interface SocketFlags {
  readonly socket?: string
}

export function withSocketFlag(command: Command): Command {
  return command.option('--socket <path>', "socket of the agent (default: the one of the agent's settings)")
}

/** A client of the agent. @throws CodedError when there are settings and they are wrong */
export function agentClient(flags: SocketFlags, io: Io): HttpClient {
  const path = flags.socket ?? agentSettings(io).socket.path
  return new HttpClient({ address: `unix:${path}`, unreachable: 'AGENT_UNREACHABLE' })
}
