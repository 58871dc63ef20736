/** Tokens of both kinds, what they open, and the keys behind them. */
import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { type Check, check } from '../check.ts'
import { DAY, HOUR, type Json, type World, number, publicPem, refused, success, text } from '../world.ts'

const newKey = () => generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey

/** Saves a key until the check is over, and returns its id. */
async function save(world: World, kind: 'administration' | 'client', key = newKey()): Promise<string> {
  const id = world.unique('key')
  world.later(() => world.call('DELETE', `/${kind}-keys/${id}`))
  success(await world.call('PUT', `/${kind}-keys`, { body: [{ id, publicKey: publicPem(key) }] }))
  return id
}

async function listedKeys(world: World): Promise<readonly Json[]> {
  const keys: Json[] = []
  let next = 0
  do {
    const { body }: Json = await world.call('GET', `/public-keys?next=${next}`)
    keys.push(...body.keys)
    next = number(body.next)
  } while (next !== 0)
  return keys
}

export const authenticationChecks: readonly Check[] = [
  check('auth.bearer', 'responds 401 without a token, with another scheme, and without a JWT', async (world) => {
    refused(await world.provisioning('GET', '/instances', { token: null }), 401)
    for (const authorization of [`Basic ${await world.server.admin()}`, 'Bearer', 'Bearer nonsense', 'Bearer a.b.c']) {
      refused(await world.provisioning('GET', '/instances', { token: null, headers: { authorization } }), 401)
    }
    success(await world.provisioning('GET', '/instances?size=1'))
  }),
  check('doc.tokenTime', 'an expired token is refused with 401', async (world) => {
    const { adminKey: key, adminKeyId: keyId } = world.server
    const token = await world.server.token({ kind: 'ADMIN', key, keyId, expiresIn: -HOUR })
    refused(await world.provisioning('GET', '/instances', { token }), 401)
  }),
  check(
    'doc.tokenKey',
    'a token of an unknown key, and one signed by another key, are refused with 401',
    async (world) => {
      const { adminKeyId } = world.server
      for (const keyId of [world.unique('unknown'), adminKeyId]) {
        const token = await world.server.token({ kind: 'ADMIN', key: newKey(), keyId })
        refused(await world.provisioning('GET', '/instances', { token }), 401)
      }
    },
  ),
  check('doc.tokenKey', 'a token without signature is refused with 401', async (world) => {
    const [, payload] = (await world.server.admin()).split('.')
    const head = Buffer.from(JSON.stringify({ alg: 'none', typ: 'JWT' })).toString('base64url')
    refused(await world.provisioning('GET', '/instances', { token: `${head}.${payload ?? ''}.` }), 401)
  }),
  check('auth.instances', 'a client token gives no access to instance operations', async (world) => {
    const instance = await world.instance()
    const token = await world.server.client(instance)
    refused(await world.provisioning('GET', '/instances', { token }), 403)
    refused(await world.provisioning('GET', `/instances/${instance}`, { token }), 403)
    const body = { shortName: 'x', accountId: 'x' }
    refused(await world.provisioning('POST', '/instances', { token, body }), 403)
  }),
  check('auth.rules', 'a client token gives access to actions and conditions', async (world) => {
    const instance = await world.instance()
    const lineItem = await world.lineItem(instance)
    const token = await world.server.client(instance)
    const conditions = `/instances/${instance}/conditions`
    const actions = `/instances/${instance}/line-items/${lineItem}/actions`
    const made = await world.call('POST', conditions, {
      token,
      body: [{ operator: 'IN', property: 'a', values: ['b'] }],
    })
    success(made)
    const [{ id: conditionId }] = made.body
    const body = [{ conditionId, action: 'DENY' }]
    for (const method of ['PUT', 'GET', 'DELETE']) {
      success(await world.call(method, actions, { token, ...(method === 'PUT' ? { body } : {}) }))
    }
    success(await world.call('POST', actions, { token, body }))
    success(await world.call('GET', `/instances/${instance}/line-items/actions`, { token }))
    success(await world.call('PATCH', conditions, { token, body: [{ operator: 'IN', property: 'c', values: ['d'] }] }))
    success(await world.call('GET', conditions, { token }))
    success(await world.call('DELETE', actions, { token }))
    success(await world.call('DELETE', `${conditions}/${conditionId}`, { token }))
    success(await world.call('DELETE', conditions, { token }))
  }),
  check(
    'doc.adminOnly',
    'a client token cannot change line items, rate tables, configuration or keys',
    async (world) => {
      const instance = await world.instance()
      const token = await world.server.client(instance)
      const lineItems = `/instances/${instance}/line-items`
      const closed = [
        await world.provisioning('PUT', lineItems, { token, body: world.lineItemBody() }),
        await world.provisioning('GET', '/rate-tables', { token }),
        await world.provisioning('POST', '/rate-tables', { token, body: {} }),
        await world.provisioning('DELETE', '/rate-tables?version=1', { token }),
        await world.provisioning('GET', '/configuration', { token }),
        await world.provisioning('PATCH', '/configuration', { token, body: [] }),
        await world.call('GET', '/public-keys', { token }),
        await world.call('PUT', '/client-keys', { token, body: [] }),
        await world.call('PUT', '/administration-keys', { token, body: [] }),
      ]
      for (const answer of closed) refused(answer, 403)
    },
  ),
  check(
    'doc.either',
    'a client token reads line items, and makes requests with and without a session',
    async (world) => {
      const { instance, lineItem } = await world.shop()
      const token = await world.server.client(instance)
      const headers = { 'x-instance-id': instance }
      success(await world.provisioning('GET', `/instances/${instance}/line-items`, { token }))
      success(await world.provisioning('GET', `/instances/${instance}/line-items/${lineItem}`, { token }))
      success(await world.access(instance, { PhotoPrint: 1 }, { token }))
      const made = await world.call('POST', '/sessions', { token, headers, body: { instanceId: instance } })
      success(made)
      const path = `/sessions/${text(made.body.sessionId)}`
      const body = {
        requester: { type: 'user', value: 'x' },
        rollbackOnDeny: true,
        requestedItems: [{ item: 'PhotoPrint', count: 1 }],
      }
      success(await world.call('PUT', path, { token, headers, body }))
      success(await world.call('GET', path, { token, headers }))
      success(await world.call('GET', `/sessions?instanceId=${instance}`, { token, headers }))
      success(await world.call('GET', `${path}/heartbeat`, { token, headers }))
      success(await world.call('DELETE', path, { token, headers }))
    },
  ),
  check('doc.aud', 'a client token is refused for an instance that its aud does not name', async (world) => {
    const [mine, other] = [await world.instance(), await world.instance()]
    const token = await world.server.client(mine)
    refused(await world.call('GET', `/instances/${other}/conditions`, { token }), 403)
    refused(await world.provisioning('GET', `/instances/${other}/line-items`, { token }), 403)
    refused(await world.access(other, { A: 1 }, { token }), 403)
    const headers = { 'x-instance-id': other }
    refused(await world.call('POST', '/sessions', { token, headers, body: { instanceId: other } }), 403)
  }),
  check(
    'doc.instanceHeader',
    'sessions require x-instance-id from a client, but not from an administrator',
    async (world) => {
      const [mine, other] = [await world.instance(), await world.instance()]
      const token = await world.server.client(mine)
      refused(await world.call('POST', '/sessions', { token, body: { instanceId: mine } }), 400, 401, 403)
      const headers = { 'x-instance-id': mine }
      refused(await world.call('POST', '/sessions', { token, headers, body: { instanceId: other } }), 400, 403)
      const session = await world.session(other)
      refused(await world.call('GET', `/sessions/${session}`, { token, headers }), 403, 404)
      success(await world.call('GET', `/sessions/${session}`))
    },
  ),
  check(
    ['auth.keys', 'doc.keysPut', 'doc.keysList', 'addresses.base'],
    'keys of both types are saved by an array and listed without secrets',
    async (world) => {
      const ids = { client: await save(world, 'client'), administration: await save(world, 'administration') }
      const keys = await listedKeys(world)
      for (const kind of ['client', 'administration'] as const) {
        const found = keys.find(({ id, type }) => id === ids[kind] && type === `${kind}-key`)
        assert.match(text(found?.publicKey), /BEGIN PUBLIC KEY/)
        assert.ok(Math.abs(number(found.created) - world.now()) < DAY)
        number(found.modified)
      }
      assert.ok(!JSON.stringify(keys).includes('PRIVATE'))
    },
  ),
  check('doc.keysPut', 'PUT with the same id replaces the key; an invalid public key is refused', async (world) => {
    const id = await save(world, 'client')
    const other = publicPem(newKey())
    success(await world.call('PUT', '/client-keys', { body: [{ id, publicKey: other }] }))
    const found = (await listedKeys(world)).filter((key) => key.id === id)
    assert.equal(found.length, 1)
    assert.equal(text(found[0].publicKey).trim(), other.trim())
    refused(await world.call('PUT', '/client-keys', { body: [{ id, publicKey: 'no key' }] }), 400)
  }),
  check('doc.keysDelete', 'a deleted key is not listed, and DELETE of an unknown key responds 404', async (world) => {
    for (const kind of ['client', 'administration'] as const) {
      const id = await save(world, kind)
      const answer = await world.call('DELETE', `/${kind}-keys/${id}`)
      assert.equal(answer.status, 200, answer.text)
      assert.equal(
        (await listedKeys(world)).some((key) => key.id === id),
        false,
      )
      refused(await world.call('DELETE', `/${kind}-keys/${id}`), 404)
    }
  }),
]
