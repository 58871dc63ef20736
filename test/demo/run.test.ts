import { execFile, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { COMMAND } from '../support/command.ts'
import { childrenOf } from '../support/processes.ts'

const IN_TIME = 120_000

interface Report {
  readonly succeeded: boolean
  readonly phases: readonly { readonly requests: number; readonly outcomes: Readonly<Record<string, number>> }[]
  readonly accounts: readonly {
    readonly lineItemId: string
    readonly part: string | null
    readonly answered: string | null
    readonly device: string
    readonly cloud: string
    readonly service: string | null
    readonly exported: string | null
    readonly difference: string
  }[]
  readonly alarms: number
  readonly kills: number
  readonly disturbances: Readonly<Record<string, number>>
  readonly directory: string | null
}

let temporary: string
beforeEach(() => {
  temporary = mkdtempSync(join(tmpdir(), 'tallygate-run-'))
})
afterEach(() => {
  rmSync(temporary, { recursive: true })
})

async function demo(...flags: string[]): Promise<Report> {
  const args = [COMMAND, 'demo', '--json', ...flags]
  const { stdout } = await promisify(execFile)(process.execPath, args, { env: { ...process.env, TMPDIR: temporary } })
  expect(stdout.trimEnd().split('\n')).toHaveLength(1)
  return JSON.parse(stdout) as Report
}

function expectAgreement({ succeeded, phases, accounts }: Report): void {
  expect(succeeded).toBe(true)
  expect(phases.map(({ requests }) => requests)).toEqual([800, 800, 800])
  const named = accounts.map(({ lineItemId, part }) => (part === null ? lineItemId : `${lineItemId}: ${part}`))
  expect(named).toEqual(
    expect.arrayContaining([
      ...['LW-ANNUAL-CONTRACT', 'LW-ANNUAL-CONTRACT: Design budget', 'LW-ANNUAL-CONTRACT: Training budget'],
      ...['LW-FURNACE', 'LW-FURNACE: kiln-1', 'LW-FURNACE: kiln-2', 'LW-QUALITY', 'LW-SPRING-OFFER'],
    ]),
  )
  for (const { answered, device, cloud, service, exported, difference } of accounts) {
    const others = [answered ?? device, cloud, service ?? device, exported ?? device, difference]
    expect(others).toEqual([device, device, device, device, '0'])
  }
}

/** All of its tokens reach the device, if nothing keeps the device from the cloud in the evening. */
function expectSpringOfferUsedUp({ accounts }: Report): void {
  const [spring] = accounts.filter(({ lineItemId }) => lineItemId === 'LW-SPRING-OFFER')
  expect(spring?.device).toBe('1600000000')
}

test(
  'a day with the network cut ends with equal ledgers, and shows every reason to refuse',
  async () => {
    const report = await demo()
    expectAgreement(report)
    expectSpringOfferUsedUp(report)
    const [morning, midday, evening] = report.phases.map(({ outcomes }) => Object.keys(outcomes))
    const whole = ['GRANTED', 'ITEM_NOT_RATED', 'NO_USABLE_LINE_ITEM', 'DENIED_BY_RULE']
    expect(morning).toEqual(expect.arrayContaining(whole))
    expect(midday).toEqual(expect.arrayContaining([...whole, 'GRANT_EXHAUSTED']))
    expect(evening).toEqual(expect.arrayContaining([...whole, 'INSUFFICIENT_TOKENS', 'ALLOCATION_EXHAUSTED']))
    expect(evening).toContain('CONSUMPTION_LIMIT_REACHED')
    expect(readdirSync(temporary)).toEqual([])
  },
  IN_TIME,
)

test(
  'an agent that is killed three times on the way loses nothing and charges nothing twice',
  async () => {
    const report = await demo('--kills', '3', '--seed', '7', '--keep')
    expectAgreement(report)
    expect(report.kills).toBe(3)
    const log = readFileSync(join(report.directory!, 'agent.log'), 'utf8')
    expect(log.match(/"msg":"listening"/g)).toHaveLength(4)
  },
  IN_TIME,
)

test(
  'with services killed, a clock that is set and a network that loses answers, the ledgers are equal all the same',
  async () => {
    const report = await demo('--chaos', '--seed', '3', '--keep')
    expectAgreement(report)
    expect(report.alarms).toBe(0)
    expect(report.disturbances).toEqual({
      'agent killed': 4,
      'answers lost': 3,
      'both killed': 2,
      'clock set': 6,
      'network cut': 2,
      'network slow': 2,
      'twin killed': 3,
    })
    const starts = (name: string) =>
      readFileSync(join(report.directory!, name), 'utf8')
        .split('\n')
        .filter((line) => line.includes('"msg":"listening"'))
    expect(starts('agent.log')).toHaveLength(1 + 4 + 2)
    expect(starts('cloud.log')).toHaveLength(1 + 3 + 2)
    // The device believed its clock as far as a clock is believed: it wrote the wrong time into its log.
    const errors = starts('agent.log').map((line) => Math.abs((JSON.parse(line) as { time: number }).time - Date.now()))
    expect(Math.max(...errors)).toBeGreaterThan(3_000_000)
  },
  IN_TIME,
)

test(
  'an interrupt ends it with 130, and leaves neither processes nor files',
  async () => {
    const child = spawn(process.execPath, [COMMAND, 'demo'], { env: { ...process.env, TMPDIR: temporary } })
    const ended = new Promise((resolve) => child.once('close', resolve))
    const pids: number[] = []
    for await (const line of createInterface({ input: child.stdout })) {
      if (!line.startsWith('The agent is enrolled')) continue
      pids.push(...childrenOf(child.pid!))
      child.kill('SIGINT')
    }
    expect(await ended).toBe(130)
    expect(readdirSync(temporary)).toEqual([])
    expect(pids).toHaveLength(2)
    await expect.poll(() => pids.filter((pid) => existsSync(`/proc/${pid}`))).toEqual([])
  },
  IN_TIME,
)
