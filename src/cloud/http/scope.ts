/** Limits of administration keys: their roles, and the instances that they are limited to. */
import { z } from 'zod'
import type { Role } from '../../protocol/service/keys.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { Principal } from '../service-api/authenticate.ts'
import type { Reader, Store } from '../storage/store.ts'
import { type Operation, at } from './operation.ts'

type Administrator = Extract<Principal, { readonly kind: 'ADMINISTRATOR' }>

/** Every role permits reading. @throws CodedError ROLE_MISSING */
export function requireRole({ roles, name, keyId }: Administrator, required: Role): void {
  if (roles === null || required === 'read' || roles.includes(required)) return
  throw new CodedError(
    'ROLE_MISSING',
    `This operation requires the role ${required}. The key ${name ?? keyId} has ${rolesText(roles)}.`,
  )
}

function rolesText(roles: readonly Role[]): string {
  return `${roles.length === 1 ? 'the role' : 'the roles'} ${roles.join(', ')}`
}

const IDS = ['instanceId', 'instanceIds', 'deviceId', 'sessionId'] as const

type Part = 'params' | 'query' | 'body'

export type Named = readonly (readonly [part: Part, field: (typeof IDS)[number]])[]

/** Fields that say which instance a request concerns. Only declared fields count: others are ignored. */
export function namesOf({ params, query, body }: Operation, version: string): Named {
  const parts = { params, query, body: body === undefined ? undefined : at(version, body) }
  return (Object.keys(parts) as Part[]).flatMap((part) => {
    const schema = parts[part]
    return IDS.filter((id) => schema instanceof z.ZodObject && id in schema.shape).map((id) => [part, id] as const)
  })
}

/**
 * A request that names no instance concerns all of them.
 * @throws CodedError INSTANCE_NOT_IN_SCOPE
 */
export async function requireScope(
  store: Pick<Store, 'read'>,
  { instances, name, keyId }: Administrator,
  named: Named,
  request: Readonly<Record<Part, unknown>>,
): Promise<void> {
  if (instances === null) return
  const values = named.flatMap(([part, field]) => {
    const value = (request[part] as Readonly<Record<string, unknown>>)[field]
    return value === undefined ? [] : [[field, [value].flat().map(String)] as const]
  })
  const key = `The key ${name ?? keyId} is limited to ${instances.size === 1 ? 'one instance' : `${instances.size} instances`}`
  if (values.length === 0) {
    throw new CodedError('INSTANCE_NOT_IN_SCOPE', `${key}, and this request concerns all instances.`)
  }
  const concerned = await store.read(async (reader) => {
    const found: string[] = []
    for (const [field, ids] of values) for (const id of ids) found.push(...(await instancesOf(reader, field, id)))
    return found
  })
  const outside = concerned.find((id) => !instances.has(id.toLowerCase()))
  if (outside === undefined) return
  throw new CodedError('INSTANCE_NOT_IN_SCOPE', `${key}, and this request concerns the instance ${outside}.`)
}

/** Unknown devices and sessions have none. */
async function instancesOf(reader: Reader, field: Named[number][1], id: string): Promise<readonly string[]> {
  if (field === 'deviceId') return (await reader.edge.devices.get(id))?.instanceIds ?? []
  if (field !== 'sessionId') return [id]
  const session = await reader.sessions.get(id)
  return session === undefined ? [] : [session.instanceId]
}
