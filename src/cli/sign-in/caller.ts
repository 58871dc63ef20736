import type { HttpClient } from '../../client/http.ts'
import { type CallerState, callerState } from '../../protocol/edge/administration.ts'

export async function readCaller(client: HttpClient): Promise<CallerState> {
  return client.json({ method: 'GET', path: '/edge/api/v1/caller' }, callerState)
}

export function callerText({ name, keyId, issuer }: Pick<CallerState, 'name' | 'keyId' | 'issuer'>): string {
  const id = issuer === null ? `key ${keyId}` : `${keyId} at ${issuer}`
  return name === null ? id : `${name} (${id})`
}

export function rightsText({ rights }: CallerState): string {
  return rights
    .map(({ roles, instances }) => `${roles.join(', ')} (${instances?.join(', ') ?? 'all instances'})`)
    .join('; ')
}
