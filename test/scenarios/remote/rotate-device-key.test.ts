// The key of a device is replaced with the processes and commands that people use, under a load of decisions.
import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Site } from '../../../bench/push/site.ts'
import { type DeviceState, deviceEvidence, deviceState } from '../../../src/protocol/edge/administration.ts'
import type { AgentStatus } from '../../../src/protocol/local/status.ts'
import { poll } from './poll.ts'

const COMMAND = fileURLToPath(new URL('../../../bin/tallygate.js', import.meta.url))
const run = promisify(execFile)

let directory = ''
let site: Site
let deviceId = ''
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'tallygate-rotate-'))
  site = await Site.open(directory)
  await site.startAgent(await site.enrollmentToken())
  deviceId = (await until(({ push, accounts }) => push === 'CONNECTED' && accounts.length > 0)).deviceId ?? ''
}, 60_000)
afterAll(async () => {
  await site[Symbol.asyncDispose]()
  await rm(directory, { recursive: true, force: true })
})

const until = (isSo: (status: AgentStatus) => boolean): Promise<AgentStatus> => poll(() => site.status(), isSo)

async function tallygate(...args: string[]): Promise<string> {
  const env = { ...process.env, TALLYGATE_AGENT_STATE_DIRECTORY: join(directory, 'agent') }
  return (await run(process.execPath, [COMMAND, ...args], { env })).stdout
}
const devices = (...args: string[]): Promise<string> =>
  tallygate('devices', ...args, '--url', site.url, '--admin-key', site.adminKeyFile)
/** The lines of the audit about the device. */
const audited = (): Promise<string> =>
  tallygate('audit', 'list', '--device', deviceId, '--url', site.url, '--admin-key', site.adminKeyFile)
const shown = async (): Promise<DeviceState> => deviceState.parse(JSON.parse(await devices('show', deviceId, '--json')))
const local = (...args: string[]): Promise<string> => tallygate(...args, '--socket', site.socketPath)

test(
  'every request is granted while the key is replaced, by either order, and both ledgers are equal afterwards',
  { timeout: 90_000 },
  async () => {
    const load = { granted: 0, failed: [] as string[], isOver: false }
    const worker = async (): Promise<void> => {
      while (!load.isOver) {
        const answer = await site.ask().catch(String)
        if (answer.includes('"1001"')) load.granted += 1
        else load.failed.push(answer)
      }
    }
    const { key: first } = await site.status()
    const workers = [worker(), worker(), worker(), worker()]
    await poll(
      async () => load.granted,
      (granted) => granted > 50,
    )

    const before = load.granted
    const out = await local('rotate-key')
    const second = (await site.status()).key.id
    expect(out).toBe(`The key of this device is now ${second}. It replaced ${first.id}.\n`)
    await poll(shown, ({ key }) => key.id === second)
    expect(load.granted).toBeGreaterThan(before)

    await devices('rotate-key', deviceId)
    const { key: third } = await until(({ key }) => key.id !== second)
    await poll(shown, ({ key }) => key.id === third.id && !key.rotationRequested)
    // Change notifications come by a connection of the key in use.
    await until(({ push }) => push === 'CONNECTED')

    load.isOver = true
    await Promise.all(workers)
    expect(load.failed).toEqual([])
    expect(load.granted).toBeGreaterThan(before)

    await site.stopAgent()
    await site.startAgent(null)
    expect((await until(({ connected }) => connected)).key.id).toBe(third.id)
    await poll(
      () => site.ask().catch(String),
      (answer) => answer.includes('"1001"'),
    )
    load.granted += 1

    // Brings what is left to the twin.
    await devices('drain', deviceId)
    const { lastEntry, accounts, conditions } = await until(({ backlog, unacknowledgedSeq }) => {
      return backlog === 0 && unacknowledgedSeq === null
    })
    expect(conditions).toEqual([])
    expect(lastEntry).toBe(load.granted)
    const used = accounts.reduce((sum, { used }) => sum + used, 0n)
    expect(used).toBe(BigInt(load.granted) * 1_000_000n)
    const device = await poll(shown, ({ outstanding }) => {
      return outstanding.reduce((sum, { billed }) => sum + billed, 0n) === used
    })
    expect(device).toMatchObject({ forked: false, rejected: false, epoch: 1, key: { id: third.id } })
    using client = await site.administrator()
    const evidence = await client.json(
      { method: 'GET', path: `/edge/api/v1/devices/${deviceId}/evidence` },
      deviceEvidence,
    )
    expect(evidence.evidence).toEqual([])

    expect(await local('status', '--all')).toMatch(new RegExp(`^key +${third.id}, for `, 'm'))
    expect(await tallygate('verify', '--db', join(directory, 'agent', 'journal.db'))).toMatch(/^The ledger is intact/)
    const orders = (await audited()).match(/(rotate|replace) device key|drain/g)
    expect(orders).toEqual(['drain', 'replace device key', 'rotate device key', 'replace device key'])
    // No line of either log has a private key in it.
    for (const log of ['agent.log', 'cloud.log']) {
      expect(await readFile(join(directory, log), 'utf8')).not.toContain('PRIVATE KEY')
    }
  },
)
