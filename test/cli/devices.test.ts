import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { jwtVerify } from 'jose'
import { describe, expect, it, onTestFinished, test, vi } from 'vitest'
import { actionAccount } from '../../src/core/accounts/account.ts'
import type { DeviceStateWire } from '../../src/protocol/edge/administration.ts'
import { instanceId } from './agent-status.ts'
import { adminKeys, fakeService, readAdminKey } from './fake-service.ts'
import { tallygate } from './outside.ts'

const device = (n: number, changes: Partial<DeviceStateWire> = {}): DeviceStateWire => ({
  id: `0c1d8a1e-0000-4000-8000-00000000000${n}`,
  name: 'gateway',
  instanceIds: [instanceId],
  enrolledAt: 0,
  revokedAt: null,
  revokedBy: null,
  key: { id: '-3gXeJ8G0ZLmVPG6B3oMVl1XYBkkTAqpGmbX3Q8dfPo', since: 0, next: null, rotationRequested: false },
  suspension: null,
  presence: null,
  clock: null,
  lastSyncAt: 1_800_000_000_000,
  overdue: false,
  software: null,
  epoch: 1,
  status: 'ACTIVE',
  forked: false,
  rejected: false,
  seq: 1,
  backlog: 2,
  releaseRequested: false,
  labels: {},
  policies: [],
  outstanding: [
    { account: 'a', unreported: '1500000', billed: '0' },
    { account: 'b', unreported: '1', billed: '0' },
  ],
  ...changes,
})

const devices = (address: string, ...args: string[]) =>
  tallygate(['devices', ...args, '--url', address, '--admin-key', '/admin.pem'], { readText: readAdminKey })

test.each([true, false])('on a terminal, a command says which cloud it waits for: %s', async (isTTY) => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  const slow = createServer((_request, response) => {
    vi.advanceTimersByTime(3_000)
    response.end('{"devices":[],"next":0}')
  }).listen(0, '127.0.0.1')
  onTestFinished(() => {
    vi.useRealTimers()
    slow.closeAllConnections()
    slow.close()
  })
  await once(slow, 'listening')
  const url = `http://127.0.0.1:${(slow.address() as AddressInfo).port}/dm`
  let err = ''
  const { out } = await tallygate(['devices', 'list', '--url', url, '--admin-key', '/admin.pem'], {
    readText: readAdminKey,
    stderr: { isTTY, write: (text) => (err += text) },
  })
  expect([out, err]).toEqual(['No devices.\n', isTTY ? `Waiting for ${url} ...\n` : ''])
})

test('an enrollment token is asked for with an administration token, and printed alone', async () => {
  const answer = { body: { token: 'enroll.me.please', expiresAt: 1_800_000_000_000 } }
  await using twin = await fakeService('tcp', { 'POST /dm/edge/api/v1/enrollment-tokens': answer })
  const args = ['enrollment-token', '--instance', instanceId, '--name', 'gateway', '--ttl', '2h']
  expect(await devices(twin.address, ...args)).toEqual({ code: 0, out: 'enroll.me.please\n', err: '' })
  const [asked] = twin.asked
  expect(asked!.body).toEqual({ instanceIds: [instanceId], name: 'gateway', lifetimeMs: 7_200_000 })
  const token = asked!.authorization!.replace('Bearer ', '')
  const { payload } = await jwtVerify(token, adminKeys.publicKey, { currentDate: new Date(1_800_000_000_000) })
  expect(payload).toMatchObject({ cnf: { jwk: { kty: 'ADMIN' } } })
})

const connected = device(1, {
  presence: { online: true, since: 0 },
  policies: [{ instanceId, name: 'Workshop', applied: 3, newest: 4 }],
})

const pages = {
  'GET /dm/edge/api/v1/devices?next=0': { body: { devices: [connected], next: 5 } },
  'GET /dm/edge/api/v1/devices?next=5': {
    body: { devices: [device(2, { name: null, lastSyncAt: null, forked: true, status: 'FENCED' })], next: 0 },
  },
}

test('the list has the devices of all pages', async () => {
  await using twin = await fakeService('tcp', pages)
  const { out } = await devices(twin.address, 'list')
  expect(out.split('\n')).toEqual([
    'DEVICE                                STATE           LAST SYNC             RULES   BACKLOG  OUTSTANDING  LIVE UPDATES  INSTANCES  LABELS  ID',
    'gateway                               active          2027-01-15T08:00:00Z  3 of 4  2        1.500001     connected     Workshop           0c1d8a1e-0000-4000-8000-000000000001',
    '0c1d8a1e-0000-4000-8000-000000000002  fenced, copied  never                         2        1.500001                                      0c1d8a1e-0000-4000-8000-000000000002',
    '',
  ])
})

test('a device that missed reports is listed and shown as overdue', async () => {
  const body = device(1, { overdue: true, forked: true })
  await using twin = await fakeService('tcp', {
    'GET /dm/edge/api/v1/devices?next=0': { body: { devices: [body], next: 0 } },
    [`GET /dm/edge/api/v1/devices/${body.id}`]: { body },
  })
  expect((await devices(twin.address, 'list')).out).toContain('  active, overdue, copied  ')
  expect((await devices(twin.address, 'show', body.id)).out).toContain('state         active, overdue, copied\n')
})

test('on a terminal, the list has the columns that fit, and all of them with --wide', async () => {
  const route = 'GET /dm/edge/api/v1/devices?next=0'
  await using twin = await fakeService('tcp', { [route]: { body: { devices: [connected], next: 0 } } })
  const onTerminal = async (width: number, ...args: string[]) => {
    let out = ''
    const stdout = { isTTY: true, columns: width, write: (text: string) => (out += text) }
    await tallygate(['devices', 'list', '--url', twin.address, '--admin-key', '/admin.pem', ...args], {
      readText: readAdminKey,
      stdout,
    })
    return out.split('\n')
  }
  expect(await onTerminal(80)).toEqual([
    'DEVICE   STATE   LAST SYNC             RULES   BACKLOG  OUTSTANDING',
    'gateway  active  2027-01-15T08:00:00Z  3 of 4  2        1.500001',
    '',
  ])
  expect(await onTerminal(1)).toEqual(['DEVICE   STATE', 'gateway  active', ''])
  for (const whole of [await onTerminal(80, '--wide'), await onTerminal(200), await onTerminal(0)]) {
    expect(whole[1]).toMatch(/ connected {5}Workshop {11}0c1d8a1e-0000-4000-8000-000000000001$/)
  }
})

test('a device that has enrolled and not attached yet is listed and shown so', async () => {
  const body = device(1, { status: 'NONE', epoch: 0, lastSyncAt: null })
  await using twin = await fakeService('tcp', {
    'GET /dm/edge/api/v1/devices?next=0': { body: { devices: [body], next: 0 } },
    [`GET /dm/edge/api/v1/devices/${one.id}`]: { body },
  })
  expect((await devices(twin.address, 'list')).out).toContain('  never attached  ')
  expect((await devices(twin.address, 'show', one.id)).out).toContain('state         never attached\n')
})

test('a list that the service or a proxy refuses for a time says for how long', async () => {
  const route = 'GET /dm/edge/api/v1/devices?next=0'
  const headers = { 'retry-after': '40' }
  const body = { code: 'STOPPING', message: 'The service stops' }
  await using twin = await fakeService('tcp', { [route]: { status: 503, headers, body } })
  const stopping = 'STOPPING: The service stops. Send the same request again in a moment. Try again in 40 s.'
  expect((await devices(twin.address, 'list')).err).toContain(stopping)
  await using proxy = await fakeService('tcp', { [route]: { status: 429, headers, body: 'slow down' } })
  expect((await devices(proxy.address, 'list')).err).toMatch(/429: slow down\..* Try again in 40 s\.$/m)
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
  expect(JSON.parse(out.split('\n')[0]!)).toEqual(connected)
})

test('a list can be of one instance', async () => {
  await using twin = await fakeService('tcp', {
    [`GET /dm/edge/api/v1/devices?next=0&instanceId=${instanceId}`]: { body: { devices: [], next: 0 } },
  })
  expect((await devices(twin.address, 'list', '--instance', instanceId)).out).toBe('No devices.\n')
})

test('a list can be of devices with labels', async () => {
  const labels = { line: '3', site: 'berlin' }
  await using twin = await fakeService('tcp', {
    'GET /dm/edge/api/v1/devices?next=0&labels=site%3Dberlin%2Cline%3D3': {
      body: { devices: [device(1, { labels })], next: 0 },
    },
  })
  const { out } = await devices(twin.address, 'list', '--label', 'site=berlin', '--label', 'line=3')
  expect(out).toMatch(/ line=3 site=berlin /)
  expect(await devices(twin.address, 'list', '--label', 'site')).toMatchObject({ code: 64 })
})

describe('label', () => {
  it('sets and removes labels, and shows those of the device', async () => {
    const path = `/dm/edge/api/v1/devices/${device(1).id}`
    await using twin = await fakeService('tcp', {
      [`POST ${path}/labels`]: { body: device(1, { labels: { site: 'berlin' } }) },
      [`GET ${path}`]: { body: device(1) },
    })
    const label = (...args: string[]) => devices(twin.address, 'label', device(1).id, ...args)
    expect((await label('site=berlin', '--remove', 'line')).out).toBe('site=berlin\n')
    expect(twin.asked[0]?.body).toEqual({ set: { site: 'berlin' }, remove: ['line'] })
    expect((await label()).out).toBe('No labels.\n')
    expect(await label('site berlin')).toMatchObject({
      code: 64,
      err: expect.stringContaining('LABEL_INVALID') as string,
    })
  })
})

describe('a command for all devices with a label', () => {
  const found = [device(1), device(2, { name: null }), device(3, { name: 'press' })]
  const path = (n: number, command: string): string => `POST /dm/edge/api/v1/devices/${device(n).id}/${command}`
  const answers = {
    'GET /dm/edge/api/v1/devices?labels=site%3Dberlin&next=0': { body: { devices: found, next: 0 } },
    'GET /dm/edge/api/v1/devices?labels=site%3Dbonn&next=0': { body: { devices: [], next: 0 } },
    [path(1, 'release')]: { body: device(1) },
    [path(2, 'release')]: { status: 409, body: { code: 'CONFLICT', message: 'The device is revoked.' } },
    [path(3, 'release')]: { body: device(3) },
  }

  it('names the devices, and changes none without --yes', async () => {
    await using twin = await fakeService('tcp', answers)
    const { code, err } = await devices(twin.address, 'drain', '--label', 'site=berlin')
    expect([code, err]).toEqual([
      64,
      expect.stringContaining(`Found gateway, ${device(2).id}, press. Repeat with --yes to run drain for these 3.`),
    ])
    expect(twin.asked.every(({ method }) => method === 'GET')).toBe(true)
  })

  it('continues after a refusal, and exits with 1', async () => {
    await using twin = await fakeService('tcp', answers)
    const { code, out } = await devices(twin.address, 'drain', '--label', 'site=berlin', '--yes')
    expect([code, out.split('\n')]).toEqual([
      1,
      ['gateway  done', `${device(2).id}  CONFLICT: The device is revoked.`, 'press  done', '2 done, 1 refused.', ''],
    ])
  })

  it('stops at a refusal with --stop-on-error', async () => {
    await using twin = await fakeService('tcp', answers)
    const { code, out } = await devices(twin.address, 'drain', '--label', 'site=berlin', '--yes', '--stop-on-error')
    expect([code, out]).toEqual([1, expect.stringContaining('1 done, 1 refused, 1 not tried.')])
  })

  it('needs a device that has it', async () => {
    await using twin = await fakeService('tcp', answers)
    const { err } = await devices(twin.address, 'lock', '--label', 'site=bonn', '--yes')
    expect(err).toContain('NOT_FOUND: No device has site=bonn.')
    expect(await devices(twin.address, 'lock')).toMatchObject({ code: 64 })
    expect(await devices(twin.address, 'lock', 'gateway', '--label', 'site=berlin')).toMatchObject({ code: 64 })
  })
})

test('what the twin refuses has the twin’s own code and words', async () => {
  const refusal = { status: 401, body: { code: 'TOKEN_INVALID', message: 'Unknown key.' } }
  await using twin = await fakeService('tcp', { 'GET /dm/edge/api/v1/devices?next=0': refusal })
  const { code, err } = await devices(twin.address, 'list')
  expect(code).toBe(1)
  expect(err).toMatch(/^tallygate: TOKEN_INVALID: Unknown key\. Use a private key whose public key is registered/)
})

test('a twin that does not answer is SERVICE_UNREACHABLE, exit code 69', async () => {
  expect(await devices('http://127.0.0.1:1/dm', 'list')).toMatchObject({ code: 69, out: '' })
})

test('show and commands name the actions of a device’s accounts, or their conditions', async () => {
  const [first, second, third] = ['1', '2', '3'].map((n) => `51a8d0c4-0000-4000-8000-00000000000${n}`)
  const instance = '915716bf-f384-4248-8fc0-798d0f657773'
  const outstanding = [first, second, third].map((id) => ({
    account: actionAccount(instance, 'ACT-1', id!),
    unreported: '1',
    billed: '0',
  }))
  const actions = [
    { id: first, name: 'Night shift', action: 'ALLOW', allocation: 5, used: 0 },
    { id: second, conditionId: 'c1', action: 'ALLOW', allocation: 5, used: 0 },
  ]
  const rules = `GET /dm/api/v1.1/instances/${instance}`
  await using twin = await fakeService('tcp', {
    [`GET /dm/edge/api/v1/devices/${one.id}`]: { body: device(1, { outstanding }) },
    [`POST /dm/edge/api/v1/devices/${one.id}/lock`]: { body: device(1, { outstanding }) },
    [`${rules}/conditions`]: { body: [{ id: 'c1', name: 'Sales' }] },
    [`${rules}/line-items/ACT-1/actions`]: { body: actions },
  })
  const [{ out }, locked] = [await devices(twin.address, 'show', one.id), await devices(twin.address, 'lock', one.id)]
  expect(locked.out).toBe(out)
  expect(out.split('\n').slice(-5)).toEqual([
    'OUTSTANDING  BILLED  ACCOUNT',
    `0.000001     0       ACT-1, action Night shift (${first})`,
    `0.000001     0       ACT-1, action Sales (${second})`,
    `0.000001     0       ACT-1, action ${third}`,
    '',
  ])
})

test('an invalid address is USAGE', async () => {
  expect(await devices('localhost:8080', 'list')).toMatchObject({ code: 64 })
})

const one = device(1)

test('a device is shown with all that is known of it', async () => {
  const suspension = { state: 'LOCKED', since: 1_800_000_000_000, by: 'key-1' } as const
  const clock = { comparison: 'AHEAD', offsetMs: 61_500, takenAt: 1_800_000_000_000 } as const
  const body = device(1, {
    suspension,
    clock,
    releaseRequested: true,
    policies: [{ instanceId, name: 'Workshop', applied: 3, newest: 4 }],
  })
  await using twin = await fakeService('tcp', { [`GET /dm/edge/api/v1/devices/${one.id}`]: { body } })
  const { out } = await devices(twin.address, 'show', one.id)
  expect(out.split('\n')).toEqual([
    `device        ${one.id}`,
    'name          gateway',
    'state         locked since 2027-01-15T08:00:00.000Z by key-1',
    'key           -3gXeJ8G0ZLmVPG6B3oMVl1XYBkkTAqpGmbX3Q8dfPo since 1970-01-01T00:00:00.000Z',
    'live updates  unknown',
    'last sync     2027-01-15T08:00:00.000Z',
    'software      unknown',
    'clock         is ahead of the cloud (61.500 s off at 2027-01-15T08:00:00.000Z)',
    'epoch         1, active',
    'backlog       2 entries, as of its last sync',
    `rules         revision 3 of instance Workshop (${instanceId}), newest: 4`,
    'drain         return of unused tokens requested',
    '',
    'OUTSTANDING  BILLED  ACCOUNT',
    '1.5          0       a',
    '0.000001     0       b',
    '',
  ])
})

test.each([
  ['lock', 'lock'],
  ['unlock', 'unlock'],
  ['terminate', 'terminate'],
  ['drain', 'release'],
  ['revoke', 'revoke'],
])('%s is one call, and the answer is the device', async (command, call) => {
  await using twin = await fakeService('tcp', { [`POST /dm/edge/api/v1/devices/${one.id}/${call}`]: { body: one } })
  const { code, out } = await devices(twin.address, command, one.id, '--json', '--yes')
  expect([code, JSON.parse(out)]).toEqual([0, one])
})

test.each([
  ['revoke', 'y', 0, 1, ''],
  ['revoke', 'YES ', 0, 1, ''],
  ['revoke', 'n', 1, 0, 'Nothing was changed.\n'],
  ['terminate', 'y', 0, 1, ''],
  ['terminate', '', 1, 0, 'Nothing was changed.\n'],
])('%s asks on a terminal, and the answer %j ends with %i', async (command, answer, code, calls, err) => {
  await using twin = await fakeService('tcp', { [`POST /dm/edge/api/v1/devices/${one.id}/${command}`]: { body: one } })
  const asked: string[] = []
  const ask = (question: string) => {
    asked.push(question)
    return Promise.resolve(answer)
  }
  const args = ['devices', command, one.id, '--url', twin.address, '--admin-key', '/admin.pem']
  const ran = await tallygate(args, { readText: readAdminKey, ask })
  const consequence =
    command === 'revoke'
      ? `The key of device ${one.id} cannot be used again, and tokens on the device are not returned.`
      : `Device ${one.id} grants no requests until it is enrolled again.`
  const question = `${consequence} Run ${command}? [y/N] `
  expect([ran.code, ran.err, asked]).toEqual([code, err, [question]])
  expect(twin.asked.filter(({ url }) => url.endsWith(`/${command}`))).toHaveLength(calls)
})

test.each(['revoke', 'terminate'])('%s in a script needs --yes', async (command) => {
  await using twin = await fakeService('tcp', {})
  const { code, err } = await devices(twin.address, command, one.id)
  const refused = new RegExp(`^tallygate: USAGE: .* Repeat with --yes to run ${command}\\.`)
  expect([code, err]).toEqual([64, expect.stringMatching(refused)])
})

test('a session of a device is terminated without a question', async () => {
  const sessionId = '0c1d8a1e-0000-4000-8000-0000000000aa'
  await using twin = await fakeService('tcp', {
    [`POST /dm/edge/api/v1/devices/${one.id}/sessions/${sessionId}/terminate`]: {
      body: { sessionId, state: 'TERMINATED', outcome: 'DONE' },
    },
  })
  const { out } = await devices(twin.address, 'terminate', one.id, '--session', sessionId)
  expect(out).toBe(`session ${sessionId}: terminated\n`)
})

test('a session of a device is locked by its id', async () => {
  const sessionId = '0c1d8a1e-0000-4000-8000-0000000000aa'
  const answer = { status: 202, body: { sessionId, state: 'ACTIVE', outcome: 'PENDING' } }
  await using twin = await fakeService('tcp', {
    [`POST /dm/edge/api/v1/devices/${one.id}/sessions/${sessionId}/lock`]: answer,
  })
  const { out } = await devices(twin.address, 'lock', one.id, '--session', sessionId)
  expect(out).toBe(`session ${sessionId}: sent to device ${one.id}, which keeps this session\n`)
})

test('of a session that the twin does not know the answer says what it knows', async () => {
  const sessionId = '0c1d8a1e-0000-4000-8000-0000000000aa'
  const device = `/dm/edge/api/v1/devices/${one.id}`
  await using twin = await fakeService('tcp', {
    [`POST ${device}/sessions/${sessionId}/lock`]: { status: 202, body: { sessionId, state: null, outcome: 'NOTED' } },
    [`GET ${device}`]: { body: one },
  })
  const { code, out } = await devices(twin.address, 'lock', one.id, '--session', sessionId)
  expect(code).toBe(0)
  expect(out).toContain(
    `session ${sessionId}: not known to the cloud yet. The command to lock it is stored for device ${one.id}`,
  )
  expect(out).toContain(`last contact ${new Date(one.lastSyncAt!).toISOString()}`)
})

test('an unknown device causes a separate exit code', async () => {
  const refusal = { status: 404, body: { code: 'NOT_FOUND', message: 'There is no device.' } }
  await using twin = await fakeService('tcp', { [`POST /dm/edge/api/v1/devices/${one.id}/lock`]: refusal })
  const { code, err } = await devices(twin.address, 'lock', one.id)
  expect(code).not.toBe(0)
  expect(err).toMatch(/^tallygate: NOT_FOUND: There is no device\./)
})

test('the reserve of the cloud is set and shown in tokens', async () => {
  const path = `/dm/edge/api/v1/instances/${instanceId}/line-items/ACT-1/cloud-reserve`
  const state = (tokens: string, onDevices: string) => {
    return { body: { instanceId, lineItemId: 'ACT-1', tokens, onDevices } }
  }
  await using twin = await fakeService('tcp', {
    [`PUT ${path}`]: state('2500000', '1000000'),
    [`GET ${path}`]: state('2500000', '0'),
  })
  const reserve = (...args: string[]) =>
    devices(twin.address, 'cloud-reserve', '--instance', instanceId, '--line-item', 'ACT-1', ...args)
  expect((await reserve('--tokens', '2.5')).out).toBe(
    '2.5 tokens are reserved for the cloud, including 1 still on devices\n',
  )
  expect(twin.asked.map(({ body }) => body)).toEqual([{ tokens: '2500000' }])
  expect((await reserve()).out).toBe('2.5 tokens are reserved for the cloud\n')
  expect(JSON.parse((await reserve('--json')).out)).toEqual(state('2500000', '0').body)
  expect((await reserve('--tokens', '0.0000001')).err).toMatch(
    /USAGE: 0\.0000001 is above 0 and below 0\.000001 tokens/,
  )
  expect((await reserve('--tokens', '-1')).err).toMatch(/--tokens needs a number of tokens, 0 or more/)
})

test('the offline policy is shown in tokens, and exactly with --json', async () => {
  const path = `/dm/edge/api/v1/instances/${instanceId}/line-items/ACT-1/offline-policy`
  const amounts = { overspendCap: '2500000', devices: 2, exposure: '5000000' }
  const state = { instanceId, lineItemId: 'ACT-1', policy: 'essential', ...amounts }
  await using twin = await fakeService('tcp', { [`GET ${path}`]: { body: state } })
  const policy = (...args: string[]) =>
    devices(twin.address, 'offline-policy', '--instance', instanceId, '--line-item', 'ACT-1', ...args)
  expect((await policy()).out).toBe(
    'essential: 2.5 tokens above the grant on each of 2 devices; in total at most 5 above the pool\n',
  )
  expect(JSON.parse((await policy('--json')).out)).toEqual(state)
  Object.assign(state, { overspendCap: '1000000', devices: 1, exposure: '1000000' })
  expect((await policy()).out).toBe(
    'essential: 1 token above the grant on the only device; in total at most 1 above the pool\n',
  )
})

test('every command takes --json', async () => {
  const help = async (...args: string[]) => (await tallygate(['devices', ...args, '--help'])).out
  const commands = [...(await help()).matchAll(/^ {2}([a-z-]+) \[options\]/gm)].map(([, name = '']) => name)
  expect(commands).toContain('enrollment-token')
  for (const name of commands) expect([name, await help(name)]).toEqual([name, expect.stringContaining('--json')])
})

describe('list --watch', () => {
  /** Writes until so many texts were written; the device is revoked after the first. */
  async function watched(isTTY: boolean, writes: number): Promise<readonly string[]> {
    const written: string[] = []
    const stop = new AbortController()
    const answers = { 'GET /dm/edge/api/v1/devices?next=0': { body: { devices: [device(1), device(2)], next: 0 } } }
    await using twin = await fakeService('tcp', answers)
    const stdout = {
      isTTY,
      write: (text: string) => {
        written.push(text)
        const next = [device(1, { revokedAt: 1, revokedBy: 'anna' }), device(2)]
        answers['GET /dm/edge/api/v1/devices?next=0'] = { body: { devices: next, next: 0 } }
        if (written.length >= writes) stop.abort()
      },
    }
    const target = ['--url', twin.address, '--admin-key', '/admin.pem']
    const args = ['devices', 'list', '--every', '1ms', ...target]
    expect(await tallygate(args, { readText: readAdminKey, stdout, stop: () => stop.signal })).toMatchObject({
      code: 0,
      err: '',
    })
    return written
  }

  test('writes the lines that changed where it is no terminal', async () => {
    const [first, second] = await watched(false, 2)
    expect(first).toMatch(/DEVICE .*\n.*0001\n.*0002\n$/)
    expect(second).toMatch(/^2027-01-15T08:00:00\.000Z {2}gateway +revoked .*0001\n$/)
    expect(second).not.toContain('0002')
  })

  test('draws the whole list anew on a terminal', async () => {
    const pages = await watched(true, 2)
    for (const page of pages) {
      expect(page.startsWith('\u001B[H\u001B[2J2027-')).toBe(true)
      expect(page).toContain('\n\nDEVICE')
    }
  })

  test('shows that the cloud does not respond, and continues', async () => {
    const stop = new AbortController()
    const written: string[] = []
    const write = (text: string) => {
      written.push(text)
      stop.abort()
    }
    const target = ['--url', 'http://127.0.0.1:9/dm', '--admin-key', '/admin.pem']
    const args = ['devices', 'list', '--watch', '--every', '1ms', ...target]
    expect(await tallygate(args, { readText: readAdminKey, stdout: { write }, stop: () => stop.signal })).toMatchObject(
      { code: 0 },
    )
    expect(written[0]).toContain('NO RESPONSE  http://127.0.0.1:9/dm: no process is listening there.')
  })
})
