// Who may call what: each operation of the API documents, as each kind of caller, over HTTP.
import { randomUUID } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { CALLER_NAMES, type CallerName, type Verdict, verdictOf } from '../../../scripts/authorization-page.ts'
import { servedOperations } from '../../../scripts/docs.ts'
import { namesOf } from '../../../src/cloud/http/scope.ts'
import { DOCUMENT_NAMES, apiDocuments } from '../../../src/cloud/http/openapi/documents.ts'
import type { AccessRule } from '../../../src/protocol/sign-in.ts'
import { ROLES, type Role } from '../../../src/protocol/service/keys.ts'
import { makeAccessToken } from '../../../src/client/access-token.ts'
import { CLIENT_ID, FakeIssuer } from '../../support/fake-issuer.ts'
import { EDGE, EdgeClient } from '../devices/edge-client.ts'
import { HOUR, type SettingsChange, type Twin, newKeyPair, pick } from '../harness.ts'
import type { Reply } from '../harness.ts'
import { REQUESTS, type World, codeOf, openWorld, send } from './each-operation.ts'

const operations = servedOperations()
const requests = operations.flatMap((operation) =>
  operation.versions.map((version) => [operation.id, version, operation] as const),
)

const changes = requests.filter(([, , { method }]) => method !== 'GET')

/** Codes that refuse a caller, whatever it asks for. */
const REFUSALS: ReadonlySet<unknown> = new Set<Verdict>([
  'TOKEN_MISSING',
  'TOKEN_INVALID',
  'TOKEN_NOT_IN_TIME',
  'ACCESS_KIND_WRONG',
  'INSTANCE_NOT_IN_TOKEN',
  'INSTANCE_HEADER_MISSING',
  'SESSION_OF_ANOTHER',
  'ROLE_MISSING',
  'INSTANCE_NOT_IN_SCOPE',
  'SIGN_IN_NOT_MAPPED',
  'SIGN_IN_UNAVAILABLE',
  'DEVICE_REVOKED',
  'DEVICE_KEY_REPLACED',
])

const BAD_BODIES = [
  { raw: '{' },
  { raw: '"text"' },
  { raw: '[{}]' },
  { raw: '{}', headers: { 'content-type': 'text/plain' } },
  { raw: '{}', headers: { 'content-encoding': 'br' } },
] as const

const verdictIn = (reply: Reply): unknown => (REFUSALS.has(codeOf(reply)) ? codeOf(reply) : 'PERMITTED')

function signInAt({ issuer }: FakeIssuer, access: AccessRule[]): SettingsChange {
  return (settings) => ({ ...settings, oidc: { ...settings.oidc, issuer, clientId: CLIENT_ID, access } })
}

/** Registers a key with limits. Returns what makes its tokens. @param instanceIds of the tokens of a client */
async function holder(twin: Twin, limits: object, instanceIds?: readonly string[]): Promise<() => Promise<string>> {
  const { privatePem, publicPem } = newKeyPair()
  const keyId = randomUUID()
  const [kind, path] =
    instanceIds === undefined ? (['ADMIN', 'administration-keys'] as const) : (['CLIENT', 'client-keys'] as const)
  const body = [{ id: keyId, publicKey: publicPem, ...limits }]
  const { status, text } = await twin.call('PUT', `/api/v1.1/${path}`, { body })
  if (status !== 200) throw new Error(text)
  return () =>
    makeAccessToken({
      ...{ kind, privateKey: privatePem, keyId, instanceIds: instanceIds ?? [], issuer: 'tests' },
      ...{ now: twin.wall, lifetimeMs: HOUR },
    })
}

describe('the matrix of authorization', () => {
  let world: World
  let issuer: FakeIssuer
  let otherIssuer: FakeIssuer
  let tokens: Readonly<Record<CallerName, () => Promise<string | null>>>
  beforeAll(async () => {
    issuer = await FakeIssuer.start()
    otherIssuer = await FakeIssuer.start()
    // The cloud reads the rules at each use: those of instances follow when the instances exist.
    const rules: AccessRule[] = [
      ...ROLES.map((role) => ({ value: role, roles: [role] })),
      { value: 'all', roles: [...ROLES] },
    ]
    world = await openWorld(signInAt(issuer, rules))
    const { twin, instance, elsewhere, device } = world
    const user = (group: string) => () => issuer.token(twin.wall, { groups: ['staff', group] })
    const [otherDevice, foreignDevice, revoked] = [
      await EdgeClient.join(twin, instance),
      await EdgeClient.join(twin, elsewhere),
      await EdgeClient.join(twin, instance),
    ]
    await twin.call('POST', `${EDGE}/devices/${revoked.id}/revoke`)
    const roles: Role[] = ['read', 'operator', 'rules']
    rules.push(
      { value: 'limited', roles, instances: [instance] },
      { value: 'elsewhere', roles, instances: [elsewhere] },
    )
    const stranger = newKeyPair()
    tokens = {
      none: async () => null,
      malformed: async () => 'a.b.c',
      metrics: async () => 'the-secret-of-the-metrics',
      unregistered: () =>
        makeAccessToken({
          ...{ kind: 'ADMIN', privateKey: stranger.privatePem, instanceIds: [], issuer: 'tests' },
          ...{ now: twin.wall, lifetimeMs: HOUR },
        }),
      foreignIssuer: () => otherIssuer.token(twin.wall, { groups: ['all'] }),
      foreignIdToken: () => issuer.token(twin.wall, { groups: ['all'], aud: 'another' }),
      falseIssuer: () => twin.administrationToken(issuer.issuer),
      unmapped: () => issuer.token(twin.wall, { groups: ['staff'] }),
      userWithAllRoles: user('all'),
      userWhoReads: user('read'),
      userWhoOperates: user('operator'),
      userWhoEditsRules: user('rules'),
      userWhoKeepsKeys: user('keys'),
      limitedUser: user('limited'),
      userLimitedElsewhere: user('elsewhere'),
      enrollment: () => twin.enrollmentToken(instance),
      revoked: () => revoked.token(),
      client: () => twin.clientToken(instance),
      foreignClient: () => twin.clientToken(elsewhere),
      limitedClient: await holder(twin, { instances: [instance] }, [instance, elsewhere]),
      clientLimitedElsewhere: await holder(twin, { instances: [elsewhere] }, [instance, elsewhere]),
      device: () => device.token(),
      otherDevice: () => otherDevice.token(),
      foreignDevice: () => foreignDevice.token(),
      administrator: () => twin.administrationToken(),
      reader: await holder(twin, { roles: ['read'] }),
      operator: await holder(twin, { roles: ['operator'] }),
      rulesEditor: await holder(twin, { roles: ['rules'] }),
      keyKeeper: await holder(twin, { roles: ['keys'] }),
      limited: await holder(twin, { roles: ['read', 'operator', 'rules'], instances: [instance] }),
      limitedElsewhere: await holder(twin, { roles: ['operator', 'rules'], instances: [elsewhere] }),
    }
  })
  afterAll(async () => {
    await world[Symbol.asyncDispose]()
    await issuer[Symbol.asyncDispose]()
    await otherIssuer[Symbol.asyncDispose]()
  })

  it.each(requests)('%s (%s)', async (id, version, operation) => {
    const prepare = REQUESTS[id]
    if (prepare === undefined) throw new Error(`each-operation.ts has no request for ${id}`)
    const prepared = await prepare(world, version)
    const expected = new Map(CALLER_NAMES.map((name) => [name, verdictOf(operation, name)]))
    const found = new Map<CallerName, unknown>()
    const succeeded: boolean[] = []
    // Callers that are refused come first: the others change what the request names.
    const isPermitted = (name: CallerName): boolean => expected.get(name) === 'PERMITTED'
    for (const name of [...CALLER_NAMES.filter((each) => !isPermitted(each)), ...CALLER_NAMES.filter(isPermitted)]) {
      // A new key of the device signs its own links, so no other caller's token fits them.
      const token = isPermitted(name) && prepared.token !== undefined ? prepared.token : await tokens[name]()
      const reply = await send(world, operation, version, { ...prepared, token })
      found.set(name, verdictIn(reply))
      if (isPermitted(name)) succeeded.push(reply.status < 300)
    }
    expect(Object.fromEntries(found)).toEqual(Object.fromEntries(expected))
    // Otherwise a permitted caller could have been refused for another reason.
    expect(succeeded).toContain(true)
  })

  // The order of the checks: a caller learns nothing of an operation before it is permitted to call it.
  // Each request is refused with each bad body, and over all requests each caller with each of them.
  it.each(changes.map((change, index) => [...change, index] as const))(
    'refuses the caller of %s (%s) before its body',
    async (id, version, operation, index) => {
      const prepared = await REQUESTS[id]?.(world, version)
      const refusals: Readonly<Record<string, unknown>>[] = []
      const wanted: Readonly<Record<string, unknown>>[] = []
      const named = namesOf(operation, version)
      const isNamedByBody = named.length > 0 && named.every(([part]) => part === 'body')
      for (const [caller, name] of CALLER_NAMES.entries()) {
        const verdict = verdictOf(operation, name)
        if (verdict === 'PERMITTED') continue
        // Only a body that can be read names an instance.
        const isLate = verdict === 'INSTANCE_NOT_IN_SCOPE' && isNamedByBody
        const bad = isLate
          ? { body: { ...(prepared?.body as object), unknown: 1 } }
          : BAD_BODIES[(index + caller) % BAD_BODIES.length]
        const headers = { ...prepared?.headers, ...(bad !== undefined && 'headers' in bad ? bad.headers : {}) }
        const token = await tokens[name]()
        const reply = await send(world, operation, version, { ...prepared, ...bad, headers, token })
        refusals.push({ name, ...bad, code: codeOf(reply) })
        wanted.push({ name, ...bad, code: verdict })
      }
      expect(refusals).toEqual(wanted)
    },
  )

  it('has a row for each operation of the API documents', () => {
    const documents = apiDocuments(operations, { prefix: '', errorsUrl: '' })
    const described = DOCUMENT_NAMES.flatMap((name) =>
      Object.values(documents.get(name)?.['paths'] as Record<string, Record<string, unknown>>)
        .flatMap((path) => Object.values(path))
        .map((operation) => String(pick(operation, 'operationId'))),
    )
    expect(new Set(Object.keys(REQUESTS))).toEqual(new Set(described))
    expect(requests).toHaveLength(described.length)
  })

  it('has the roles that the API documents name', () => {
    const documents = apiDocuments(operations, { prefix: '', errorsUrl: '' })
    const named = DOCUMENT_NAMES.flatMap((name) =>
      Object.values(documents.get(name)?.['paths'] as Record<string, Record<string, unknown>>)
        .flatMap((path) => Object.values(path))
        .map((described) => {
          const security = pick(described, 'security') as Record<string, unknown>[]
          const needs = Object.fromEntries(security.flatMap((scheme) => Object.entries(scheme)))
          return [String(pick(described, 'operationId')), needs] as const
        }),
    )
    const ROLE_OF = { reader: 'read', operator: 'operator', rulesEditor: 'rules', keyKeeper: 'keys' } as const
    for (const [id, { AdministrationAccess }] of named) {
      const operation = operations.find((each) => each.id === id)
      if (operation === undefined) throw new Error(`${id} is not served`)
      const holders = Object.keys(ROLE_OF) as (keyof typeof ROLE_OF)[]
      const enough = holders.filter((name) => verdictOf(operation, name) === 'PERMITTED').map((name) => ROLE_OF[name])
      const isOfAdministrators = operation.principals.includes('ADMINISTRATOR')
      const wanted = enough.length === holders.length ? [] : enough
      expect([id, AdministrationAccess]).toEqual([id, isOfAdministrators ? wanted : undefined])
    }
    expect(named.length).toBeGreaterThan(100)
  })

  it('permits a device key only the operations that the agent calls', () => {
    const ofDevices = operations.filter(({ principals }) => principals.includes('DEVICE')).map(({ id }) => id)
    expect(ofDevices.sort()).toEqual([
      'announceDeviceKey',
      'attach',
      'closesession',
      'createsession',
      'getPolicy',
      'getSigningKeys',
      'getheartbeat',
      'sync',
    ])
  })
})
