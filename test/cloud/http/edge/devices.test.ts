import { ENGINE, type Engine } from '../../../../src/core/engine.ts'
import { limitAccount, lineAccount } from '../../../../src/core/accounts/account.ts'
import { SEGMENT_ACCOUNTS_MAX, SYNC_BODY_BYTES_MAX, signedAnswer } from '../../../../src/protocol/edge/sync.ts'
import { randomUUID } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import fc from '../../../support/fast-check.ts'
import { decodeJwt } from 'jose'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { accountLedger, deviceEvidence, deviceList, deviceState } from '../../../../src/protocol/edge/administration.ts'
import { enrollmentResponse } from '../../../../src/protocol/edge/enrollment.ts'
import { policyDocument } from '../../../../src/protocol/edge/policy-document.ts'
import { openDocument } from '../../../../src/protocol/signing.ts'
import { HOUR, type Twin, openTwin, pick, refusal } from '../../harness.ts'
import { EDGE, EdgeClient } from '../../devices/edge-client.ts'
import { newDeviceKeys, topUpRequest } from '../../sync/test-device.ts'

const TOKENS = 1_000_000n

let twin: Twin
let instanceId: string
beforeEach(async () => {
  twin = await openTwin()
  instanceId = await twin.shop({ quantity: 100 }, 3)
})
afterEach(async () => twin[Symbol.asyncDispose]())

describe('an enrollment token', () => {
  it('names where to go, for which instances, and the keys to pin', async () => {
    const claims = decodeJwt(await twin.enrollmentToken(instanceId))
    expect(claims).toMatchObject({ edge: `${twin.cloud.address}${EDGE}`, instances: [instanceId] })
    expect(claims['pins']).toHaveLength(1)
    expect((claims.exp ?? 0) - (claims.iat ?? 0)).toBe(24 * 3600)
  })

  it('is made for administrators only, and for existing instances', async () => {
    const body = { instanceIds: [instanceId] }
    const token = await twin.clientToken(instanceId)
    expect(refusal(await twin.call('POST', `${EDGE}/enrollment-tokens`, { body, token }))).toEqual([
      403,
      'ACCESS_KIND_WRONG',
    ])
    const nowhere = { instanceIds: [randomUUID()] }
    expect(refusal(await twin.call('POST', `${EDGE}/enrollment-tokens`, { body: nowhere }))).toEqual([404, 'NOT_FOUND'])
    const none = { instanceIds: [] }
    expect(refusal(await twin.call('POST', `${EDGE}/enrollment-tokens`, { body: none }))).toEqual([400, 'BAD_REQUEST'])
    for (const name of ['', '  ']) {
      const blank = await twin.call('POST', `${EDGE}/enrollment-tokens`, { body: { ...body, name } })
      expect([...refusal(blank), blank.text]).toEqual([
        400,
        'BAD_REQUEST',
        expect.stringContaining('body.name: must not'),
      ])
    }
  })

  it('is signed by the same key after a restart, whose file only its owner can read', async () => {
    const before = decodeJwt(await twin.enrollmentToken(instanceId))['pins']
    await twin.restart()
    expect(decodeJwt(await twin.enrollmentToken(instanceId))['pins']).toEqual(before)
    const { mode } = await stat(join(twin.settings.store.path, 'signing-key.pem'))
    expect(mode & 0o777).toBe(0o600)
  })
})

describe('enrolling', () => {
  const enroll = async (token: string, body: unknown) => twin.call('POST', `${EDGE}/enrollments`, { token, body })

  it('gives the same answer to the same key again, and refuses another', async () => {
    const token = await twin.enrollmentToken(instanceId)
    const keys = await newDeviceKeys()
    const first = await enroll(token, { publicKey: keys.jwk, name: 'hall gateway' })
    expect(first.status).toBe(200)
    expect(enrollmentResponse.parse(first.body)).toMatchObject({
      instanceIds: [instanceId],
      addresses: { edge: `${twin.cloud.address}${EDGE}`, service: `${twin.cloud.address}/api` },
    })
    expect((await enroll(token, { publicKey: keys.jwk })).body).toEqual(first.body)
    const other = await newDeviceKeys()
    expect(refusal(await enroll(token, { publicKey: other.jwk }))).toEqual([403, 'ENROLLMENT_REFUSED'])
  })

  it('gives the answer again even when the token has expired meanwhile, but takes no new device by it', async () => {
    const [used, unused] = [await twin.enrollmentToken(instanceId), await twin.enrollmentToken(instanceId)]
    const keys = await newDeviceKeys()
    const first = await enroll(used, { publicKey: keys.jwk })
    twin.now += 25 * HOUR
    expect((await enroll(used, { publicKey: keys.jwk })).body).toEqual(first.body)
    const other = await newDeviceKeys()
    expect(refusal(await enroll(unused, { publicKey: other.jwk }))).toEqual([403, 'ENROLLMENT_REFUSED'])
  })

  it('admits one of two devices that use a token at the same time', async () => {
    const token = await twin.enrollmentToken(instanceId)
    const keys = await Promise.all([newDeviceKeys(), newDeviceKeys(), newDeviceKeys()])
    const replies = await Promise.all(keys.map(({ jwk }) => enroll(token, { publicKey: jwk })))
    expect(replies.map(({ status }) => status).sort()).toEqual([200, 403, 403])
  })

  it('continues as the same device with a key that is known, and serves the instances of both tokens', async () => {
    const keys = await newDeviceKeys()
    const first = await enroll(await twin.enrollmentToken(instanceId), { publicKey: keys.jwk })
    const second = await twin.instance('other customer')
    const again = await enroll(await twin.enrollmentToken(second), { publicKey: keys.jwk })
    expect(pick(again.body, 'deviceId')).toEqual(pick(first.body, 'deviceId'))
    expect(pick(again.body, 'instanceIds')).toEqual([second])
    for (const id of [instanceId, second]) {
      const { body } = await twin.call('GET', `${EDGE}/devices?instanceId=${id}`)
      expect(deviceList.parse(body).devices).toHaveLength(1)
    }
  })

  it('is refused to a revoked key', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    await twin.call('POST', `${EDGE}/devices/${client.id}/revoke`)
    const token = await twin.enrollmentToken(instanceId)
    expect(refusal(await enroll(token, { publicKey: client.keys.jwk }))).toEqual([403, 'DEVICE_REVOKED'])
  })

  it('takes no other token, and no invalid key', async () => {
    const keys = await newDeviceKeys()
    const body = { publicKey: keys.jwk }
    expect(refusal(await enroll(await twin.administrationToken(), body))).toEqual([401, 'TOKEN_INVALID'])
    expect(refusal(await enroll('a.b.c', body))).toEqual([401, 'TOKEN_INVALID'])
    const missing = await twin.call('POST', `${EDGE}/enrollments`, { token: null, body })
    expect(refusal(missing)).toEqual([401, 'TOKEN_MISSING'])
    const token = await twin.enrollmentToken(instanceId)
    const off = { kty: 'EC', crv: 'P-256', x: 'AAAA', y: 'AAAA' }
    expect(refusal(await enroll(token, { publicKey: off }))).toEqual([400, 'BAD_REQUEST'])
    const secret = { ...keys.jwk, d: 'AAAA' }
    expect(refusal(await enroll(token, { publicKey: secret }))).toEqual([400, 'BAD_REQUEST'])
  })

  it('does not take an enrollment token of another twin', async () => {
    await using other = await openTwin()
    const stranger = await other.enrollmentToken(await other.instance())
    const keys = await newDeviceKeys()
    expect(refusal(await enroll(stranger, { publicKey: keys.jwk }))).toEqual([401, 'TOKEN_INVALID'])
  })
})

describe('the token of a device', () => {
  it('opens sessions at the service API for its instances, and a sync is their heartbeat', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const token = await client.token()
    const headers = { 'x-instance-id': instanceId }
    const opened = await twin.call('POST', '/api/v1.1/sessions', { token, headers, body: { instanceId } })
    expect(opened.status).toBe(200)
    twin.now += 60_000
    await client.device.sync()
    const { body } = await twin.call('GET', `/api/v1.1/sessions?instanceId=${instanceId}`)
    expect(body).toMatchObject([{ sessionId: pick(opened.body, 'sessionId'), lastHeartBeat: twin.now }])
  })

  it('does not change rules, charge the pool or end sessions of others', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const token = await client.token()
    const headers = { 'x-instance-id': instanceId }
    const rules = `/api/v1.1/instances/${instanceId}`
    const request = { requester: { type: 'user', value: 'x' }, requestedItems: [{ item: 'Print', count: 30 }] }
    for (const [method, path, body] of [
      ['DELETE', `${rules}/line-items/ACT-1/actions`, undefined],
      ['POST', `${rules}/line-items/ACT-1/actions`, [{ action: 'DENY' }]],
      ['DELETE', `${rules}/conditions`, undefined],
      ['PUT', `${rules}/line-items/ACT-1/consumption-limit`, undefined],
      ['POST', `/elastic/api/v1.1/instances/${instanceId}/access-request`, request],
      ['GET', `/api/v1.1/sessions?instanceId=${instanceId}`, undefined],
    ] as const) {
      const refused = await twin.call(method, path, { token, headers, body })
      expect(refusal(refused), path).toEqual([403, 'ACCESS_KIND_WRONG'])
      expect(pick(refused.body, 'message')).toContain('ClientAccess or AdministrationAccess token')
    }
    const other = await EdgeClient.join(twin, instanceId)
    const open = async (opener: string | undefined) =>
      twin.call('POST', '/api/v1.1/sessions', { headers, body: { instanceId }, ...(opener ? { token: opener } : {}) })
    for (const opened of [await open(undefined), await open(await other.token())]) {
      const path = `/api/v1.1/sessions/${String(pick(opened.body, 'sessionId'))}`
      expect(refusal(await twin.call('DELETE', path, { token, headers }))).toEqual([403, 'SESSION_OF_ANOTHER'])
      expect(refusal(await twin.call('GET', `${path}/heartbeat`, { token, headers }))).toEqual([
        403,
        'SESSION_OF_ANOTHER',
      ])
    }
    expect(await twin.used(instanceId, 'ACT-1')).toBe(0)
  })

  it('gives no access to another instance, whatever its audience claim names', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const other = await twin.instance('other customer')
    const token = await client.token({ audience: [instanceId, other] })
    const headers = { 'x-instance-id': other }
    const opened = await twin.call('POST', '/api/v1.1/sessions', { token, headers, body: { instanceId: other } })
    expect(refusal(opened)).toEqual([403, 'INSTANCE_NOT_IN_TOKEN'])
  })

  it('may be signed with P-256', async () => {
    const client = await EdgeClient.join(twin, instanceId, 'ES256')
    expect(await client.device.sync()).toMatchObject({ outcome: 'MERGED' })
  })

  const attachment = { nonce: 'n'.repeat(16), bootId: 'b', above: 0, acknowledged: 0, backlog: 0, software: 's' }

  it('is refused when its claims are not those of this device', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const other = await EdgeClient.join(twin, instanceId)
    const attempts: [string, unknown][] = [
      [await client.token({ issuer: other.id }), [401, 'TOKEN_INVALID']],
      [await client.token({ signer: other.keys.signer }), [401, 'TOKEN_INVALID']],
      [await client.token({ kid: 'nobody' }), [401, 'TOKEN_INVALID']],
      [await client.token({ kty: 'ADMIN' }), [401, 'TOKEN_INVALID']],
      [await client.token({ until: twin.now + 48 * HOUR }), [401, 'TOKEN_INVALID']],
      [await other.token(), [403, 'ACCESS_KIND_WRONG']],
      [await twin.administrationToken(), [403, 'ACCESS_KIND_WRONG']],
      [await twin.clientToken(instanceId), [403, 'ACCESS_KIND_WRONG']],
    ]
    for (const [token, expected] of attempts) {
      expect(refusal(await client.post('attach', attachment, token))).toEqual(expected)
    }
  })

  it('is answered with the time when it is not in time, here and at the service API', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    for (const change of [
      { from: 0, until: HOUR },
      { from: twin.now + 2 * HOUR, until: twin.now + 3 * HOUR },
    ]) {
      const token = await client.token(change)
      const refused = await client.post('attach', attachment, token)
      expect(refusal(refused)).toEqual([401, 'TOKEN_NOT_IN_TIME'])
      expect(refused.headers.get('date')).toBe(new Date(twin.now).toUTCString())
      const headers = { 'x-instance-id': instanceId }
      const session = await twin.call('POST', '/api/v1.1/sessions', { token, headers, body: { instanceId } })
      expect(refusal(session)).toEqual([401, 'TOKEN_NOT_IN_TIME'])
      expect(session.headers.get('date')).not.toBeNull()
    }
  })

  it('is of no use once the device is revoked', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const revoked = await twin.call('POST', `${EDGE}/devices/${client.id}/revoke`)
    expect(deviceState.parse(revoked.body)).toMatchObject({ revokedAt: twin.now, status: 'FENCED' })
    expect(refusal(await client.post('attach', attachment))).toEqual([403, 'DEVICE_REVOKED'])
    const headers = { 'x-instance-id': instanceId }
    const token = await client.token()
    const session = await twin.call('POST', '/api/v1.1/sessions', { token, headers, body: { instanceId } })
    expect(refusal(session)).toEqual([403, 'DEVICE_REVOKED'])
  })
})

describe('the policy', () => {
  it('is signed, complete, and the same bytes for everybody', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const response = await client.policy()
    expect(response.headers.get('content-type')).toContain('application/jose')
    const document = await response.text()
    const text = await openDocument('policy', document, client.device.twin.keys.trusted[0].publicKey)
    const policy = policyDocument.parse(JSON.parse(text ?? ''))
    expect(policy).toMatchObject({
      instanceId,
      instanceName: 'Test',
      issuedAt: twin.now,
      grantHorizonMs: 24 * HOUR,
      lineItems: [{ id: 'ACT-1', quantity: 100n * TOKENS }],
    })
    expect(response.headers.get('etag')).toBe(`"${policy.revision}"`)
    twin.now += HOUR
    const other = await EdgeClient.join(twin, instanceId)
    expect(await (await other.policy()).text()).toBe(document)
    await twin.restart()
    expect(await (await other.policy()).text()).toBe(document)
  })

  it('is not sent again to a device that has it, until it changes', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const tag = (await client.policy()).headers.get('etag') ?? ''
    for (const known of [tag, `W/${tag}`, `"7", ${tag}`, '*']) {
      const unchanged = await client.policy({ 'if-none-match': known })
      expect([unchanged.status, await unchanged.text()]).toEqual([304, ''])
    }
    await twin.lineItem(instanceId, { activationId: 'ACT-1', quantity: 200 })
    const changed = await client.policy({ 'if-none-match': tag })
    expect([changed.status, changed.headers.get('etag')]).toEqual([200, `"${Number(tag.replaceAll('"', '')) + 1}"`])
    for (const strange of ['W/"x"', '"', '"99999999999999999999"', `${tag}, 7`]) {
      expect((await client.policy({ 'if-none-match': strange })).status).toBe(200)
    }
  })

  it('is refused with the side to upgrade when agent and cloud have engines that do not fit', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const { version, oldest } = ENGINE
    const asked = async (agent: Engine) => {
      const response = await client.policy({}, instanceId, agent)
      return refusal({ status: response.status, body: response.status === 200 ? {} : await response.json() })
    }
    expect(await asked({ version: oldest - 1, oldest: 0 })).toEqual([409, 'AGENT_ENGINE_OLD'])
    expect(await asked({ version: version + 2, oldest: version + 1 })).toEqual([409, 'CLOUD_ENGINE_OLD'])
    expect(await asked({ version: version + 2, oldest: version })).toEqual([200, undefined])
    const headers = { authorization: `Bearer ${await client.token()}` }
    const unstated = await fetch(`${twin.cloud.address}${EDGE}/instances/${instanceId}/policy`, { headers })
    expect(unstated.status).toBe(400)
  })

  it('is shown to devices of the instance only', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const other = await twin.instance('other customer')
    expect((await client.policy({}, other)).status).toBe(403)
    expect((await client.policy({}, randomUUID())).status).toBe(403)
    expect((await client.policy({}, 'x')).status).toBe(400)
    const administrator = await twin.call('GET', `${EDGE}/instances/${instanceId}/policy?engine=1&oldestEngine=1`)
    expect(refusal(administrator)).toEqual([403, 'ACCESS_KIND_WRONG'])
  })
})

describe('attaching', () => {
  it('gives the same answer for the same nonce, with time that is fresh', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const first = await client.attach('one attempt of many')
    twin.now += HOUR
    const second = await client.attach('one attempt of many')
    expect(second.answer).toBe(first.answer)
    expect([first.time, second.time]).toEqual([twin.now - HOUR, twin.now])
    expect((await client.attach('another attempt of many')).answer).not.toBe(first.answer)
  })
})

describe('a sync over HTTP', () => {
  it('bills the tokens that the device has spent, and the service shows them as used', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const account = client.line()
    await client.device.sync([topUpRequest(account, 60n * TOKENS)])
    expect(client.device.charge({ lineItemId: 'ACT-1', accounts: [account], amount: 12n * TOKENS })).toBe(true)
    await client.device.sync()
    expect(await twin.used(instanceId, 'ACT-1')).toBe(12)
    const { body } = await twin.call('GET', `${EDGE}/instances/${instanceId}/accounts`)
    expect(accountLedger.parse(body).accounts).toMatchObject([
      {
        account,
        cap: 100n * TOKENS,
        capInForce: 100n * TOKENS,
        charged: 0n,
        grantedOut: 60n * TOKENS,
        billedByDevices: 12n * TOKENS,
        devices: [
          {
            deviceId: client.id,
            epoch: 1,
            status: 'ACTIVE',
            granted: 60n * TOKENS,
            used: 12n * TOKENS,
            returned: 0n,
          },
        ],
      },
    ])
  })

  it('shows the accounts in pages', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    await twin.lineItem(instanceId, { activationId: 'ACT-2' })
    const accounts = ['ACT-1', 'ACT-2'].map((id) => lineAccount(instanceId, id, 0))
    await client.device.sync(accounts.map((account) => topUpRequest(account, TOKENS)))
    const page = async (query: string) =>
      accountLedger.parse((await twin.call('GET', `${EDGE}/instances/${instanceId}/accounts?${query}`)).body)
    const [first, second, both] = [await page('size=1'), await page('size=1&next=1'), await page('size=2')]
    expect([first.next, second.next, both.next]).toEqual([1, 0, 0])
    expect(both.accounts.map(({ account }) => account)).toEqual(accounts)
    expect([...first.accounts, ...second.accounts]).toEqual(both.accounts)
    expect(both.accounts.map(({ devices }) => devices.length)).toEqual([1, 1])
    expect(refusal(await twin.call('GET', `${EDGE}/instances/${instanceId}/accounts?size=1001`))[0]).toBe(400)
  })

  it('is refused for a while after very many new requesters were named', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const limit = { limit: 5, frequency: 'DAILY', nextReset: twin.now + 24 * HOUR }
    const path = `/api/v1.1/instances/${instanceId}/line-items/ACT-1/consumption-limit`
    expect((await twin.call('PUT', path, { body: limit })).status).toBe(200)
    const named = (from: number) =>
      Array.from({ length: SEGMENT_ACCOUNTS_MAX }, (_, index) => {
        const requester = { type: 'user', value: String(from + index) }
        return topUpRequest(limitAccount(instanceId, 'ACT-1', requester, 0), 0n)
      })
    for (let from = 0; from < 22_000; from += SEGMENT_ACCOUNTS_MAX) await client.device.sync(named(from))
    const { document } = await client.device.seal()
    const refused = await client.post('sync', { segment: document, nonce: randomUUID() })
    expect(refusal(refused)).toEqual([429, 'SYNC_TOO_OFTEN'])
  })

  it('shares the pool with the requests that the twin decides itself', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    await client.device.sync([topUpRequest(client.line(), 60n * TOKENS)])
    expect((await twin.access(instanceId, { Print: 13 })).body).toMatchObject({
      requestedItems: [{ totalTokensCharged: 39 }],
    })
    expect((await twin.access(instanceId, { Print: 1 })).body).toMatchObject({
      requestedItems: [{ totalTokensCharged: 0 }],
    })
    await client.device.sync([topUpRequest(client.line(), 100n * TOKENS)])
    // What the client was refused waits for it.
    expect(client.device.available(client.line())).toBe(60n * TOKENS)
  })

  const sendRaw = async (client: EdgeClient, raw: Uint8Array<ArrayBuffer>, headers: Record<string, string>) =>
    twin.call('POST', `${EDGE}/devices/${client.id}/sync`, { token: await client.token(), raw, headers })

  it('takes a body that is compressed with gzip', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const { document } = await client.device.seal()
    const body = gzipSync(JSON.stringify({ segment: document, nonce: randomUUID() }))
    expect((await sendRaw(client, body, { 'content-encoding': 'gzip' })).status).toBe(200)
  })

  it('takes a long body that is compressed to a short one', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const body = gzipSync(JSON.stringify({ segment: 'x'.repeat(200_000), nonce: randomUUID() }))
    expect(body.length).toBeLessThan(8_192)
    expect(refusal(await sendRaw(client, body, { 'content-encoding': 'gzip' }))).toEqual([422, 'SEGMENT_REJECTED'])
  })

  it('refuses a body that is compressed badly, otherwise, or to a bomb', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const plain = Buffer.from(JSON.stringify({ segment: 'x', nonce: randomUUID() }))
    expect(refusal(await sendRaw(client, plain, { 'content-encoding': 'gzip' }))).toEqual([400, 'BAD_REQUEST'])
    const cut = gzipSync(plain).subarray(0, 20)
    expect(refusal(await sendRaw(client, cut, { 'content-encoding': 'gzip' }))).toEqual([400, 'BAD_REQUEST'])
    expect(refusal(await sendRaw(client, plain, { 'content-encoding': 'br' }))).toEqual([
      415,
      'MEDIA_TYPE_NOT_SUPPORTED',
    ])
    const bomb = gzipSync(Buffer.alloc(32 * 1024 * 1024, ' '))
    expect(bomb.length).toBeLessThan(64 * 1024)
    expect(refusal(await sendRaw(client, bomb, { 'content-encoding': 'gzip' }))).toEqual([413, 'BODY_TOO_LARGE'])
    const broken = Buffer.concat([bomb.subarray(0, 20_000), Buffer.alloc(20_000, 7)])
    expect(refusal(await sendRaw(client, broken, { 'content-encoding': 'gzip' }))).toEqual([413, 'BODY_TOO_LARGE'])
    expect((await twin.call('GET', `${EDGE}/devices`)).status).toBe(200)
  })

  it('takes a body larger than the service takes, and refuses one beyond its own limit', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const large = Buffer.from(JSON.stringify({ segment: 'x'.repeat(2 * 1024 * 1024), nonce: randomUUID() }))
    expect(refusal(await sendRaw(client, large, {}))).toEqual([422, 'SEGMENT_REJECTED'])
    const full = { segment: 'x'.repeat(8_200_300), nonce: randomUUID(), proofs: ['p'.repeat(7_000_000)] }
    expect(refusal(await sendRaw(client, Buffer.from(JSON.stringify(full)), {}))).toEqual([422, 'SEGMENT_REJECTED'])
    const beyond = Buffer.from(JSON.stringify({ segment: 'x'.repeat(SYNC_BODY_BYTES_MAX), nonce: randomUUID() }))
    expect(refusal(await sendRaw(client, beyond, {}))).toEqual([413, 'BODY_TOO_LARGE'])
  })

  it('says that it was refused when it does not add up', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const payload = client.device.payload()
    const lie = { ...payload, counters: [{ account: client.line(), used: '1', refunded: '0', returned: '0' }] }
    const { document } = await client.device.sealAs(lie)
    const refused = await client.post('sync', { segment: document, nonce: randomUUID() })
    expect(refused.status).toBe(200)
    expect(await client.device.accept(signedAnswer.parse(refused.body).answer)).toMatchObject({
      outcome: 'REJECTED',
      problem: 'COUNTERS_DO_NOT_FIT_ENTRIES',
    })
    const { body } = await twin.call('GET', `${EDGE}/devices?instanceId=${instanceId}`)
    expect(deviceList.parse(body).devices).toMatchObject([{ id: client.id, rejected: true, status: 'FENCED' }])
  })

  it('never fails because of its content', { timeout: 60_000 }, async () => {
    const client = await EdgeClient.join(twin, instanceId)
    await client.device.sync([topUpRequest(client.line(), 50n * TOKENS)])
    client.device.charge({ lineItemId: 'ACT-1', accounts: [client.line()], amount: TOKENS })
    const honest = client.device.payload()
    const paths = leaves(honest)
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...paths), fc.oneof(fc.jsonValue(), hostile), async (path, value) => {
        // The allowance for segments that cannot be merged recovers.
        twin.now += HOUR / 12
        const document = await client.device.sign(withLeaf(honest, path, value))
        const reply = await client.post('sync', { segment: document, nonce: randomUUID() })
        expect([200, 422]).toContain(reply.status)
      }),
      { numRuns: 150 },
    )
    await fc.assert(
      fc.asyncProperty(fc.constantFrom('attach' as const, 'sync' as const), fc.jsonValue(), async (what, body) => {
        expect((await client.post(what, body)).status).toBeLessThan(500)
      }),
      { numRuns: 60 },
    )
  })
})

describe('administration', () => {
  it('lists devices page by page, with their applied rules and outstanding tokens', async () => {
    const clients = []
    for (let n = 0; n < 3; n++) clients.push(await EdgeClient.join(twin, instanceId))
    await clients[0]?.device.sync([topUpRequest(clients[0].line(), 10n * TOKENS)])
    const first = deviceList.parse((await twin.call('GET', `${EDGE}/devices?instanceId=${instanceId}&size=2`)).body)
    expect(first.next).toBe(2)
    const rest = deviceList.parse((await twin.call('GET', `${EDGE}/devices?size=2&next=2`)).body)
    expect(rest.next).toBe(0)
    expect([...first.devices, ...rest.devices].map(({ id }) => id)).toEqual(clients.map(({ id }) => id))
    expect(first.devices[0]).toMatchObject({
      lastSyncAt: twin.now,
      software: 'tests',
      epoch: 1,
      status: 'ACTIVE',
      seq: 1,
      policies: [{ instanceId, name: 'Test', applied: 1 }],
      outstanding: [{ account: clients[0]?.line(), unreported: 10n * TOKENS, billed: 0n }],
    })
  })

  it('shows the tokens of line items that a device has, without the limits of requesters', async () => {
    const limit = { limit: 10, frequency: 'DAILY', nextReset: twin.now + 1_000 }
    await twin.call('PUT', `/api/v1.1/instances/${instanceId}/line-items/ACT-1/consumption-limit`, { body: limit })
    const client = await EdgeClient.join(twin, instanceId)
    const ada = limitAccount(instanceId, 'ACT-1', { type: 'user', value: 'ada' }, 0)
    const accounts = [ada, client.line()]
    const answer = await client.device.sync(accounts.map((account) => topUpRequest(account, TOKENS)))
    expect(answer).toMatchObject({ grant: { accounts: accounts.map((account) => ({ account, granted: TOKENS })) } })
    const { outstanding } = deviceState.parse((await twin.call('GET', `${EDGE}/devices/${client.id}`)).body)
    expect(outstanding.map(({ account }) => account)).toEqual([client.line()])
  })

  it('shows a device in service as overdue once it missed three reports', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const isOverdue = async () =>
      deviceState.parse((await twin.call('GET', `${EDGE}/devices/${client.id}`)).body).overdue
    expect(await isOverdue()).toBe(false)
    await client.device.sync()
    twin.now += 3 * twin.settings.edge.syncEvery
    expect(await isOverdue()).toBe(false)
    twin.now += 1
    expect(await isOverdue()).toBe(true)
    expect(deviceList.parse((await twin.call('GET', `${EDGE}/devices`)).body).devices[0]?.overdue).toBe(true)
    await twin.call('POST', `${EDGE}/devices/${client.id}/lock`)
    expect(await isOverdue()).toBe(false)
  })

  it('shows a copied device with the evidence, also after the device has attached again', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    const copy = client.device.copy()
    await client.device.sync()
    const other = await copy.seal()
    await copy.sync()
    await copy.beginAgain()
    const { body } = await twin.call('GET', `${EDGE}/devices`)
    expect(deviceList.parse(body).devices).toMatchObject([{ forked: true, rejected: false, status: 'ACTIVE' }])
    const shown = deviceEvidence.parse((await twin.call('GET', `${EDGE}/devices/${client.id}/evidence`)).body)
    expect(shown.evidence.find(({ hash }) => hash === other.hash)).toMatchObject({
      epoch: 1,
      kind: 'FORK',
      seq: 1,
      document: other.document,
      recordedHash: client.device.state.hash,
    })
  })

  it('asks a device to return its tokens', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    await client.device.sync([topUpRequest(client.line(), 10n * TOKENS)])
    const asked = await twin.call('POST', `${EDGE}/devices/${client.id}/release`)
    expect(deviceState.parse(asked.body)).toMatchObject({ releaseRequested: true })
    expect(await client.device.sync()).toMatchObject({ directives: ['release'] })
  })

  it('accepts only existing devices and instances, and administrators', async () => {
    const unknown = randomUUID()
    expect(refusal(await twin.call('POST', `${EDGE}/devices/${unknown}/revoke`))).toEqual([404, 'NOT_FOUND'])
    expect(refusal(await twin.call('POST', `${EDGE}/devices/${unknown}/release`))).toEqual([404, 'NOT_FOUND'])
    expect(refusal(await twin.call('GET', `${EDGE}/devices/${unknown}/evidence`))).toEqual([404, 'NOT_FOUND'])
    expect(refusal(await twin.call('POST', `${EDGE}/devices/x/release`))).toEqual([400, 'BAD_REQUEST'])
    expect(refusal(await twin.call('GET', `${EDGE}/instances/${unknown}/accounts`))).toEqual([404, 'NOT_FOUND'])
    expect(refusal(await twin.call('GET', `${EDGE}/devices?instanceId=${unknown}`))).toEqual([404, 'NOT_FOUND'])
    expect(refusal(await twin.call('GET', `${EDGE}/devices?size=-1`))).toEqual([400, 'BAD_REQUEST'])
    const client = await EdgeClient.join(twin, instanceId)
    const token = await client.token()
    for (const [method, path] of [
      ['GET', `${EDGE}/devices`],
      ['GET', `${EDGE}/instances/${instanceId}/accounts`],
      ['GET', `${EDGE}/devices/${client.id}/evidence`],
      ['POST', `${EDGE}/devices/${client.id}/revoke`],
      ['POST', `${EDGE}/devices/${client.id}/release`],
    ] as const) {
      expect(refusal(await twin.call(method, path, { token }))).toEqual([403, 'ACCESS_KIND_WRONG'])
    }
  })

  it('cannot release a device that is revoked', async () => {
    const client = await EdgeClient.join(twin, instanceId)
    await twin.call('POST', `${EDGE}/devices/${client.id}/revoke`)
    expect(refusal(await twin.call('POST', `${EDGE}/devices/${client.id}/release`))).toEqual([409, 'CONFLICT'])
  })
})

/** Values that could pass for numbers, texts or keys. */
const hostile = fc.constantFrom<unknown>(
  -1,
  0,
  1.5,
  2 ** 53,
  1e308,
  '',
  '-0',
  '9223372036854775807',
  '1e3',
  'line/x/y/0',
  'a'.repeat(64),
  '\u0000',
  '\ud800',
  [],
  {},
  { __proto__: 1 },
  null,
  JSON.stringify({ n: 1 }),
  '['.repeat(100_000),
)

type Path = readonly (string | number)[]

function leaves(value: unknown, path: Path = []): Path[] {
  if (typeof value !== 'object' || value === null) return [path]
  return [path, ...Object.entries(value).flatMap(([key, child]) => leaves(child, [...path, key]))]
}

function withLeaf(value: unknown, path: Path, leaf: unknown): unknown {
  const [key, ...rest] = path
  if (key === undefined) return leaf
  const copy: Record<string | number, unknown> | unknown[] = Array.isArray(value)
    ? [...(value as unknown[])]
    : { ...(value as object) }
  const at = copy as Record<string | number, unknown>
  at[key] = withLeaf(at[key], rest, leaf)
  return copy
}
