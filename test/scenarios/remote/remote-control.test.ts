// The whole way, with the processes and the command that an operator uses: an order at the twin, a change notification over the broker, a
// pull of the agent, and what an application on the device sees of it. The timer of the agent is out of the game.
import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Site } from '../../../bench/push/site.ts'
import { type DeviceState, deviceState } from '../../../src/protocol/edge/administration.ts'
import type { AgentStatus } from '../../../src/protocol/local/status.ts'
import { poll } from './poll.ts'

const COMMAND = fileURLToPath(new URL('../../../bin/tallygate.js', import.meta.url))
const run = promisify(execFile)

let directory = ''
let site: Site
let deviceId = ''
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'tallygate-remote-'))
  site = await Site.open(directory)
  await site.startAgent(await site.enrollmentToken())
  deviceId = (await until(({ push, epoch }) => push === 'CONNECTED' && epoch === 1)).deviceId ?? ''
}, 60_000)
afterAll(async () => {
  await site[Symbol.asyncDispose]()
  await rm(directory, { recursive: true, force: true })
})

const until = (isSo: (status: AgentStatus) => boolean): Promise<AgentStatus> => poll(() => site.status(), isSo)

/** `tallygate devices ...` */
async function devices(...args: string[]): Promise<string> {
  const access = ['--url', site.url, '--admin-key', site.adminKeyFile]
  return (await run(process.execPath, [COMMAND, 'devices', ...args, ...access])).stdout
}

/** The lines of the audit about the device. */
async function audited(): Promise<string> {
  const access = ['--url', site.url, '--admin-key', site.adminKeyFile]
  return (await run(process.execPath, [COMMAND, 'audit', 'list', '--device', deviceId, ...access])).stdout
}
const shown = async (): Promise<DeviceState> => deviceState.parse(JSON.parse(await devices('show', deviceId, '--json')))
const outstanding = async (): Promise<bigint> =>
  (await shown()).outstanding.reduce((sum, { unreported }) => sum + unreported, 0n)
const billed = async (): Promise<bigint> =>
  (await shown()).outstanding.reduce((sum, account) => sum + account.billed, 0n)

const askUntilGranted = (): Promise<string> =>
  poll(
    () => site.ask().catch(String),
    (answer) => answer.includes('"1001"'),
  )

test(
  'a device follows what an administrator orders, from the first lock to the end of its service',
  { timeout: 60_000 },
  async () => {
    await askUntilGranted()

    // A changed rule arrives by a change notification.
    await site.change(2_000_000)
    await until(({ policies: [policy] }) => policy !== undefined && policy.applied >= 3)

    await devices('lock', deviceId)
    const locked = await until(({ suspension }) => suspension?.state === 'LOCKED')
    await expect(site.ask()).rejects.toThrow(/locked at \d{4}-.* by an administrator/)
    expect(locked.conditions).toContainEqual(expect.objectContaining({ code: 'DEVICE_LOCKED' }))
    const { stdout } = await run(process.execPath, [COMMAND, 'status', '--socket', site.socketPath])
    expect(stdout).toContain('stopped: locked by an administrator')
    expect(await devices('list')).toContain('locked')

    // Over a restart, before the cloud has been heard.
    await site.stopAgent()
    await site.startAgent(null)
    await expect(site.ask()).rejects.toThrow(/locked/)
    await until(({ push }) => push === 'CONNECTED')

    // What a locked device gives back stays with the pool.
    await devices('drain', deviceId)
    await poll(outstanding, (amount) => amount === 0n)

    await devices('unlock', deviceId)
    await until(({ suspension }) => suspension === null)
    await askUntilGranted()
    const spent = (await billed()) + 1_000_000n

    await devices('terminate', deviceId)
    await until(({ suspension, backlog }) => suspension?.state === 'TERMINATED' && backlog === 0)
    await expect(site.ask()).rejects.toThrow(/service of this device was ended/)
    await poll(billed, (amount) => amount === spent)
    await poll(outstanding, (amount) => amount === 0n)

    // The same key, the same ledger, the same device.
    await site.stopAgent()
    await site.startAgent(await site.enrollmentToken())
    const again = await until(({ suspension, fenced, epoch }) => suspension === null && !fenced && epoch === 2)
    expect(again.deviceId).toBe(deviceId)
    await askUntilGranted()

    await devices('revoke', deviceId)
    expect(await devices('list')).toContain('revoked')
    const end = await until(({ push, conditions }) => push === 'DISCONNECTED' && conditions.length > 0)
    expect(end.conditions).toEqual([
      expect.objectContaining({
        subject: 'revocation',
        code: 'DEVICE_REVOKED',
        message: expect.stringMatching(/ was revoked at \d{4}-.*Z by an administrator\.$/) as string,
      }),
    ])
    const report = (await run(process.execPath, [COMMAND, 'status', '--socket', site.socketPath])).stdout
    expect(report).toContain('The key of this device was revoked')
    expect(report).not.toContain('BROKER_REFUSED')
    const orders = (await audited()).match(/(un)?lock|terminate|drain|revoke/g)
    expect(orders).toEqual(['revoke', 'terminate', 'unlock', 'drain', 'lock'])
  },
)
