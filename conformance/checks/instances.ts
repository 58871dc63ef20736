/** Instances. */
import assert from 'node:assert/strict'
import { type Check, check } from '../check.ts'
import { HOUR, type Json, type World, number, refused, success, text, uuid } from '../world.ts'

const UNKNOWN = '64d2028c-ae87-4069-a624-66089d957ef9'

async function create(world: World, body: Record<string, unknown>): Promise<Json> {
  const made = await world.provisioning('POST', '/instances', { body })
  success(made)
  return made.body
}

export const instanceChecks: readonly Check[] = [
  check('endpoints.json', 'responses with a body, refusals included, are application/json', async (world) => {
    const instance = await world.instance()
    for (const answer of [
      await world.provisioning('GET', `/instances/${instance}`),
      await world.provisioning('POST', '/instances', { body: {} }),
      await world.provisioning('GET', '/instances', { token: null }),
      await world.call('GET', `/instances/${instance}/conditions`),
    ]) {
      assert.equal(answer.type, 'application/json')
    }
  }),
  check(
    ['instances.create', 'instance.id', 'instance.shortName', 'instance.accountId', 'addresses.provisioning'],
    'POST creates an instance with the given name and account and a new id',
    async (world) => {
      const [shortName, accountId] = [world.unique('name'), world.unique('account')]
      const first = await create(world, { shortName, accountId })
      const second = await create(world, { shortName, accountId })
      assert.equal(first.shortName, shortName)
      assert.equal(first.accountId, accountId)
      assert.notEqual(uuid(first.id), uuid(second.id))
    },
  ),
  check(
    ['instance.created', 'instance.modified', 'doc.ms'],
    'created and modified are POSIX milliseconds near the current time',
    async (world) => {
      const { created, modified } = await create(world, { shortName: 'times', accountId: world.unique('account') })
      for (const time of [created, modified]) {
        assert.ok(Number.isInteger(number(time)))
        assert.ok(Math.abs(time - world.now()) < HOUR, `${time} is not about ${world.now()}`)
      }
    },
  ),
  check(
    ['instance.defaultInstance', 'does.instances', 'instances.list'],
    'at most one instance of an account is its default, and accountId with default=true finds it',
    async (world) => {
      const accountId = world.unique('account')
      const made = [
        await create(world, { shortName: 'one', accountId }),
        await create(world, { shortName: 'two', accountId }),
      ]
      const defaults = made.filter(({ defaultInstance }) => defaultInstance === true)
      assert.ok(made.every(({ defaultInstance }) => typeof defaultInstance === 'boolean'))
      assert.ok(defaults.length <= 1)
      const found = await world.provisioning('GET', `/instances?accountId=${accountId}&default=true`)
      success(found)
      assert.deepEqual(
        found.body.content.map(({ id }: Json) => text(id)),
        defaults.map(({ id }) => text(id)),
      )
    },
  ),
  check('instances.list', 'for an account without a default, the content is empty', async (world) => {
    const found = await world.provisioning('GET', `/instances?accountId=${world.unique('nobody')}&default=true`)
    success(found)
    assert.deepEqual(found.body.content, [])
  }),
  check('instances.list', 'accountId without default, and default without accountId, are refused', async (world) => {
    refused(await world.provisioning('GET', '/instances?accountId=x'), 400)
    refused(await world.provisioning('GET', '/instances?default=true'), 400)
    refused(await world.provisioning('GET', '/instances?accountId=x&default=false'), 400)
  }),
  check(
    ['instances.list', 'doc.paging', 'limits.size'],
    'next leads through every page to the new instances, and ends with 0',
    async (world) => {
      const made = [await world.instance(), await world.instance(), await world.instance()]
      const found: string[] = []
      let next = 0
      do {
        const page: Json = (await world.provisioning('GET', `/instances?next=${next}&size=200`)).body
        found.push(...page.content.map(({ id }: Json) => text(id)))
        const before = next
        next = number(page.next)
        assert.ok(next === 0 || next !== before, 'the page value advances')
      } while (next !== 0)
      assert.equal(new Set(found).size, found.length)
      for (const id of made) assert.ok(found.includes(id))
    },
  ),
  check('instances.get', 'GET returns the same as POST, and 404 for an unknown instance', async (world) => {
    const made = await create(world, { shortName: world.unique('name'), accountId: world.unique('account') })
    const { body } = await world.provisioning('GET', `/instances/${made.id}`)
    assert.deepEqual(body, made)
    refused(await world.provisioning('GET', `/instances/${UNKNOWN}`), 404)
    refused(await world.provisioning('GET', '/instances/no-uuid'), 400)
  }),
  check(
    'instances.paths',
    'instances are listed and created below api as well',
    async (world) => {
      const body = { shortName: 'below api', accountId: world.unique('account') }
      const made = await world.call('POST', '/instances', { body })
      success(made)
      success(await world.call('GET', '/instances'))
      const found = await world.provisioning('GET', `/instances/${made.body.id}`)
      success(found)
      assert.equal(found.body.shortName, body.shortName)
    },
    { versions: ['v1.1'] },
  ),
  check(['limits.shortName', 'instance.shortName'], 'a name of 1 and of 100 characters is accepted', async (world) => {
    for (const shortName of ['x', 'x'.repeat(100)]) {
      const made = await create(world, { shortName, accountId: world.unique('account') })
      assert.equal(made.shortName, shortName)
    }
  }),
  ...[
    ['no shortName', { accountId: 'a' }],
    ['an empty shortName', { shortName: '', accountId: 'a' }],
    ['a shortName of 101 characters', { shortName: 'x'.repeat(101), accountId: 'a' }],
    ['a shortName that is a number', { shortName: 5, accountId: 'a' }],
  ].map(([what, body]) =>
    check(['limits.shortName', 'instance.shortName'], `${what as string} is refused`, async (world) => {
      refused(await world.provisioning('POST', '/instances', { body }), 400)
    }),
  ),
  ...[
    ['no accountId', { shortName: 'a' }],
    ['an empty accountId', { shortName: 'a', accountId: '' }],
  ].map(([what, body]) =>
    check(['limits.accountId', 'instance.accountId'], `${what as string} is refused`, async (world) => {
      refused(await world.provisioning('POST', '/instances', { body }), 400)
    }),
  ),
  check('versions.segment', 'a path with another version segment does not exist', async (world) => {
    const url = `${world.server.target.url}/provisioning/api/v9.9/instances`
    const { status } = await fetch(url, { headers: { authorization: `Bearer ${await world.server.admin()}` } })
    assert.ok(status >= 400 && status < 500)
    success(await world.provisioning('GET', `/instances?size=1`))
  }),
]
