/** Limits of callers: the roles of administrators, and the instances that a caller is limited to. */
import { z } from 'zod'
import { ROLES, type Role } from '../../protocol/service/keys.ts'
import { CodedError } from '../../protocol/errors.ts'
import { type Administrator, type Principal, permits, scopeWith } from '../service-api/principal.ts'
import type { Reader, Store } from '../storage/store.ts'
import { uuidInLowerCase } from '../../protocol/wire.ts'
import { type Operation, at } from './operation.ts'

/** The administrator, limited to the instances in which it has the role. @throws CodedError ROLE_MISSING */
export function requireRole(administrator: Administrator, required: Role): Administrator {
  const { rights } = administrator
  if (rights.some((right) => permits(right, required))) return { ...administrator, scope: scopeWith(rights, required) }
  const roles = ROLES.filter((role) => rights.some((right) => right.roles?.includes(role)))
  throw new CodedError(
    'ROLE_MISSING',
    `This operation requires the role ${required}. ${holderOf(administrator)} has ${rolesText(roles)}.`,
  )
}

function holderOf({ issuer, name, keyId }: Principal): string {
  return issuer === null ? `The key ${name ?? keyId}` : `The signed-in user ${name ?? keyId}`
}

function rolesText(roles: readonly Role[]): string {
  return `${roles.length === 1 ? 'the role' : 'the roles'} ${roles.join(', ')}`
}

/** @throws CodedError INSTANCE_NOT_IN_TOKEN, INSTANCE_NOT_IN_SCOPE */
export function requireInstanceOf(principal: Principal, id: string): void {
  const { instances } = principal
  if (instances !== null && !instances.has(id)) {
    throw new CodedError('INSTANCE_NOT_IN_TOKEN', `The token is not valid for instance ${id}.`)
  }
  requireInScope(principal, id)
}

/** @throws CodedError INSTANCE_NOT_IN_SCOPE */
function requireInScope(principal: Principal, id: string): void {
  if (principal.scope === null || principal.scope.has(id.toLowerCase())) return
  throw outOfScope(principal, `the instance ${id}`)
}

function outOfScope(principal: Principal, concerned: string): CodedError {
  const { scope } = principal
  const limit = scope?.size === 1 ? 'one instance' : `${scope?.size ?? 0} instances`
  return new CodedError(
    'INSTANCE_NOT_IN_SCOPE',
    `${holderOf(principal)} is limited to ${limit}, and this request concerns ${concerned}.`,
  )
}

const IDS = ['instanceId', 'instanceIds', 'deviceId', 'sessionId'] as const

type Part = 'params' | 'query' | 'header' | 'body'

export type Named = readonly (readonly [part: Part, field: (typeof IDS)[number]])[]

/** Fields that say which instance a request concerns. Only declared fields count: others are ignored. */
export function namesOf({ params, query, body, limitedByHeader }: Operation, version: string): Named {
  const parts = { params, query, body: body === undefined ? undefined : at(version, body) }
  const declared = (Object.keys(parts) as (keyof typeof parts)[]).flatMap((part) => {
    const schema = parts[part]
    return IDS.filter((id) => schema instanceof z.ZodObject && id in schema.shape).map((id) => [part, id] as const)
  })
  return limitedByHeader === true ? [...declared, ['header', 'instanceId']] : declared
}

export type NamedId = readonly [field: (typeof IDS)[number], id: string]

/** @param parts as they were sent: fields that are not ids are left to their schemas */
export function namedIds(named: Named, parts: Readonly<Partial<Record<Part, unknown>>>): readonly NamedId[] {
  return named.flatMap(([part, field]) => {
    const value = (parts[part] as Readonly<Record<string, unknown>> | null | undefined)?.[field]
    return [value].flat().flatMap((each) => {
      const id = uuidInLowerCase.safeParse(each)
      return id.success ? [[field, id.data] as const] : []
    })
  })
}

/**
 * Checks every instance that the given parts of a request concern.
 * @returns whether the parts name anything
 * @throws CodedError INSTANCE_NOT_IN_SCOPE
 */
export async function requireScope(
  store: Pick<Store, 'read'>,
  administrator: Administrator,
  named: Named,
  parts: Readonly<Partial<Record<Part, unknown>>>,
): Promise<boolean> {
  if (administrator.scope === null) return true
  const ids = namedIds(named, parts)
  if (ids.length === 0) return false
  const concerned = await store.read(async (reader) => {
    const found: string[] = []
    for (const [field, id] of ids) found.push(...(await instancesOf(reader, field, id)))
    return found
  })
  for (const id of concerned) requireInScope(administrator, id)
  return true
}

/** A request that names no instance concerns all of them. @throws CodedError INSTANCE_NOT_IN_SCOPE */
export function requireUnlimited(administrator: Administrator): void {
  if (administrator.scope !== null) throw outOfScope(administrator, 'all instances')
}

/** Unknown devices and sessions have none. */
async function instancesOf(reader: Reader, field: Named[number][1], id: string): Promise<readonly string[]> {
  if (field === 'deviceId') return (await reader.edge.devices.get(id))?.instanceIds ?? []
  if (field !== 'sessionId') return [id]
  const session = await reader.sessions.get(id)
  return session === undefined ? [] : [session.instanceId]
}
