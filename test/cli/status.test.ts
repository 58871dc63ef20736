import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { type Socket, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, onTestFinished, test } from 'vitest'
import { ERRORS } from '../../src/protocol/errors.ts'
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
    'This device is working: connected, with 120 tokens.',
    '',
    'device    press-7  0c1d8a1e-0000-4000-8000-000000000000',
    'cloud     connected, last contact 10 seconds ago',
    'ledger    12 entries, 3 not yet in the cloud',
    'spending  from available balances, for another 24 hours without the cloud',
    `rules     revision 7 of instance Workshop (${instanceId}), revision 8 is available`,
    '',
    'TOKENS OF  BALANCE  CHARGED  NOTE',
    'LW-ANNUAL  120      30       the cloud has no more, up to 20 of the balance is overdraft',
    '',
  ])
})

test('its times do not depend on the clock of the machine', async () => {
  const clock = { now: 1_800_000_600_000, earliest: 1_800_000_600_000, latest: null }
  await using agent = await fakeService('socket', { [path]: { body: agentStatus({ clock }) } })
  const { out } = await tallygate(['status', '--socket', agent.address])
  expect(out).toContain('cloud     connected, last contact 10 minutes ago\n')
})

test('an expired grant stops the spending', async () => {
  const body = agentStatus({ grant: { term: 4, expiresAt: 1, remainingMs: 0 } })
  await using agent = await fakeService('socket', { [path]: { body } })
  const { out } = await tallygate(['status', '--socket', agent.address])
  expect(out).toMatch(/^spending +stopped: the grant has expired$/m)
})

test('rules that end before the grant end the spending', async () => {
  const policies = [{ ...agentStatus().policies[0]!, remainingMs: 7_200_000 }]
  await using agent = await fakeService('socket', { [path]: { body: agentStatus({ policies }) } })
  const { out } = await tallygate(['status', '--socket', agent.address])
  expect(out).toMatch(/^spending +from available balances, for another 2 hours without the cloud$/m)
  expect(out).toMatch(/^rules .*\), usable for another 2 hours without the cloud, revision 8 is available$/m)
})

test('rules that are too old stop the spending', async () => {
  const body = agentStatus({
    policies: [{ ...agentStatus().policies[0]!, remainingMs: 0 }],
    conditions: [{ subject: 'rules of Workshop', code: 'POLICY_STALE', message: 'They were.', since: 1 }],
  })
  await using agent = await fakeService('socket', { [path]: { body } })
  const { out } = await tallygate(['status', '--socket', agent.address])
  expect(out).toMatch(/^spending +stopped: the rules are too old$/m)
  expect(out).toMatch(/^rules +revision 7 of instance Workshop \(.*\), too old, revision 8 is available$/m)
})

test('a device that was never enrolled, and what is wrong with it, are shown too', async () => {
  const body = agentStatus({
    deviceId: null,
    name: null,
    connected: false,
    lastContactAt: null,
    retryInMs: 7_400,
    epoch: 0,
    grant: null,
    policies: [],
    accounts: [],
    conditions: [{ subject: 'sync', code: 'CLOUD_UNREACHABLE', message: 'no route', since: 1_799_999_000_000 }],
  })
  await using agent = await fakeService('socket', { [path]: { body } })
  const { out } = await tallygate(['status', '--socket', agent.address])
  expect(out).toMatch(/^This device is not enrolled yet: it grants nothing\.\n {2}-> On a machine with .*\n/)
  expect(out).toContain('device    not enrolled\n')
  expect(out).toContain('cloud     not connected, last contact never, next attempt in 7 seconds\n')
  expect(out).toContain('spending  not yet: the device must attach to the cloud first')
  expect(out).toContain('\n! sync: CLOUD_UNREACHABLE: no route (since 2027-01-15T07:43:20.000Z)\n')
})

test('the head of steps is no step', async () => {
  const damaged = { subject: 'damaged ledger', code: 'LEDGER_SALVAGED', message: 'It was.', since: 0 }
  const body = agentStatus({ deviceId: null, conditions: [damaged] })
  await using agent = await fakeService('socket', { [path]: { body } })
  const { out } = await tallygate(['status', '--socket', agent.address])
  expect(out).toContain('\n  With a backup:\n  -> Stop the agent')
  expect(out).toContain('\n  Without a backup, enroll the device again:\n  -> On a machine')
})

test('the remedy of a condition is shown once', async () => {
  const low = { subject: 'tokens of LW-ANNUAL', code: 'TOKENS_LOW', message: 'Few tokens are left.', since: 0 }
  const overdue = { subject: 'backup', code: 'BACKUP_OVERDUE', message: 'There is no backup.', since: 0 }
  const body = agentStatus({ conditions: [low, overdue] })
  await using agent = await fakeService('socket', { [path]: { body } })
  const { out } = await tallygate(['status', '--socket', agent.address])
  expect(out).toContain(`Few tokens are left.\n  -> An administrator raises the quantity`)
  expect(out).toContain(`(since 1970-01-01T00:00:00.000Z)\n! backup: BACKUP_OVERDUE: There is no backup.`)
  expect(out).toContain(`  remedy: ${ERRORS.BACKUP_OVERDUE.remedy}\n`)
  expect(out.match(/remedy:/g)).toHaveLength(1)
})

test('a device that refuses everything does not promise decisions while the cloud does not respond', async () => {
  const conditions = [{ subject: 'cloud', code: 'CLOUD_UNREACHABLE', message: 'No route.', since: 0 }]
  const body = agentStatus({ connected: false, grant: null, conditions })
  await using agent = await fakeService('socket', { [path]: { body } })
  const { out } = await tallygate(['status', '--socket', agent.address])
  expect(out).toContain('This device has no grant, and the cloud is out of reach.')
  expect(out).toMatch(/remedy: Check the network/)
  expect(out).not.toMatch(/keeps deciding|continues to decide/)
})

test('--all adds key, storage and backup, and the balances of actions and requesters', async () => {
  const [line] = agentStatus().accounts
  const action = { ...line!, account: `action/${instanceId}/LW-ANNUAL/${instanceId}` }
  const accounts = [line!, action, { ...action, actionName: 'Design budget' }]
  await using agent = await fakeService('socket', { [path]: { body: agentStatus({ accounts }) } })
  const short = await tallygate(['status', '--socket', agent.address])
  expect(short.out).not.toMatch(/^key |, action/m)
  const { out } = await tallygate(['status', '--all', '--socket', agent.address])
  for (const line of [
    'key           -3gXeJ8G0ZLmVPG6B3oMVl1XYBkkTAqpGmbX3Q8dfPo, for 11 days',
    'live updates  connected',
    'durability    charges are on disk before the response',
    'storage       50.0 MiB written since the start, 300.0 MiB a day, 9216 bytes per decision',
    'backup        no backup recorded',
  ]) {
    expect(out.split('\n')).toContain(line)
  }
  expect(out).toContain(`LW-ANNUAL, action ${instanceId} `)
  expect(out).toContain('LW-ANNUAL, action Design budget ')
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

test('without --socket it uses TALLYGATE_SOCKET, as the client libraries do, before the settings of the agent', async () => {
  await using agent = await fakeService('socket', { [path]: { body: agentStatus() } })
  const ofAgent = { TALLYGATE_AGENT_SOCKET_PATH: '/nowhere/agent.sock' }
  const env = { TALLYGATE_SOCKET: agent.address, ...ofAgent }
  expect(await tallygate(['status'], { env })).toMatchObject({ code: 0, err: '' })
  expect((await tallygate(['status', '--socket', '/elsewhere.sock'], { env })).err).toContain('unix:/elsewhere.sock')
  const empty = await tallygate(['status'], { env: { TALLYGATE_SOCKET: '', ...ofAgent } })
  expect(empty.err).toContain('unix:/nowhere/agent.sock')
})

test('without --socket it needs no other setting: some are wrong until a restart, or secrets of the agent', async () => {
  await using agent = await fakeService('socket', { [path]: { body: agentStatus() } })
  const env = { TALLYGATE_AGENT_CONFIG: '/agent.toml', TALLYGATE_AGENT_LOG_LEVEL: 'loud' }
  const readText = (file: string): string => {
    if (file === '/agent.toml') return `bogus = 1\n[status]\ntoken_file = "/x"\n[socket]\npath = "${agent.address}"\n`
    throw Object.assign(new Error(file), { code: 'EACCES' })
  }
  expect(await tallygate(['status'], { env, readText })).toMatchObject({ code: 0, err: '' })
})

test('no agent on the socket is AGENT_UNREACHABLE, exit code 69', async () => {
  const { code, out, err } = await tallygate(['status', '--socket', '/nowhere/agent.sock'])
  expect({ code, out }).toEqual({ code: 69, out: '' })
  expect(err).toBe(
    'tallygate: AGENT_UNREACHABLE: unix:/nowhere/agent.sock: the socket does not exist. ' +
      'Start the agent, or restart one that hangs (with systemd: `sudo systemctl restart tallygate-agent.socket tallygate-agent`). If it does not start, its output shows why (with systemd: `tallygate logs`). Name the socket of another agent with --socket or TALLYGATE_SOCKET.\n',
  )
})

test('something else on the socket is ANSWER_UNEXPECTED', async () => {
  await using stranger = await fakeService('socket', { [path]: { body: { hello: 'world' } } })
  expect(await tallygate(['status', '--socket', stranger.address])).toMatchObject({ code: 76, out: '' })
})

describe('--check tells by the exit code', () => {
  test.each([
    ['a device that works', { conditions: [] }, 0],
    ['one that needs attention', { connected: false }, 1],
    ['one that refuses', { deviceId: null }, 2],
  ])('%s', async (_what, changes, expected) => {
    const line = agentStatus().accounts[0]!
    const well = {
      policies: [{ instanceId, name: 'Workshop', applied: 8, newest: 8, engine: 1, remainingMs: 604_800_000 }],
      accounts: [{ ...line, exhausted: false }],
    }
    await using agent = await fakeService('socket', { [path]: { body: agentStatus({ ...well, ...changes }) } })
    expect((await tallygate(['status', '--check', '--socket', agent.address])).code).toBe(expected)
    expect((await tallygate(['status', '--socket', agent.address])).code).toBe(0)
  })
})

describe('--watch', () => {
  /** Looks until so much was written, with a status that changes after the second look. */
  async function watched(isTTY: boolean, writes: number): Promise<readonly string[]> {
    const written: string[] = []
    const stop = new AbortController()
    const answers = { [path]: { body: agentStatus() } }
    await using agent = await fakeService('socket', answers)
    const stdout = {
      isTTY,
      write: (text: string) => {
        written.push(text)
        if (written.length === 1) answers[path] = { body: agentStatus({ connected: false }) }
        if (written.length >= writes) stop.abort()
      },
    }
    const args = ['status', '--watch', '--every', '10ms', '--socket', agent.address]
    expect((await tallygate(args, { stdout, stop: () => stop.signal })).code).toBe(0)
    return written
  }

  test('writes one line for each change where it is no terminal', async () => {
    const lines = await watched(false, 2)
    expect(lines[0]).toMatch(/^2027-01-15T08:00:00\.000Z {2}OK {2}.*\[connected, 12 entries, 3 to send, rules 7\]\n$/)
    expect(lines[1]).toMatch(/ATTENTION {2}This device is offline .*\[offline, /)
  })

  test('clears the terminal and draws the whole status at each interval', async () => {
    const pages = await watched(true, 3)
    for (const page of pages) expect(page.startsWith('\u001B[H\u001B[2J')).toBe(true)
    expect(pages[0]).toContain('\nTOKENS OF ')
  })

  test('reports a missing response, and continues', async () => {
    const stop = new AbortController()
    const written: string[] = []
    const stdout = {
      write: (text: string) => {
        written.push(text)
        stop.abort()
      },
    }
    // --every implies --watch.
    const args = ['status', '--every', '10ms', '--socket', '/nowhere/agent.sock']
    expect(await tallygate(args, { stdout, stop: () => stop.signal })).toMatchObject({ code: 0, err: '' })
    expect(written[0]).toMatch(
      /NO RESPONSE {2}unix:\/nowhere\/agent\.sock: the socket does not exist\. Start the agent, /,
    )
  })

  test('refuses --json', async () => {
    expect(await tallygate(['status', '--watch', '--json'])).toMatchObject({ code: 64 })
  })
})

test('a key that is being replaced is shown with the next one', async () => {
  const key = { id: 'a'.repeat(43), since: null, next: 'b'.repeat(43) }
  await using agent = await fakeService('socket', { [path]: { body: agentStatus({ key }) } })
  const { out } = await tallygate(['status', '--all', '--socket', agent.address])
  expect(out).toContain(`key           ${key.id}; ${key.next} will replace it\n`)
})

test.each([
  ['status', []],
  ['session request', [instanceId, '--item', 'Cut', '--requester', 'user:anna']],
])(
  '%s names a socket that accepts connections and never responds, within seconds',
  { timeout: 30_000 },
  async (name, more) => {
    const directory = mkdtempSync(join(tmpdir(), 'tallygate-cli-'))
    const socket = join(directory, 'agent.sock')
    const connections: Socket[] = []
    const server = createServer((connection) => void connections.push(connection)).listen(socket)
    onTestFinished(() => {
      for (const connection of connections) connection.destroy()
      server.close()
      rmSync(directory, { recursive: true })
    })
    await once(server, 'listening')
    const began = performance.now()
    const { code, err } = await tallygate([...name.split(' '), ...more, '--socket', socket])
    expect(performance.now() - began).toBeLessThan(8_000)
    expect(code).toBe(ERRORS.AGENT_UNREACHABLE.exit)
    expect(err).toContain(
      `AGENT_UNREACHABLE: unix:${socket}: no response within 5 s. Start the agent, or restart one that hangs (with systemd:`,
    )
  },
)
