// Labels of devices: set by administrators and enrollment tokens, and found by the list.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Twin, openTwin, pick, refusal, text } from '../harness.ts'
import { limitedToken } from '../console/browse.ts'
import { newDeviceKeys } from '../sync/test-device.ts'

const EDGE = '/edge/api/v1'

let twin: Twin
let instanceId: string

beforeEach(async () => {
  twin = await openTwin()
  instanceId = await twin.instance('plant')
})
afterEach(() => twin[Symbol.asyncDispose]())

type Jwk = Awaited<ReturnType<typeof newDeviceKeys>>['jwk']

async function enroll(labels: Readonly<Record<string, string>> | undefined, jwk?: Jwk) {
  const issued = await twin.call('POST', `${EDGE}/enrollment-tokens`, { body: { instanceIds: [instanceId], labels } })
  const publicKey = jwk ?? (await newDeviceKeys()).jwk
  return twin.call('POST', `${EDGE}/enrollments`, { token: text(issued.body, 'token'), body: { publicKey } })
}

const enrolled = async (labels?: Readonly<Record<string, string>>): Promise<string> =>
  text((await enroll(labels)).body, 'deviceId')

const change = (id: string, body: object, options: object = {}) =>
  twin.call('POST', `${EDGE}/devices/${id}/labels`, { body, ...options })

async function found(labels: string): Promise<readonly string[]> {
  const { body } = await twin.call('GET', `${EDGE}/devices?${new URLSearchParams({ labels }).toString()}`)
  return (pick(body, 'devices') as readonly { readonly id: string }[]).map(({ id }) => id)
}

it('are set, replaced and removed, and appear in the audit', async () => {
  const id = await enrolled()
  expect(pick((await change(id, { set: { site: 'berlin', line: '3' } })).body, 'labels')).toEqual({
    line: '3',
    site: 'berlin',
  })
  const { body } = await change(id, { set: { site: 'bonn' }, remove: ['line'] })
  expect(pick(body, 'labels')).toEqual({ site: 'bonn' })
  expect(await found('site=bonn')).toEqual([id])
  expect(await found('site=berlin')).toEqual([])
  const audit = await twin.call('GET', `${EDGE}/audit?action=LABEL_DEVICE`)
  expect(pick(audit.body, 'records', 0, 'by', 'kind')).toBe('ADMINISTRATOR')
  expect(JSON.parse(text(audit.body, 'records', 0, 'detail'))).toEqual({ set: { site: 'bonn' }, remove: ['line'] })
})

it('stay when the device changes otherwise', async () => {
  const id = await enrolled({ site: 'berlin' })
  await twin.call('POST', `${EDGE}/devices/${id}/lock`)
  expect(pick((await twin.call('GET', `${EDGE}/devices/${id}`)).body, 'labels')).toEqual({ site: 'berlin' })
})

describe('an enrollment token', () => {
  it('gives its labels to the device', async () => {
    const id = await enrolled({ site: 'berlin', line: '3' })
    expect(await found('line=3,site=berlin')).toEqual([id])
    expect(await found('line=3,site=bonn')).toEqual([])
  })

  it('adds its labels to a device that is enrolled already', async () => {
    const { jwk } = await newDeviceKeys()
    const id = text((await enroll({ site: 'berlin', line: '3' }, jwk)).body, 'deviceId')
    await enroll({ line: '4' }, jwk)
    await enroll(undefined, jwk)
    expect(await found('site=berlin,line=4')).toEqual([id])
  })

  it('is refused if the device would have too many', async () => {
    const { jwk } = await newDeviceKeys()
    const some = (name: string, count: number) =>
      Object.fromEntries(Array.from({ length: count }, (_, n) => [`${name}${n}`, 'v']))
    await enroll(some('a', 10), jwk)
    expect(refusal(await enroll(some('b', 7), jwk))).toEqual([403, 'ENROLLMENT_REFUSED'])
  })
})

describe('the list', () => {
  it('finds devices with all labels, page by page, in order of enrollment', async () => {
    const ids: string[] = []
    for (const line of ['1', '2', '1', '1']) ids.push(await enrolled({ site: 'berlin', line }))
    expect(await found('site=berlin')).toEqual(ids)
    expect(await found('site=berlin,line=1')).toEqual([ids[0], ids[2], ids[3]])
    const first = await twin.call('GET', `${EDGE}/devices?labels=line%3D1&size=2`)
    expect([pick(first.body, 'devices', 1, 'id'), pick(first.body, 'next')]).toEqual([ids[2], 2])
    const last = await twin.call('GET', `${EDGE}/devices?labels=line%3D1&size=2&next=2`)
    expect([pick(last.body, 'devices', 0, 'id'), pick(last.body, 'next')]).toEqual([ids[3], 0])
    const other = await twin.instance('other')
    const { body } = await twin.call('GET', `${EDGE}/devices?labels=line%3D1&instanceId=${other}`)
    expect(pick(body, 'devices')).toEqual([])
  })

  it('refuses text that is no label', async () => {
    expect(refusal(await twin.call('GET', `${EDGE}/devices?labels=site`))).toEqual([400, 'BAD_REQUEST'])
  })
})

it('are refused if they are too many, malformed, or of another instance', async () => {
  const id = await enrolled(Object.fromEntries(Array.from({ length: 16 }, (_, n) => [`k${n}`, 'v'])))
  expect(refusal(await change(id, { set: { more: 'v' } }))).toEqual([400, 'LABEL_INVALID'])
  expect(refusal(await change(id, { set: { 'two words': 'v' } }))).toEqual([400, 'BAD_REQUEST'])
  expect(refusal(await change('00000000-0000-4000-8000-000000000000', { set: { a: 'b' } }))).toEqual([404, 'NOT_FOUND'])
  const token = await limitedToken(twin, { roles: ['operator'], instances: [await twin.instance('other')] })
  expect(refusal(await change(id, { set: { k0: 'x' } }, { token }))).toEqual([403, 'INSTANCE_NOT_IN_SCOPE'])
  const reader = await limitedToken(twin, { roles: ['read'] })
  expect(refusal(await change(id, { set: { k0: 'x' } }, { token: reader }))).toEqual([403, 'ROLE_MISSING'])
})
