import { expect, test } from 'vitest'
import { AGENT_ROTATE_KEY_PATH } from '../../src/protocol/local/rotate-key.ts'
import { AGENT_STATUS_PATH } from '../../src/protocol/local/status.ts'
import { agentStatus } from './agent-status.ts'
import { fakeService } from './fake-service.ts'
import { tallygate } from './outside.ts'

const [key, next] = ['a'.repeat(43), 'b'.repeat(43)]
const ordered = { [`POST ${AGENT_ROTATE_KEY_PATH}`]: { body: { key, next } } }
const standing = (changes: Parameters<typeof agentStatus>[0]) => ({
  [`GET ${AGENT_STATUS_PATH}`]: { body: agentStatus(changes) },
})

test('it says that the device key was replaced', async () => {
  const answers = { ...ordered, ...standing({ key: { id: next, since: 0, next: null } }) }
  await using agent = await fakeService('socket', answers)
  expect(await tallygate(['rotate-key', '--socket', agent.address])).toEqual({
    code: 0,
    out: `The key of this device is now ${next}. It replaced ${key}.\n`,
    err: '',
  })
  const { out } = await tallygate(['rotate-key', '--json', '--socket', agent.address])
  expect(JSON.parse(out)).toEqual({ key, next, done: true })
})

test('without a connection the order stands', async () => {
  const answers = { ...ordered, ...standing({ key: { id: key, since: 0, next }, connected: false }) }
  await using agent = await fakeService('socket', answers)
  const { code, out } = await tallygate(['rotate-key', '--no-wait', '--socket', agent.address])
  const check = `tallygate status --all --socket ${agent.address}`
  expect([code, out]).toEqual([
    0,
    `The key ${next} replaces ${key} once the cloud is reached. Run ${check} to check.\n`,
  ])
  expect((await tallygate(check.split(' ').slice(1))).out).toContain(`${next} will replace it`)
})

test('a key that the cloud does not take is an error, with what to do', async () => {
  const condition = { subject: 'device key', code: 'DEVICE_KEY_REFUSED', message: 'It is taken.', since: 0 }
  const answers = { ...ordered, ...standing({ key: { id: key, since: 0, next }, conditions: [condition] }) }
  await using agent = await fakeService('socket', answers)
  const { code, out, err } = await tallygate(['rotate-key', '--socket', agent.address])
  expect([code, out]).toEqual([1, ''])
  expect(err).toMatch(/^tallygate: DEVICE_KEY_REFUSED: It is taken. Read the message./)
})
