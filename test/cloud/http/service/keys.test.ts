import { EdgeClient } from '../../devices/edge-client.ts'
import { generateKeyPairSync } from 'node:crypto'
import { readFile, stat } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import { makeAccessToken } from '../../../../src/client/access-token.ts'
import { HOUR, MINUTE, type Twin, newKeyPair, openTwin, pick, text, refusal } from '../../harness.ts'

const tokenOf = (twin: Twin, privateKey: string, keyId: string): Promise<string> =>
  makeAccessToken({ kind: 'ADMIN', privateKey, keyId, instanceIds: [], issuer: 'i', now: twin.wall, lifetimeMs: HOUR })

const works = async (twin: Twin, token: string): Promise<boolean> =>
  (await twin.call('GET', '/api/v1.1/public-keys', { token })).status === 200

describe('the first start', () => {
  it('makes an administration key that only its user can read', async () => {
    await using twin = await openTwin()
    const { mode } = await stat(twin.cloud.administrationKeyFile)
    expect(mode & 0o777).toBe(0o600)
    expect(await readFile(twin.cloud.administrationKeyFile, 'utf8')).toContain('BEGIN PRIVATE KEY')
    expect((await stat(twin.settings.store.path)).mode & 0o777).toBe(0o700)
  })

  it('happens once: the key stays over a restart', async () => {
    await using twin = await openTwin()
    const before = await readFile(twin.cloud.administrationKeyFile, 'utf8')
    await twin.restart()
    expect(await readFile(twin.cloud.administrationKeyFile, 'utf8')).toBe(before)
    const { body } = await twin.call('GET', '/api/v1.1/public-keys')
    expect(pick(body, 'keys', 'length')).toBe(1)
  })
})

describe('a clock that was ahead', () => {
  it('locks no key out that was made or saved meanwhile', async () => {
    await using twin = await openTwin()
    const { publicPem, privatePem } = newKeyPair()
    await twin.call('PUT', '/api/v1.0/administration-keys', { body: [{ id: 'a', publicKey: publicPem }] })
    // Corrected while the cloud runs.
    twin.clockAheadMs = -2 * 24 * HOUR
    expect(await works(twin, await tokenOf(twin, privatePem, 'a'))).toBe(true)
    const confirmed = await twin.call('POST', '/edge/api/v1/sweeps/clock/confirm')
    expect(confirmed.status).toBeLessThan(300)
  })

  it('delays the begin of no key that is saved again once it is corrected', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, keys: { ...settings.keys, delay: 10 * MINUTE } }))
    const { publicPem, privatePem } = newKeyPair()
    const save = () => twin.call('PUT', '/api/v1.1/administration-keys', { body: [{ id: 'k', publicKey: publicPem }] })
    const isGood = async () => works(twin, await tokenOf(twin, privatePem, 'k'))
    twin.clockAheadMs = 2 * 24 * HOUR
    await save()
    twin.clockAheadMs = 0
    await twin.advance(10 * MINUTE)
    expect(await isGood()).toBe(false)
    await save()
    await twin.advance(10 * MINUTE)
    expect(await isGood()).toBe(true)
  })

  it('delays the end of no key that is deleted again once it is corrected', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, keys: { ...settings.keys, delay: 10 * MINUTE } }))
    const { publicPem, privatePem } = newKeyPair()
    await twin.call('PUT', '/api/v1.1/administration-keys', { body: [{ id: 'k', publicKey: publicPem }] })
    await twin.advance(10 * MINUTE)
    const drop = async () => (await twin.call('DELETE', '/api/v1.1/administration-keys/k')).status
    const isGood = async () => works(twin, await tokenOf(twin, privatePem, 'k'))
    twin.clockAheadMs = 2 * 24 * HOUR
    expect([await drop(), await drop()]).toEqual([200, 404])
    twin.clockAheadMs = 0
    expect([await isGood(), await drop(), await isGood()]).toEqual([true, 200, true])
    await twin.advance(10 * MINUTE)
    expect(await isGood()).toBe(false)
  })
})

describe('authorization keys', () => {
  it('are added, listed page by page, and deleted', async () => {
    await using twin = await openTwin()
    const [first, second] = [newKeyPair(), newKeyPair()]
    const put = await twin.call('PUT', '/api/v1.0/client-keys', {
      body: [
        { id: 'a', publicKey: first.publicPem },
        { id: 'b', publicKey: second.publicPem },
      ],
    })
    expect(put.status).toBe(200)
    const page = await twin.call('GET', '/floating/api/v1.0/public-keys?next=1&size=1')
    expect(page.body).toEqual({
      keys: [{ id: 'a', type: 'client-key', publicKey: first.publicPem, created: twin.now, modified: twin.now }],
      next: 2,
    })
    const rest = await twin.call('GET', '/api/v1.0/public-keys?next=2&size=10')
    expect(pick(rest.body, 'next')).toBe(0)
    expect(pick(rest.body, 'keys', 0, 'id')).toBe('b')
    expect((await twin.call('DELETE', '/api/v1.0/client-keys/a')).status).toBe(200)
    expect((await twin.call('DELETE', '/api/v1.0/client-keys/a')).status).toBe(404)
    expect((await twin.call('DELETE', '/api/v1.0/administration-keys/b')).status).toBe(404)
  })

  it('work at once, are replaced under the same id, and end when they are deleted', async () => {
    await using twin = await openTwin()
    const [first, second] = [newKeyPair(), newKeyPair()]
    const put = (publicKey: string) =>
      twin.call('PUT', '/api/v1.1/administration-keys', { body: [{ id: 'second admin', publicKey }] })
    await put(first.publicPem)
    expect(await works(twin, await tokenOf(twin, first.privatePem, 'second admin'))).toBe(true)
    await put(second.publicPem)
    expect(await works(twin, await tokenOf(twin, first.privatePem, 'second admin'))).toBe(false)
    expect(await works(twin, await tokenOf(twin, second.privatePem, 'second admin'))).toBe(true)
    expect((await twin.call('DELETE', '/api/v1.1/administration-keys/second%20admin')).status).toBe(200)
    expect(await works(twin, await tokenOf(twin, second.privatePem, 'second admin'))).toBe(false)
  })

  it('leave one administration key: the last cannot be deleted', async () => {
    await using twin = await openTwin()
    const id = text((await twin.call('GET', '/api/v1.1/public-keys')).body, 'keys', 0, 'id')
    const last = await twin.call('DELETE', `/api/v1.1/administration-keys/${id}`)
    expect(last.status).toBe(403)
    expect(pick(last.body, 'code')).toBe('LAST_ADMINISTRATION_KEY')
    await twin.call('PUT', '/api/v1.1/administration-keys', { body: [{ id: 'x', publicKey: newKeyPair().publicPem }] })
    expect((await twin.call('DELETE', `/api/v1.1/administration-keys/${id}`)).status).toBe(200)
    expect((await twin.call('GET', '/api/v1.1/public-keys')).status).toBe(401)
  })

  it('are refused when they cannot verify a token safely', async () => {
    await using twin = await openTwin()
    const weak = generateKeyPairSync('rsa', { modulusLength: 1024 }).publicKey.export({ type: 'spki', format: 'pem' })
    const p384 = generateKeyPairSync('ec', { namedCurve: 'P-384' }).publicKey.export({ type: 'spki', format: 'pem' })
    const ed = generateKeyPairSync('ed25519').publicKey.export({ type: 'spki', format: 'pem' })
    const { privatePem, publicPem } = newKeyPair()
    for (const publicKey of [
      weak,
      p384,
      ed,
      privatePem,
      'text',
      publicPem.replace('PUBLIC', 'RSA PUBLIC'),
      `${publicPem}${publicPem}`,
    ]) {
      const { status, body } = await twin.call('PUT', '/api/v1.1/client-keys', { body: [{ id: 'k', publicKey }] })
      expect(status).toBe(400)
      expect(text(body, 'message')).toContain('body[0].publicKey')
    }
    const twice = [
      { id: 'k', publicKey: publicPem },
      { id: 'k', publicKey: publicPem },
    ]
    expect((await twin.call('PUT', '/api/v1.1/client-keys', { body: twice })).status).toBe(400)
    expect((await twin.call('PUT', '/api/v1.1/client-keys', { body: { id: 'k', publicKey: publicPem } })).status).toBe(
      400,
    )
  })

  it('begin and end after the configured delay, as those of the service do', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, keys: { ...settings.keys, delay: 10 * MINUTE } }))
    const [first, second] = [newKeyPair(), newKeyPair()]
    const put = (publicKey: string) =>
      twin.call('PUT', '/api/v1.1/administration-keys', { body: [{ id: 'k', publicKey }] })
    const isGood = async (pair: typeof first) => works(twin, await tokenOf(twin, pair.privatePem, 'k'))
    await put(first.publicPem)
    expect(await isGood(first)).toBe(false)
    await twin.advance(10 * MINUTE)
    expect(await isGood(first)).toBe(true)
    await put(second.publicPem)
    expect([await isGood(first), await isGood(second)]).toEqual([true, false])
    await twin.advance(10 * MINUTE)
    expect([await isGood(first), await isGood(second)]).toEqual([false, true])
    await twin.call('DELETE', '/api/v1.1/administration-keys/k')
    expect(await isGood(second)).toBe(true)
    expect((await twin.call('DELETE', '/api/v1.1/administration-keys/k')).status).toBe(404)
    await twin.advance(10 * MINUTE)
    expect(await isGood(second)).toBe(false)
  })

  it('verify one at a time, also when one is replaced before or after it has begun', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, keys: { ...settings.keys, delay: 10 * MINUTE } }))
    const pairs = [newKeyPair(), newKeyPair(), newKeyPair(), newKeyPair()]
    const put = async (index: number): Promise<void> => {
      const body = [{ id: 'k', publicKey: pairs[index]?.publicPem }]
      expect((await twin.call('PUT', '/api/v1.1/administration-keys', { body })).status).toBe(200)
    }
    const good = async (): Promise<readonly number[]> => {
      const answers = await Promise.all(
        pairs.map(async (pair) => works(twin, await tokenOf(twin, pair.privatePem, 'k'))),
      )
      return answers.flatMap((isGood, index) => (isGood ? [index] : []))
    }
    await put(0)
    await twin.advance(10 * MINUTE)
    await put(1)
    await twin.advance(10 * MINUTE)
    // The one before it verifies until the third begins, and the first never again.
    await put(2)
    expect(await good()).toEqual([1])
    await twin.advance(5 * MINUTE)
    // The third is replaced before it has begun: it never does.
    await put(3)
    expect(await good()).toEqual([1])
    await twin.advance(5 * MINUTE)
    expect(await good()).toEqual([1])
    await twin.advance(5 * MINUTE)
    expect(await good()).toEqual([3])
  })
})

describe('the limits of an administration key', () => {
  const KEYS = '/api/v1.1/administration-keys'
  const save = (twin: Twin, key: object) => twin.call('PUT', KEYS, { body: [key] })
  const shown = async (twin: Twin, id: string): Promise<unknown> => {
    const { body } = await twin.call('GET', '/api/v1.1/public-keys')
    return (pick(body, 'keys') as { id: string }[]).find((key) => key.id === id)
  }

  it('stay when the key is replaced, and are returned as they can be saved', async () => {
    await using twin = await openTwin()
    const instances = [await twin.instance()]
    const limits = { name: 'Ada', roles: ['operator', 'rules'], instances }
    const [first, second] = [newKeyPair(), newKeyPair()]
    await save(twin, { id: 'k', publicKey: first.publicPem, ...limits })
    await save(twin, { id: 'k', publicKey: second.publicPem })
    const saved = await shown(twin, 'k')
    expect(saved).toMatchObject({ ...limits, publicKey: second.publicPem })
    expect((await save(twin, saved as object)).body).toMatchObject([limits])
    await save(twin, {
      id: 'k',
      publicKey: second.publicPem,
      instances: null,
      roles: ['keys', 'rules', 'operator', 'read'],
    })
    const unlimited = await shown(twin, 'k')
    expect(unlimited).not.toHaveProperty('roles')
    expect(unlimited).not.toHaveProperty('instances')
  })

  it('of a deleted key are not those of a new one with its id', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, keys: { ...settings.keys, delay: MINUTE } }))
    const { publicPem } = newKeyPair()
    await save(twin, { id: 'k', publicKey: publicPem, name: 'Ada', roles: ['read'] })
    await twin.call('DELETE', `${KEYS}/k`)
    expect((await save(twin, { id: 'k', publicKey: publicPem })).body).not.toMatchObject([{ name: 'Ada' }])
  })

  it('take effect with the next request of a token that was accepted before', async () => {
    await using twin = await openTwin()
    const { privatePem, publicPem } = newKeyPair()
    await save(twin, { id: 'k', publicKey: publicPem })
    const token = await tokenOf(twin, privatePem, 'k')
    const create = () =>
      twin.call('POST', '/provisioning/api/v1.1/instances', { token, body: { shortName: 'x', accountId: 'y' } })
    expect((await create()).status).toBe(201)
    await save(twin, { id: 'k', publicKey: publicPem, roles: ['operator'], name: 'Ada' })
    const refused = await create()
    expect(refusal(refused)).toEqual([403, 'ROLE_MISSING'])
    expect(pick(refused.body, 'message')).toBe(
      'This operation requires the role rules. The key Ada has the role operator.',
    )
  })

  it('change together with the key', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, keys: { ...settings.keys, delay: MINUTE } }))
    const [first, second] = [newKeyPair(), newKeyPair()]
    await save(twin, { id: 'k', publicKey: first.publicPem, roles: ['read'] })
    await twin.advance(MINUTE)
    await save(twin, { id: 'k', publicKey: second.publicPem, roles: ['rules'] })
    const create = async ({ privatePem }: typeof first): Promise<unknown> => {
      const token = await tokenOf(twin, privatePem, 'k')
      const body = { shortName: 'x', accountId: 'y' }
      const reply = await twin.call('POST', '/provisioning/api/v1.1/instances', { token, body })
      return pick(reply.body, 'code') ?? reply.status
    }
    expect([await create(first), await create(second)]).toEqual(['ROLE_MISSING', 'TOKEN_INVALID'])
    await twin.advance(MINUTE)
    expect([await create(first), await create(second)]).toEqual(['TOKEN_INVALID', 201])
  })

  it('permit a request to name its instance in the header if this limits the response', async () => {
    await using twin = await openTwin()
    const [mine, other] = [await twin.instance('mine'), await twin.instance('other')]
    const { privatePem, publicPem } = newKeyPair()
    await save(twin, { id: 'k', publicKey: publicPem, roles: ['operator'], instances: [mine] })
    const token = await tokenOf(twin, privatePem, 'k')
    for (const instanceId of [mine, other]) {
      expect((await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId } })).status).toBe(200)
    }
    const list = (path: string, instance: string) =>
      twin.call('GET', path, { token, headers: { 'x-instance-id': instance } })
    expect((await list('/api/v1.1/sessions', mine)).body).toEqual([expect.objectContaining({ instanceId: mine })])
    for (const [path, instance] of [
      ['/api/v1.1/sessions', other],
      [`/api/v1.1/sessions?instanceId=${mine}`, other],
      [`/api/v1.1/sessions?instanceId=${other}`, mine],
      ['/provisioning/api/v1.1/instances', mine],
    ] as const) {
      expect(pick((await list(path, instance)).body, 'code')).toBe('INSTANCE_NOT_IN_SCOPE')
    }
  })

  it('cannot be widened by naming an instance where the operation has none', async () => {
    await using twin = await openTwin()
    const [mine, other] = [await twin.instance('mine'), await twin.instance('other')]
    const { privatePem, publicPem } = newKeyPair()
    await save(twin, { id: 'k', publicKey: publicPem, roles: ['operator', 'rules'], instances: [mine.toUpperCase()] })
    const token = await tokenOf(twin, privatePem, 'k')
    const headers = { 'x-instance-id': mine }
    const table = { effectiveFrom: twin.now, version: '9', items: [{ name: 'Print', rate: 0 }] }
    for (const [method, path, body] of [
      ['POST', `/edge/api/v1/sweeps/clock/confirm?instanceId=${mine}`, undefined],
      ['POST', '/edge/api/v1/sweeps/settlement/confirm', { instanceId: mine }],
      ['GET', '/provisioning/api/v1.1/rate-tables', undefined],
      ['POST', '/provisioning/api/v1.1/rate-tables', table],
      ['GET', '/edge/api/v1/devices', undefined],
      ['GET', '/provisioning/api/v1.1/usage', undefined],
      ['POST', '/edge/api/v1/enrollment-tokens', { instanceIds: [mine, other] }],
      ['GET', `/edge/api/v1/instances/${other}/accounts`, undefined],
    ] as const) {
      const { status, body: said } = await twin.call(method, path, { token, headers, body })
      expect([path, status, pick(said, 'code')]).toEqual([path, 403, 'INSTANCE_NOT_IN_SCOPE'])
    }
    expect((await twin.call('GET', `/edge/api/v1/instances/${mine}/accounts`, { token })).status).toBe(200)
    expect((await twin.call('GET', `/edge/api/v1/devices?instanceId=${mine}`, { token })).status).toBe(200)
  })

  it('exclude a device that also serves another instance', async () => {
    await using twin = await openTwin()
    const [mine, other] = [await twin.instance('mine'), await twin.instance('other')]
    const { privatePem, publicPem } = newKeyPair()
    await save(twin, { id: 'k', publicKey: publicPem, roles: ['operator'], instances: [mine] })
    const token = await tokenOf(twin, privatePem, 'k')
    const { id, keys } = await EdgeClient.join(twin, mine)
    const lock = () => twin.call('POST', `/edge/api/v1/devices/${id}/lock`, { token })
    expect((await lock()).status).toBe(200)
    const enrollment = await twin.enrollmentToken(other)
    await twin.call('POST', '/edge/api/v1/enrollments', { token: enrollment, body: { publicKey: keys.jwk } })
    const refused = await lock()
    expect(refusal(refused)).toEqual([403, 'INSTANCE_NOT_IN_SCOPE'])
    expect(pick(refused.body, 'message')).toContain(other)
  })

  it('are refused where they would lock all administrators out, or mean nothing', async () => {
    await using twin = await openTwin()
    const { body } = await twin.call('GET', '/api/v1.1/public-keys')
    const [only] = pick(body, 'keys') as { id: string; publicKey: string }[]
    const { publicPem } = newKeyPair()
    await save(twin, { id: 'reader', publicKey: publicPem, roles: ['read'] })
    const last = await save(twin, { ...only, roles: ['read', 'operator', 'rules'] })
    expect(refusal(last)).toEqual([403, 'LAST_ADMINISTRATION_KEY'])
    expect((await twin.call('DELETE', `${KEYS}/${only?.id ?? ''}`)).status).toBe(403)
    const instances = [await twin.instance()]
    for (const key of [
      { roles: ['keys'], instances },
      { instances },
      { roles: ['read'], instances: ['00000000-0000-4000-8000-000000000000'] },
      { roles: [] },
      { roles: ['root'] },
    ]) {
      const refused = await save(twin, { id: 'k', publicKey: publicPem, ...key })
      expect([key, refused.status]).toEqual([key, 400])
    }
    const ofClient = { id: 'k', publicKey: publicPem, roles: ['read'] }
    expect((await twin.call('PUT', '/api/v1.1/client-keys', { body: [ofClient] })).status).toBe(400)
    expect(await shown(twin, 'k')).toBeUndefined()
  })
})

describe('a client key that is limited to instances', () => {
  it('signs no token for others, reports this, and shows its limit', async () => {
    await using twin = await openTwin()
    const [mine, other] = [await twin.instance('mine'), await twin.instance('other')]
    const { privatePem, publicPem } = newKeyPair()
    const save = (key: object) => twin.call('PUT', '/api/v1.1/client-keys', { body: [{ id: 'c', ...key }] })
    expect((await save({ publicKey: publicPem, name: 'Shop', instances: [mine] })).body).toMatchObject([
      { instances: [mine] },
    ])
    const whose = { kind: 'CLIENT', privateKey: privatePem, keyId: 'c', issuer: 'i' } as const
    const token = await makeAccessToken({ ...whose, instanceIds: [mine, other], now: twin.now, lifetimeMs: HOUR })
    const list = (id: string) => twin.call('GET', `/api/v1.1/instances/${id}/conditions`, { token })
    expect((await list(mine)).status).toBe(200)
    expect((await list(other)).body).toEqual({
      code: 'INSTANCE_NOT_IN_SCOPE',
      message: `The key Shop is limited to one instance, and this request concerns the instance ${other}.`,
    })
    // It applies to tokens that were accepted before, and stays when the key is replaced.
    await save({ publicKey: publicPem, instances: [other] })
    await save({ publicKey: publicPem })
    expect([(await list(mine)).status, (await list(other)).status]).toEqual([403, 200])
    const unknown = await save({ publicKey: publicPem, instances: ['64d2028c-ae87-4069-a624-66089d957ef9'] })
    expect(unknown.status).toBe(400)
  })
})
