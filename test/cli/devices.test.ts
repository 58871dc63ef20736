import { generateKeyPairSync } from 'node:crypto'
import { jwtVerify } from 'jose'
import { expect, test } from 'vitest'
import type { DeviceStateWire } from '../../src/protocol/edge/administration.ts'
import { instanceId } from './agent-status.ts'
import { fakeService } from './fake-service.ts'
import { tallygate } from './outside.ts'

const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
const readText = () => privateKey.export({ format: 'pem', type: 'pkcs8' })

const device = (n: number, changes: Partial<DeviceStateWire> = {}): DeviceStateWire => ({
  id: `0c1d8a1e-0000-4000-8000-00000000000${n}`,
  name: 'gateway',
  instanceIds: [instanceId],
  enrolledAt: 0,
  revokedAt: null,
  lastSyncAt: 1_800_000_000_000,
  software: null,
  incarnation: 1,
  status: 'ACTIVE',
  forked: false,
  rejected: false,
  seq: 1,
  backlog: 2,
  releaseAsked: false,
  policies: [],
  outstanding: [
    { account: 'a', unreported: '1500000', billed: '0' },
    { account: 'b', unreported: '1', billed: '0' },
  ],
  ...changes,
})

const devices = (address: string, ...args: string[]) =>
  tallygate(['devices', ...args, '--url', address, '--admin-key', '/admin.pem'], { readText })

test('an enrollment token is asked for with an administration token, and printed alone', async () => {
  const answer = { body: { token: 'enroll.me.please', expiresAt: 1_800_000_000_000 } }
  await using twin = await fakeService('tcp', { 'POST /dm/edge/api/v1/enrollment-tokens': answer })
  const args = ['enrollment-token', '--instance', instanceId, '--name', 'gateway', '--ttl', '2h']
  expect(await devices(twin.address, ...args)).toEqual({ code: 0, out: 'enroll.me.please\n', err: '' })
  const [asked] = twin.asked
  expect(asked!.body).toEqual({ instanceIds: [instanceId], name: 'gateway', lifetimeMs: 7_200_000 })
  const token = asked!.authorization!.replace('Bearer ', '')
  const { payload } = await jwtVerify(token, publicKey, { currentDate: new Date(1_800_000_000_000) })
  expect(payload).toMatchObject({ cnf: { jwk: { kty: 'ADMIN' } } })
})

const pages = {
  'GET /dm/edge/api/v1/devices?next=0': { body: { devices: [device(1)], next: 5 } },
  'GET /dm/edge/api/v1/devices?next=5': {
    body: { devices: [device(2, { name: null, lastSyncAt: null, forked: true, status: 'FENCED' })], next: 0 },
  },
}

test('the list holds every page', async () => {
  await using twin = await fakeService('tcp', pages)
  const { out } = await devices(twin.address, 'list')
  expect(out.split('\n')).toEqual([
    'DEVICE                                NAME     STATE           LAST SYNC                 BACKLOG  UNREPORTED',
    '0c1d8a1e-0000-4000-8000-000000000001  gateway  active          2027-01-15T08:00:00.000Z  2        1.500001',
    '0c1d8a1e-0000-4000-8000-000000000002           fenced, copied  never                     2        1.500001',
    '',
  ])
})

test('--json is one document for each device', async () => {
  await using twin = await fakeService('tcp', pages)
  const { out } = await devices(twin.address, 'list', '--json')
  expect(
    out
      .trimEnd()
      .split('\n')
      .map((line) => (JSON.parse(line) as DeviceStateWire).id),
  ).toEqual([device(1).id, device(2).id])
  expect(JSON.parse(out.split('\n')[0]!)).toEqual(device(1))
})

test('a list can be of one instance', async () => {
  await using twin = await fakeService('tcp', {
    [`GET /dm/edge/api/v1/devices?next=0&instanceId=${instanceId}`]: { body: { devices: [], next: 0 } },
  })
  expect((await devices(twin.address, 'list', '--instance', instanceId)).out).toBe('There are no devices.\n')
})

test('what the twin refuses has the twin’s own code and words', async () => {
  const refusal = { status: 401, body: { code: 'TOKEN_INVALID', message: 'Unknown key.' } }
  await using twin = await fakeService('tcp', { 'GET /dm/edge/api/v1/devices?next=0': refusal })
  const { code, err } = await devices(twin.address, 'list')
  expect(code).toBe(1)
  expect(err).toMatch(/^tallygate: TOKEN_INVALID: Unknown key\. Make a token /)
})

test('a twin that does not answer is CLOUD_UNREACHABLE, exit code 69', async () => {
  expect(await devices('http://127.0.0.1:1/dm', 'list')).toMatchObject({ code: 69, out: '' })
})

test('an address that is none is USAGE', async () => {
  expect(await devices('localhost:8080', 'list')).toMatchObject({ code: 64 })
})
