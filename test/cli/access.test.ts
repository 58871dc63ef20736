import { describe, expect, test } from 'vitest'
import { AGENT_STATUS_PATH } from '../../src/protocol/local/status.ts'
import { agentStatus, instanceId } from './agent-status.ts'
import { fakeService } from './fake-service.ts'
import { tallygate } from './outside.ts'

const path = `POST /elastic/api/v1.1/instances/${instanceId}/access-request`
const status = { [`GET ${AGENT_STATUS_PATH}`]: { body: agentStatus() } }
const second = instanceId.replace(/9$/, '8')
/** @param names of two instances at most; null: not known yet */
const serving = (...names: readonly (string | null)[]) => {
  const policies = names.map((name, index) => {
    return {
      instanceId: index === 0 ? instanceId : second,
      name,
      applied: 1,
      newest: 1,
      engine: 1,
      remainingMs: 604_800_000,
    }
  })
  return { [`GET ${AGENT_STATUS_PATH}`]: { body: agentStatus({ policies }) } }
}
const item = ['--item', 'LaserCut', '--requester', 'user:anna:keller']

const CORRELATION = '0b8a1a52-6f3e-4b53-a6a5-9a7f6a0d8d11'
const explained = (socket: string) => `Each check: tallygate explain ${CORRELATION} --socket ${socket}\n`

const answer = (code: string, charged: string, lineItems: string) =>
  `{"correlationId":"${CORRELATION}","requestedItems":[{"status":{"code":"${code}","description":"Because"},"totalTokensCharged":${charged},"lineItems":[${lineItems}]}]}`

test('an allowed request shows that it costs one token', async () => {
  const body = answer('1001', '1', '{"activationId":"A","tokensCharged":1}')
  await using agent = await fakeService('socket', { ...status, [path]: { body } })
  expect((await tallygate(['access', '--socket', agent.address, ...item])).out).toBe('allowed: 1 token, 1 from A\n')
})

test('an allowed request says what was charged, exactly, and ends with 0', async () => {
  const body = answer('1001', '9007199254740993.5', '{"activationId":"A","tokensCharged":9007199254740993.5}')
  await using agent = await fakeService('socket', { ...status, [path]: { body } })
  const { code, out } = await tallygate([
    ...['access', '--socket', agent.address, ...item],
    ...['--item-version', '1.0', '--count', '2.5', '--attribute', 'role=member', '--attribute', 'note=a=b'],
  ])
  expect({ code, out }).toEqual({ code: 0, out: 'allowed: 9007199254740993.5 tokens, 9007199254740993.5 from A\n' })
  expect(agent.asked.at(-1)!.body).toEqual({
    requester: { type: 'user', value: 'anna:keller', dictionary: { role: 'member', note: 'a=b' } },
    requestedItems: [{ item: 'LaserCut', version: '1.0', count: 2.5 }],
  })
})

test('a refused request says why, and how to see more, and ends with 1', async () => {
  await using agent = await fakeService('socket', { [path]: { body: answer('2003', '0', '') } })
  const args = ['access', '--socket', agent.address, '--instance', instanceId, ...item]
  expect(await tallygate(args)).toEqual({ code: 1, out: 'refused (2003): Because\n', err: explained(agent.address) })
  expect(agent.asked.filter(({ method }) => method === 'POST')).toHaveLength(1)
})

test('an unknown item brings the advice of the agent', async () => {
  const headers = { 'x-tallygate-advice': 'LaserCut exists as version 1.0' }
  await using agent = await fakeService('socket', { [path]: { body: answer('2001', '0', ''), headers } })
  const args = ['access', '--socket', agent.address, '--instance', instanceId, ...item]
  expect(await tallygate(args)).toMatchObject({
    code: 1,
    err: `LaserCut exists as version 1.0\n${explained(agent.address)}`,
  })
})

test('an item that is unlike all others brings the way to list them', async () => {
  await using agent = await fakeService('socket', { [path]: { body: answer('2001', '0', '') } })
  const args = ['access', '--socket', agent.address, '--instance', instanceId, ...item]
  expect(await tallygate(args)).toMatchObject({
    code: 1,
    err: `All items: tallygate offers --socket ${agent.address}\n${explained(agent.address)}`,
  })
})

test('--json is the answer as it came', async () => {
  const body = answer('1001', '1.500', '')
  await using agent = await fakeService('socket', { ...status, [path]: { body } })
  expect((await tallygate(['access', '--json', '--socket', agent.address, ...item])).out).toBe(`${body}\n`)
})

describe('without --instance', () => {
  test('a device that serves several is asked to choose', async () => {
    await using agent = await fakeService('socket', serving('Workshop', 'Plant 7'))
    const { code, out, err } = await tallygate(['access', '--socket', agent.address, ...item])
    expect({ code, out }).toEqual({ code: 64, out: '' })
    expect(err).toContain(
      `The device serves several instances: Workshop (${instanceId}), Plant 7 (${second}). Select one with --instance.`,
    )
  })

  test('a device that serves none is not enrolled', async () => {
    const none = agentStatus({ policies: [], deviceId: null })
    await using agent = await fakeService('socket', { [`GET ${AGENT_STATUS_PATH}`]: { body: none } })
    const { code, err } = await tallygate(['access', '--socket', agent.address, ...item])
    expect(code).toBe(78)
    expect(err).toContain('NOT_ENROLLED: This device is not enrolled yet: it grants nothing. On a machine with')
  })

  test('a device that cannot reach the cloud with its enrollment token needs the network, not another token', async () => {
    const condition = {
      subject: 'enrollment',
      code: 'CLOUD_UNREACHABLE',
      message: 'The cloud does not respond.',
      since: 0,
    }
    const none = agentStatus({ policies: [], deviceId: null, conditions: [condition] })
    await using agent = await fakeService('socket', { [`GET ${AGENT_STATUS_PATH}`]: { body: none } })
    const { code, err } = await tallygate(['access', '--socket', agent.address, ...item])
    expect(code).toBe(78)
    expect(err).toContain('The cloud does not respond. Connect this device to the network of the cloud.')
    expect(err).not.toContain('enrollment-token')
  })

  test('a user that may not observe the agent is asked for the id of the instance', async () => {
    const body = { code: 'CALLER_NOT_ALLOWED', message: 'uid 1000 may not observe this agent' }
    const refused = { [`GET ${AGENT_STATUS_PATH}`]: { status: 403, body } }
    await using agent = await fakeService('socket', { ...refused, [path]: { body: answer('1001', '1', '') } })
    const args = ['access', '--socket', agent.address, ...item]
    const { code, err } = await tallygate(args)
    expect([code, err]).toEqual([77, expect.stringContaining('Give the id of the instance with --instance: ')])
    expect((await tallygate([...args, '--instance', instanceId])).code).toBe(0)
  })
})

describe('--instance', () => {
  const ask = async (named: string, ...names: readonly (string | null)[]) => {
    const allowed = { body: answer('1001', '1', '') }
    await using agent = await fakeService('socket', {
      ...serving(...names),
      [path]: allowed,
      [path.replace(instanceId, second)]: allowed,
    })
    const { code, err } = await tallygate(['access', '--socket', agent.address, '--instance', named, ...item])
    return { code, err, asked: agent.asked.map(({ method, url }) => `${method} ${url}`) }
  }

  test('takes the name of an instance', async () => {
    const { code, asked } = await ask('Plant 7', 'Workshop', 'Plant 7')
    expect([code, asked.at(-1)]).toEqual([0, path.replace(instanceId, second)])
  })

  test('takes an id that no rules name yet', async () => {
    expect(await ask(instanceId.toUpperCase())).toMatchObject({
      ...{ code: 0, err: '' },
      asked: [`GET ${AGENT_STATUS_PATH}`, path],
    })
  })

  test('with an unknown name lists the instances of the device, without names before the rules are there', async () => {
    const { code, err } = await ask('Workshp', 'Workshop', null)
    expect(code).toBe(1)
    expect(err).toContain(
      `NOT_FOUND: The device serves no instance Workshp. It serves Workshop (${instanceId}), ${second}. Name one of them with --instance.`,
    )
  })

  test('with a name that several instances have lists them and asks for the id', async () => {
    const { code, err, asked } = await ask('Plant', 'Plant', 'Plant')
    expect([code, asked.length]).toEqual([64, 1])
    expect(err).toContain(
      `Several instances have the name Plant: Plant (${instanceId}), Plant (${second}). Use the id.`,
    )
  })
})

test('a limit is named with the time to wait', async () => {
  const body = { code: 'CALLER_LIMITED', message: 'uid 1000 may spend 5 tokens per hour' }
  await using agent = await fakeService('socket', { [path]: { status: 429, headers: { 'retry-after': '40' }, body } })
  const args = ['access', '--socket', agent.address, '--instance', instanceId, ...item]
  const err = `tallygate: CALLER_LIMITED: ${body.message}. Wait 40 s, or raise the limit of this user (setting callers.limits).\n`
  expect(await tallygate(args)).toEqual({ code: 1, out: '', err })
  expect(await tallygate([...args, '--json'])).toEqual({ code: 1, out: '', err })
})

test.each([
  ['a count of nothing', [...item, '--count', '0']],
  ['a count that is no number', [...item, '--count', '0x10']],
  ['a requester without a type', ['--item', 'A', '--requester', ':x']],
  ['an attribute without a value', [...item, '--attribute', 'role']],
  [
    'an attribute with two values',
    [...item, '--instance', instanceId, '--attribute', 'role=a', '--attribute', 'role=b'],
  ],
])('%s is USAGE', async (_what, args) => {
  expect(await tallygate(['access', '--socket', '/nowhere', ...args])).toMatchObject({ code: 64 })
})
