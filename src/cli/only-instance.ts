import type { HttpClient } from '../client/http.ts'
import { CodedError } from '../protocol/errors.ts'
import { agentStatus, AGENT_STATUS_PATH } from '../protocol/local/status.ts'

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
