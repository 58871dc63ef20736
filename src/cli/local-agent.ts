import type { Command } from 'commander'
import type { Call } from '../client/call.ts'
import { HttpClient } from '../client/http.ts'
import { join } from 'node:path'
import { healthStatusOf, isHead } from '../agent/diagnostics/health-status.ts'
import { agentOptions } from '../agent/settings.ts'
import type { Io } from './io.ts'
import type { Settings } from '../settings/option.ts'
import { foundSettings } from './service-settings.ts'
import { CodedError } from '../protocol/errors.ts'
import { parseJson } from '../protocol/parse-json.ts'
import { shellWord } from '../protocol/shell-quoted.ts'
import { uuid } from '../protocol/wire.ts'
import type { DeviceReportWire } from '../protocol/local/report.ts'
import { type AgentStatus, agentStatus, AGENT_STATUS_PATH } from '../protocol/local/status.ts'

export interface SocketFlags {
  readonly socket?: string
  readonly json?: true
}

export function withSocketFlag(command: Command): Command {
  return command.option('--socket <path>', 'agent socket (default: TALLYGATE_SOCKET, or from the agent settings)')
}

/** The socket that the user names, with a flag or the variable of the client libraries. Undefined: that of the agent settings. */
export function namedSocket({ socket }: SocketFlags, { env }: Pick<Io, 'env'>): string | undefined {
  const variable = env['TALLYGATE_SOCKET']
  return socket ?? (variable === '' ? undefined : variable)
}

/** For a command in a message: the option that selects the same agent. */
export function sameSocket({ socket }: SocketFlags): string {
  return socket === undefined ? '' : ` --socket ${shellWord(socket)}`
}

/** An agent that works responds in milliseconds, except to {@link patient} calls. */
export const AGENT_TIMEOUT_MS = 5_000

export function agentClient(flags: SocketFlags, io: Io): HttpClient {
  const path = namedSocket(flags, io) ?? agentPaths(io).socket.path
  return new HttpClient({ address: `unix:${path}`, unreachable: 'AGENT_UNREACHABLE', timeoutMs: AGENT_TIMEOUT_MS })
}

/** A session may wait for two top-ups, each as long as `grants.top_up_deadline` permits: of its renewal and of a request. */
const PATIENCE_MS = 2 * 60_000 + AGENT_TIMEOUT_MS

/**
 * Returns the call with a longer time limit, once the agent has responded to a request for its status: an agent that does not
 * respond is reported at once. For calls that wait for a top-up, for another call of the session, for the end of a sync round,
 * or for a search of the whole ledger.
 */
export async function patient(client: HttpClient, call: Call): Promise<Call> {
  await client.call({ method: 'GET', path: AGENT_STATUS_PATH })
  return { ...call, timeoutMs: PATIENCE_MS }
}

const { device, socket, state, writeBehind } = agentOptions.options
const paths = {
  envPrefix: agentOptions.envPrefix,
  options: {
    socket: { path: socket.path },
    state: { directory: state.directory },
    device: { keyFile: device.keyFile },
    writeBehind: { directory: writeBehind.directory },
  },
}

export function agentPaths(io: Io): Settings<typeof paths.options> {
  return foundSettings(paths, io, agentOptions)
}

export function agentDatabase(flag: string | undefined, io: Io): string {
  return flag ?? join(agentPaths(io).state.directory, 'journal.db')
}

export function withInstanceOption(command: Command): Command {
  return command.option('--instance <id or name>', "instance (default: the device's only instance)")
}

/**
 * @param named undefined: the only instance
 * @throws CodedError NOT_ENROLLED, CALLER_NOT_ALLOWED; NOT_FOUND or USAGE if not exactly one
 */
export async function localInstance(client: HttpClient, named: string | undefined): Promise<string> {
  if (named !== undefined && uuid.safeParse(named).success) return named.toLowerCase()
  const policies = await servedBy(client)
  const [found, ...others] = named === undefined ? policies : policies.filter(({ name }) => name === named)
  if (found !== undefined && others.length === 0) return found.instanceId
  const served = policies.map(instanceInWords).join(', ')
  if (found === undefined) {
    const message = `The device serves no instance ${named ?? ''}. It serves ${served}.`
    throw new CodedError('NOT_FOUND', message, { details: { remedy: 'Name one of them with --instance.' } })
  }
  throw named === undefined
    ? new CodedError('USAGE', `The device serves several instances: ${served}. Select one with --instance.`)
    : new CodedError('USAGE', `Several instances have the name ${named}: ${served}. Use the id.`)
}

async function servedBy(client: HttpClient): Promise<AgentStatus['policies']> {
  const status = await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus).catch((error: unknown) => {
    if (!(error instanceof CodedError) || error.code !== 'CALLER_NOT_ALLOWED') throw error
    throw new CodedError(error.code, error.message, { cause: error, details: { remedy: NAME_INSTANCE } })
  })
  if (status.policies.length > 0) return status.policies
  const { sentence, steps } = healthStatusOf(status)
  const remedy = steps.map((step) => (isHead(step) ? step : `${step}.`)).join(' ')
  throw new CodedError('NOT_ENROLLED', sentence, { details: { remedy } })
}

const NAME_INSTANCE =
  'Give the id of the instance with --instance: `tallygate offers` shows it. Or let this user observe the agent (setting callers.observe).'

/** Names of the instances by id; empty for a caller that may not observe the agent. */
export async function instanceNames(client: HttpClient): Promise<ReadonlyMap<string, string | null>> {
  const { status, text } = await client.call({ method: 'GET', path: AGENT_STATUS_PATH })
  const parsed = status === 200 ? agentStatus.safeParse(parseJson(text)) : undefined
  return new Map(parsed?.data?.policies.map(({ instanceId, name }) => [instanceId, name]))
}

export function instanceInWords({ instanceId, name }: { instanceId: string; name: string | null }): string {
  return name === null || name === '' ? instanceId : `${name} (${instanceId})`
}

/** What the device does, and the next steps. */
export function healthLines({ sentence, steps }: DeviceReportWire['health']): readonly string[] {
  return [sentence, ...steps.map((step) => `  ${isHead(step) ? '' : '-> '}${step.replaceAll('`', '')}`)]
}
