import { generateKeyPairSync } from 'node:crypto'
import { readFile, stat } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import { makeAccessToken } from '../../../../src/client/access-token.ts'
import { HOUR, MINUTE, type Twin, newKeyPair, openTwin, pick, text } from '../../harness.ts'

const tokenOf = (twin: Twin, privateKey: string, keyId: string): Promise<string> =>
  makeAccessToken({ kind: 'ADMIN', privateKey, keyId, instanceIds: [], issuer: 'i', now: twin.now, lifetimeMs: HOUR })

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

  it('verify one at a time, whatever is replaced before it has begun or after', async () => {
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
