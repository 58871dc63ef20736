import { execFile, spawn, type ChildProcess } from 'node:child_process'
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { makeAccessToken } from '../../src/client/access-token.ts'
import { COMMAND } from '../support/command.ts'

let directory: string
let running: ChildProcess[]
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tallygate-services-'))
  running = []
})
afterEach(async () => {
  for (const child of running) {
    if (child.exitCode !== null || child.signalCode !== null) continue
    const ended = new Promise((resolve) => child.once('close', resolve))
    child.kill('SIGKILL')
    await ended
  }
  rmSync(directory, { recursive: true })
})

const inside = (...names: string[]) => join(directory, ...names)
const agentArgs = (socket = 'agent.sock', state = 'state') => {
  return ['agent', '--socket-path', inside(socket), '--state-directory', inside(state)]
}
const cloudArgs = ({ http = 0, push = 0 } = {}) => {
  return ['cloud', '--store-path', inside('cloud'), '--http-port', String(http), '--push-port', String(push)]
}

/** Starts a service and waits until it says that it listens. */
async function start(args: readonly string[]): Promise<{ child: ChildProcess; fields: Record<string, unknown> }> {
  const child = spawn(process.execPath, [COMMAND, ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
  running.push(child)
  for await (const line of createInterface({ input: child.stdout })) {
    const fields = JSON.parse(line) as Record<string, unknown>
    if (fields['msg'] === 'listening') return { child, fields }
  }
  throw new Error('it ended before it listened')
}

/** Runs a service that cannot start. */
async function failure(args: readonly string[]): Promise<{ code: unknown; lines: readonly string[] }> {
  const ended = promisify(execFile)(process.execPath, [COMMAND, ...args], { timeout: 20_000 })
  const { code, stderr } = await ended.then(
    () => {
      throw new Error('it started, and ended by itself')
    },
    (error: unknown) => error as { code: unknown; stderr: string },
  )
  return { code, lines: stderr.trimEnd().split('\n') }
}

describe('a service that cannot start says why in one line, with the exit code of the reason:', () => {
  test.each(['agent', 'cloud'])('%s with a settings file that is not there', async (service) => {
    const { code, lines } = await failure([service, '--config', inside('none.toml')])
    expect(code).toBe(78)
    expect(lines).toEqual([
      expect.stringMatching(/^tallygate: CONFIG_UNREADABLE: .*none\.toml: there is no such file\. /) as string,
    ])
  })

  test.each(['agent', 'cloud'])('%s with a settings file that is not TOML', async (service) => {
    writeFileSync(inside('bad.toml'), 'log.level = "info"\nlog level = 5\n')
    const { code, lines } = await failure([service, '--config', inside('bad.toml')])
    expect(code).toBe(78)
    expect(lines).toEqual([expect.stringMatching(/^tallygate: CONFIG_UNREADABLE: .*bad\.toml:2:\d+: /) as string])
  })

  test.each(['agent', 'cloud'])('%s with a misspelt setting', async (service) => {
    writeFileSync(inside('bad.toml'), '[log]\nlevle = "info"\n')
    const { code, lines } = await failure([service, '--config', inside('bad.toml')])
    expect(code).toBe(78)
    expect(lines).toEqual([expect.stringContaining('unknown key log.levle; did you mean log.level?') as string])
  })

  test('the twin on a port that another process has', async () => {
    const other = createServer()
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve))
    const { port } = other.address() as AddressInfo
    const { code, lines } = await failure(cloudArgs({ http: port }))
    await new Promise((resolve) => other.close(resolve))
    expect(code).toBe(75)
    expect(lines.filter((line) => line.startsWith('tallygate: '))).toEqual([
      expect.stringContaining(`ADDRESS_IN_USE: Another process listens on 127.0.0.1:${port} (http.port).`) as string,
    ])
  })

  test.each(['http', 'push'] as const)(
    'the twin on a %s port that another process has, without a trace',
    async (area) => {
      const other = createServer()
      await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve))
      const { port } = other.address() as AddressInfo
      await failure(cloudArgs({ [area]: port }))
      await new Promise((resolve) => other.close(resolve))
      expect(readdirSync(inside('cloud'))).toEqual(['twin.lock'])
    },
  )

  test('the twin on one port for two settings, without a trace', async () => {
    const other = createServer()
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve))
    const { port } = other.address() as AddressInfo
    await new Promise((resolve) => other.close(resolve))
    const { code } = await failure([...cloudArgs({ http: port }), '--metrics-listen', `127.0.0.1:${port}`])
    expect([code, readdirSync(inside('cloud'))]).toEqual([75, ['twin.lock']])
  })

  test('the twin on a push port that another process has', async () => {
    const other = createServer()
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve))
    const { port } = other.address() as AddressInfo
    const { code, lines } = await failure(cloudArgs({ push: port }))
    await new Promise((resolve) => other.close(resolve))
    expect(code).toBe(75)
    expect(lines.filter((line) => line.startsWith('tallygate: '))).toEqual([
      expect.stringContaining(`ADDRESS_IN_USE: Another process listens on 127.0.0.1:${port} (push.port).`) as string,
    ])
  })

  test('the twin on the store of another twin, which continues', async () => {
    const { child } = await start(cloudArgs())
    const { code, lines } = await failure(cloudArgs())
    expect(code).toBe(75)
    expect(lines).toEqual([expect.stringContaining('tallygate: STATE_IN_USE: ') as string])
    expect(child.exitCode).toBeNull()
  })

  test('the twin on an invalid database', async () => {
    mkdirSync(inside('cloud'))
    writeFileSync(inside('cloud', 'twin.db'), 'this is not a database, and longer than its header would be'.repeat(50))
    const { code, lines } = await failure(cloudArgs())
    expect(code).toBe(65)
    expect(lines).toEqual([expect.stringContaining('tallygate: DATABASE_CORRUPT: ') as string])
  })

  test('the agent on a socket path that is a file', async () => {
    writeFileSync(inside('agent.sock'), 'mine')
    const { code, lines } = await failure(agentArgs())
    expect(code).toBe(73)
    expect(lines).toEqual([expect.stringContaining('tallygate: SOCKET_PATH_OCCUPIED: ') as string])
    expect(readFileSync(inside('agent.sock'), 'utf8')).toBe('mine')
  })

  test('the agent on the socket of another agent, which continues', async () => {
    const { child } = await start(agentArgs())
    const { code, lines } = await failure(agentArgs('agent.sock', 'other'))
    expect(code).toBe(75)
    expect(lines).toEqual([expect.stringContaining('tallygate: SOCKET_IN_USE: ') as string])
    expect(child.exitCode).toBeNull()
    await promisify(execFile)(process.execPath, [COMMAND, 'status', '--socket', inside('agent.sock')])
  })

  test('the agent on the state of another agent', async () => {
    await start(agentArgs())
    const { code, lines } = await failure(agentArgs('other.sock'))
    expect(code).toBe(75)
    expect(lines).toEqual([expect.stringContaining('tallygate: STATE_IN_USE: ') as string])
  })
})

describe('serves while its log lines cannot be written:', () => {
  const startWithFullOutput = (args: readonly string[]): ChildProcess => {
    const full = openSync('/dev/full', 'w')
    const child = spawn(process.execPath, [COMMAND, ...args], { stdio: ['ignore', full, 'inherit'] })
    closeSync(full)
    running.push(child)
    return child
  }
  const soon = { timeout: 60_000, interval: 500 }

  test('the agent', { timeout: 70_000 }, async () => {
    const child = startWithFullOutput(agentArgs())
    const status = () => promisify(execFile)(process.execPath, [COMMAND, 'status', '--socket', inside('agent.sock')])
    await vi.waitFor(async () => expect((await status()).stdout).toContain('not enrolled yet'), soon)
    expect(child.exitCode).toBeNull()
  })

  test('the twin', { timeout: 70_000 }, async () => {
    const other = createServer()
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve))
    const { port } = other.address() as AddressInfo
    await new Promise((resolve) => other.close(resolve))
    const child = startWithFullOutput(cloudArgs({ http: port }))
    const isReady = async () => expect((await fetch(`http://127.0.0.1:${port}/readyz`)).status).toBe(200)
    await vi.waitFor(isReady, soon)
    child.kill('SIGTERM')
    expect(await new Promise((resolve) => child.once('close', resolve))).toBe(0)
  })
})

describe('SIGTERM', () => {
  test('ends the agent with 0, and its socket is gone', async () => {
    const { child } = await start(agentArgs())
    expect(existsSync(inside('agent.sock'))).toBe(true)
    child.kill('SIGTERM')
    expect(await new Promise((resolve) => child.once('close', resolve))).toBe(0)
    expect(existsSync(inside('agent.sock'))).toBe(false)
  })

  test('ends the twin with 0', async () => {
    const { child } = await start(cloudArgs())
    child.kill('SIGTERM')
    expect(await new Promise((resolve) => child.once('close', resolve))).toBe(0)
  })
})

test('the key that the first start of the twin makes signs tokens that the twin takes, also after a restart', async () => {
  for (let times = 0; times < 2; times += 1) {
    const { child, fields } = await start(cloudArgs())
    const token = await makeAccessToken({
      kind: 'ADMIN',
      privateKey: readFileSync(String(fields['adminKeyFile']), 'utf8'),
      instanceIds: [],
      issuer: 'test',
      now: Date.now(),
      lifetimeMs: 60_000,
    })
    const answer = await fetch(`${String(fields['http'])}/provisioning/api/v1.1/instances`, {
      headers: { authorization: `Bearer ${token}` },
    })
    expect(answer.status).toBe(200)
    child.kill('SIGTERM')
    await new Promise((resolve) => child.once('close', resolve))
  }
})
