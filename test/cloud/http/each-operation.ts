// A request for each operation of the cloud that succeeds for a permitted caller.
import { randomBytes, randomUUID } from 'node:crypto'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import {
  DAY,
  type SettingsChange,
  type Twin,
  HOUR,
  lineItemBody,
  newKeyPair,
  openTwin,
  pick,
  text,
} from '../harness.ts'
import { EDGE, EdgeClient } from '../devices/edge-client.ts'
import { NONCE, keyLink } from '../devices/key-link.ts'
import { type DeviceKeys, newDeviceKeys, topUpRequest } from '../sync/test-device.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { ENGINE } from '../../../src/core/engine.ts'
import { engineQuery } from '../../../src/protocol/edge/engines.ts'
import { type Operation, addressesOf } from '../../../src/cloud/http/operation.ts'
import type { Reply } from '../harness.ts'

export interface World extends AsyncDisposable {
  readonly twin: Twin
  readonly instance: string
  readonly elsewhere: string
  readonly device: EdgeClient
}

export async function openWorld(change?: SettingsChange): Promise<World> {
  const folder = await mkdtemp(join(tmpdir(), 'tallygate-world-'))
  const secretFile = join(folder, 'secret')
  await writeFile(secretFile, `whsec_${randomBytes(24).toString('base64')}`)
  // Nothing listens there.
  const webhooks = [{ name: 'receiver', url: 'http://127.0.0.1:9/events', secret_file: secretFile }]
  const twin = await openTwin((settings) => {
    const { events, ...changed } = change?.(settings) ?? settings
    return { ...changed, events: { ...events, webhooks } }
  })
  const instance = await twin.shop()
  const elsewhere = await twin.instance('another customer')
  const device = await EdgeClient.join(twin, instance)
  const end = async (): Promise<void> => {
    await twin[Symbol.asyncDispose]()
    await rm(folder, { recursive: true, force: true })
  }
  return { twin, instance, elsewhere, device, [Symbol.asyncDispose]: end }
}

export interface Prepared {
  /** Values of the path, besides the instance, the line item and the device. */
  readonly params?: Readonly<Record<string, string>>
  readonly query?: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: unknown
  /** Sent as it is, in the place of the body. */
  readonly raw?: string
  /** The only token with which it succeeds. */
  readonly token?: string
}

type Prepare = (world: World, version: string) => Promise<Prepared>

const nothing: Prepare = async () => ({})
const rules = ({ instance }: World): string => `/api/v1.1/instances/${instance}`
const key = async (id: string): Promise<unknown> => [{ id, publicKey: newKeyPair().publicPem }]

async function condition(world: World): Promise<string> {
  const body = [{ operator: 'IN', property: 'department', values: ['sales'] }]
  return text((await world.twin.call('POST', `${rules(world)}/conditions`, { body })).body, 0, 'id')
}

async function withoutActions(world: World): Promise<void> {
  await world.twin.call('DELETE', `${rules(world)}/line-items/ACT-1/actions`)
}

const limit = (world: World) => ({ limit: 100, frequency: 'MONTHLY', nextReset: world.twin.now + DAY })

const setLimit: Prepare = async (world) => {
  const path = `${rules(world)}/line-items/ACT-1/consumption-limit`
  await world.twin.call('PUT', path, { body: limit(world) })
  return {}
}

/** The sink of the world, which has begun, also again after it was forgotten and its pause after a failure is over. */
const sink: Prepare = async ({ twin }) => {
  await twin.advance(HOUR)
  return { params: { sink: 'receiver' } }
}

/** Opened by the device of the world. */
async function sessionOf({ twin, instance, device }: World): Promise<string> {
  const headers = { 'x-instance-id': instance }
  const token = await device.token()
  const { body } = await twin.call('POST', '/api/v1.1/sessions', { token, headers, body: { instanceId: instance } })
  return text(body, 'sessionId')
}

const session =
  (body?: unknown): Prepare =>
  async (world) => ({
    params: { sessionId: await sessionOf(world) },
    headers: { 'x-instance-id': world.instance },
    ...(body === undefined ? {} : { body }),
  })

const lockedSession: Prepare = async (world) => {
  const sessionId = await sessionOf(world)
  await world.twin.call('POST', `${EDGE}/sessions/${sessionId}/lock`)
  return { params: { sessionId } }
}

const aSession: Prepare = async (world) => ({ params: { sessionId: await sessionOf(world) } })

/** Another device, which a command may lock or revoke. */
const aDevice: Prepare = async ({ twin, instance }) => {
  const { id } = await EdgeClient.join(twin, instance)
  return { params: { deviceId: id } }
}

const lockedDevice: Prepare = async (world, version) => {
  const prepared = await aDevice(world, version)
  await world.twin.call('POST', `${EDGE}/devices/${String(prepared.params?.['deviceId'])}/lock`)
  return prepared
}

const requestBody = { requester: { type: 'user', value: 'x' }, requestedItems: [{ item: 'Print', count: 1 }] }

const attachment = { bootId: 'boot', above: 0, acknowledged: 0, backlog: 0, software: 'tests' }

async function linkTo(next: DeviceKeys, { device, keys }: EdgeClient) {
  return keyLink({ deviceId: device.id, epoch: device.state.epoch, from: keys, to: next })
}

export const REQUESTS: Readonly<Record<string, Prepare>> = {
  listinstances: nothing,
  createinstance: async () => ({ body: { shortName: 'Plant', accountId: 'a customer' } }),
  getinstance: nothing,
  listlineitems: nothing,
  addactivation: async () => ({ body: lineItemBody({ activationId: 'ACT-1' }) }),
  getlineitembyid: nothing,
  deletelineitem: async ({ twin, instance }) => {
    const id = `OLD-${randomUUID()}`
    for (const state of ['DEPLOYED', 'OBSOLETE']) await twin.lineItem(instance, { activationId: id, state })
    return { params: { lineItemId: id } }
  },
  createactions: async (world) => ({
    body: [{ action: 'DENY', conditionId: await condition(world) }],
  }),
  putactions: async (world) => ({
    body: [{ action: 'DENY', conditionId: await condition(world) }, { action: 'ALLOW' }],
  }),
  getlineitemactions: nothing,
  deleteactions: nothing,
  getallactions: nothing,
  getconditions: nothing,
  postconditions: async () => ({ body: [{ operator: 'IN', property: 'a', values: ['b'] }] }),
  patchconditions: async (world) => ({
    body: [{ id: await condition(world), operator: 'IN', property: 'a', values: ['b'] }],
  }),
  // Conditions that actions use are not deleted.
  deleteconditions: async (world) => {
    await withoutActions(world)
    return {}
  },
  deletecondition: async (world) => ({ params: { conditionId: await condition(world) } }),
  getconsumptionlimit: setLimit,
  putconsumptionlimit: async (world) => ({ body: limit(world) }),
  deleteconsumptionlimit: setLimit,
  getratetables: nothing,
  postratetables: async ({ twin }) => ({
    body: { effectiveFrom: twin.now, version: randomUUID(), items: [{ name: 'Print', rate: 1 }] },
  }),
  deleteratetables: async ({ twin }) => {
    const version = randomUUID()
    const body = { effectiveFrom: twin.now + 400 * DAY, version, items: [{ name: 'Scan', rate: 1 }] }
    await twin.call('POST', '/provisioning/api/v1.1/rate-tables', { body })
    return { query: `?version=${version}` }
  },
  gettenantconfigurations: nothing,
  patchtenantconfigurations: async ({ twin }) => {
    const { body } = await twin.call('GET', '/provisioning/api/v1.0/configuration')
    return { body: [{ name: 'timezone.tolerant', value: String(text(body, 0, 'value') === 'false') }] }
  },
  'producer-admin-key-upload': async () => ({ body: await key(randomUUID()) }),
  'delete-producer-admin-key': async ({ twin }) => {
    const keyId = randomUUID()
    await twin.call('PUT', '/api/v1.1/administration-keys', { body: await key(keyId) })
    return { params: { keyId } }
  },
  'client-key-upload': async () => ({ body: await key(randomUUID()) }),
  'delete-client-key': async ({ twin }) => {
    const keyId = randomUUID()
    await twin.call('PUT', '/api/v1.1/client-keys', { body: await key(keyId) })
    return { params: { keyId } }
  },
  'get-public-keys': nothing,
  postaccessrequest: async () => ({ body: requestBody }),
  createsession: async ({ instance }) => ({ headers: { 'x-instance-id': instance }, body: { instanceId: instance } }),
  getallsessionsforinstance: async ({ instance }) => ({
    query: `?instanceId=${instance}`,
    headers: { 'x-instance-id': instance },
  }),
  getsession: session(),
  putsessionaccessrequest: async (world, version) => {
    await withoutActions(world)
    return session({ ...requestBody, rollbackOnDeny: true })(world, version)
  },
  closesession: session(),
  getheartbeat: session(),
  exportusage: async ({ instance }) => ({ query: `?instanceId=${instance}` }),
  reportusage: async ({ instance }) => ({ query: `?pastDays=1&instanceId=${instance}` }),
  issueEnrollmentToken: async ({ instance }) => ({ body: { instanceIds: [instance] } }),
  enroll: async ({ twin, instance }) => ({
    body: { publicKey: (await newDeviceKeys()).jwk },
    token: await twin.enrollmentToken(instance),
  }),
  getSigningKeys: nothing,
  getPolicy: async () => ({ query: `?${engineQuery(ENGINE)}` }),
  attach: async () => ({ body: { ...attachment, nonce: randomUUID() } }),
  sync: async ({ device }) => {
    await device.device.beginAgain()
    return { body: { segment: (await device.device.seal()).document, nonce: randomUUID() } }
  },
  announceDeviceKey: async ({ device }) => {
    await device.device.beginAgain()
    return { body: { nonce: NONCE, link: await linkTo(await newDeviceKeys(), device) } }
  },
  showDeviceKeyLinks: async ({ twin, instance }) => {
    const device = await EdgeClient.join(twin, instance)
    const next = await newDeviceKeys()
    return {
      params: { deviceId: device.id },
      body: { nonce: NONCE, links: [await linkTo(next, device)] },
      token: await device.token({ kid: next.signer.keyId, signer: next.signer }),
    }
  },
  listDevices: async ({ instance }) => ({ query: `?instanceId=${instance}` }),
  showDevice: nothing,
  showEvidence: nothing,
  listAudit: async ({ device }) => ({ query: `?deviceId=${device.id}` }),
  lockDevice: aDevice,
  unlockDevice: lockedDevice,
  terminateDevice: aDevice,
  revokeDevice: aDevice,
  rotateDeviceKey: aDevice,
  labelDevice: async () => ({ body: { set: { site: 'berlin' } } }),
  releaseDevice: aDevice,
  lockSession: aSession,
  unlockSession: lockedSession,
  terminateSession: aSession,
  lockSessionOfDevice: aSession,
  unlockSessionOfDevice: lockedSession,
  terminateSessionOfDevice: async () => ({ params: { sessionId: randomUUID() } }),
  showCaller: nothing,
  createConsoleCode: nothing,
  showSweeps: nothing,
  confirmClock: async ({ twin }) => {
    twin.clockAheadMs += HOUR
    await twin.tick()
    return {}
  },
  confirmSettlement: async ({ twin, instance }) => {
    // Only devices with tokens are settled.
    for (let count = 0; count < 3; count += 1) {
      const { device } = await EdgeClient.join(twin, instance)
      await device.sync([topUpRequest(lineAccount(instance, 'ACT-1', 0), 0n, 1_000_000n)])
    }
    await twin.advance(40 * DAY)
    return {}
  },
  showOfflinePolicy: nothing,
  setOfflinePolicy: async () => ({ body: { policy: 'essential', overspendCap: '1000000' } }),
  showCloudReserve: nothing,
  setCloudReserve: async () => ({ body: { tokens: '1000000' } }),
  showAccounts: nothing,
  importInstance: async () => ({
    body: {
      ...{ source: 'https://source.example', apply: true, addUsed: false, lowerUsed: false },
      instance: { shortName: randomUUID(), accountId: 'customer', defaultInstance: true },
      ...{ conditions: [], lineItems: [] },
    },
  }),
  listEvents: async ({ device }) => ({ query: `?deviceId=${device.id}` }),
  listEventSinks: nothing,
  listDeadLetters: sink,
  replayEvents: async (world) => ({ ...(await sink(world, 'v1')), body: { after: '0' } }),
  retryEventSink: async (world) => sink(world, 'v1'),
  discardDeadLetters: sink,
  forgetEventSink: sink,
  showRecovery: nothing,
  endRecovery: async ({ twin }) => {
    await twin.stop()
    await twin.start((settings) => ({ ...settings, store: { ...settings.store, restored: true } }))
    return {}
  },
}

/** Sends a prepared request. @param token null: none */
export async function send(
  { twin, instance, device }: World,
  { method, path, ...operation }: Operation,
  version: string,
  prepared: Omit<Prepared, 'token'> & { readonly token: string | null },
): Promise<Reply> {
  const values: Readonly<Record<string, string>> = {
    instanceId: instance,
    lineItemId: 'ACT-1',
    deviceId: device.id,
    ...prepared.params,
  }
  const [template = ''] = addressesOf({ method, path, ...operation }, version)
  const address = template.replaceAll(/:(\w+)/g, (_, name: string) => String(values[name]))
  const { query = '', headers = {}, body, raw, token } = prepared
  return twin.call(method, `${address}${query}`, { token, headers, ...(raw === undefined ? { body } : { raw }) })
}

export function codeOf({ body }: Reply): unknown {
  return pick(body, 'code')
}
