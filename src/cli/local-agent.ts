import type { Command } from 'commander'
import { HttpClient } from '../client/http.ts'
import { join } from 'node:path'
import { agentOptions, type AgentSettings } from '../agent/settings.ts'
import type { Io } from './io.ts'
import { foundSettings } from './service-settings.ts'
import { CodedError } from '../protocol/errors.ts'
import { agentStatus, AGENT_STATUS_PATH } from '../protocol/local/status.ts'

export interface SocketFlags {
  readonly socket?: string
  /** Of the commands that have it. */
  readonly json?: true
}

export function withSocketFlag(command: Command): Command {
  return command.option('--socket <path>', 'agent socket (default: from the agent settings)')
}

export function agentClient(flags: SocketFlags, io: Io): HttpClient {
  const path = flags.socket ?? agentSettings(io).socket.path
  return new HttpClient({ address: `unix:${path}`, unreachable: 'AGENT_UNREACHABLE' })
}

export function agentSettings(io: Io): AgentSettings {
  return foundSettings(agentOptions, io)
}

export function agentDatabase(flag: string | undefined, io: Io): string {
  return flag ?? join(agentSettings(io).state.directory, 'journal.db')
}

/** Default instance of a command. @throws CodedError NOT_ENROLLED; USAGE if the device serves several */
export async function onlyInstance(client: HttpClient): Promise<string> {
  const { instanceIds } = await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
  const [first, ...others] = instanceIds
  if (first !== undefined && others.length === 0) return first
  throw first === undefined
    ? new CodedError('NOT_ENROLLED', 'The agent serves no instance yet.')
    : new CodedError(
        'USAGE',
        `The device serves several instances (${instanceIds.join(', ')}). Select one with --instance.`,
      )
}
