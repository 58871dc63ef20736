import { expect, test } from 'vitest'
import { AGENT_STATUS_PATH } from '../../src/protocol/local/status.ts'
import { agentStatus, instanceId } from './agent-status.ts'
import { fakeService } from './fake-service.ts'
import { tallygate } from './outside.ts'

const path = `GET ${AGENT_STATUS_PATH}`

test('it says in words how the agent is', async () => {
  await using agent = await fakeService('socket', { [path]: { body: agentStatus() } })
  const { code, out } = await tallygate(['status', '--socket', agent.address])
  expect(code).toBe(0)
  expect(out.split('\n')).toEqual([
    'device    0c1d8a1e-0000-4000-8000-000000000000',
    'cloud     connected, last contact 10 seconds ago',
    'hints     connected',
    'ledger    12 entries, 3 not yet in the cloud',
    'spending  from what is at hand, for 24 hours more without the cloud',
    'answers   after their charge is on the disk',
    'storage   50.0 MiB written since the start, 300.0 MiB a day, 9216 bytes for a decision',
    `rules     revision 7 of instance ${instanceId}, revision 8 exists`,
    '',
    'TOKENS OF  AT HAND  CHARGED',
    'LW-ANNUAL  120      30       the pool has no more',
    '',
  ])
})

test('a device that was never enrolled, and what is wrong with it, are shown too', async () => {
  const body = agentStatus({
    deviceId: null,
    connected: false,
    lastContactAt: null,
    incarnation: 0,
    grant: null,
    policies: [],
    accounts: [],
    conditions: [{ subject: 'sync', code: 'CLOUD_UNREACHABLE', message: 'no route', since: 1_799_999_000_000 }],
  })
  await using agent = await fakeService('socket', { [path]: { body } })
  const { out } = await tallygate(['status', '--socket', agent.address])
  expect(out).toContain('device    not enrolled\ncloud     not reached, last contact never\n')
  expect(out).toContain('spending  not yet: never attached to the cloud')
  expect(out).toContain('\n! sync: CLOUD_UNREACHABLE: no route (since 2027-01-15T07:43:20.000Z)\n')
})

test('--json is the document that the agent gave', async () => {
  await using agent = await fakeService('socket', { [path]: { body: agentStatus() } })
  const { out } = await tallygate(['status', '--json', '--socket', agent.address])
  expect(out.split('\n')).toHaveLength(2)
  expect(JSON.parse(out)).toEqual(agentStatus())
})

test('without --socket it asks the agent where the agent’s own settings say', async () => {
  await using agent = await fakeService('socket', { [path]: { body: agentStatus() } })
  const env = { TALLYGATE_AGENT_SOCKET_PATH: agent.address }
  expect(await tallygate(['status'], { env })).toMatchObject({ code: 0 })
  const wrong = await tallygate(['status'], { env: { TALLYGATE_AGENT_SOCKT_PATH: agent.address } })
  expect(wrong).toMatchObject({ code: 78 })
  expect(wrong.err).toMatch(/^tallygate: CONFIG_INVALID: .*did you mean TALLYGATE_AGENT_SOCKET_PATH\? /)
})

test('no agent on the socket is AGENT_UNREACHABLE, exit code 69', async () => {
  const { code, out, err } = await tallygate(['status', '--socket', '/nowhere/agent.sock'])
  expect({ code, out }).toEqual({ code: 69, out: '' })
  expect(err).toBe(
    'tallygate: AGENT_UNREACHABLE: unix:/nowhere/agent.sock: there is no such socket. ' +
      'Start it with `tallygate agent`, or name its socket with --socket.\n',
  )
})

test('something else on the socket is ANSWER_UNEXPECTED', async () => {
  await using stranger = await fakeService('socket', { [path]: { body: { hello: 'world' } } })
  expect(await tallygate(['status', '--socket', stranger.address])).toMatchObject({ code: 76, out: '' })
})
