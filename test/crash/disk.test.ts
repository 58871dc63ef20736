// What the agent does when its disk fails under load, on the real programs and real file systems: it refuses with a code, keeps
// what it has answered, and is back when the disk is, without anybody's help but that of a supervisor that starts it again.
import { execFileSync, spawnSync } from 'node:child_process'
import { readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import Database from 'better-sqlite3'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Applications } from '../../crash/site/applications.ts'
import type { Site } from '../../crash/site/site.ts'
import { failingCalls } from '../../crash/trace/strace.ts'
import { entriesOf } from '../../src/cloud/storage/sql/packed-delivery.ts'
import { type UsageRow, isDelivery } from '../../src/cloud/storage/sql/packed-usage.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { needsStrace } from '../support/strace.ts'
import { copyOf, expectUseBilled, openApplications, useSiteWithDevices } from './provisioned-site.ts'

const timeout = 120_000

let site: Site
useSiteWithDevices((opened) => (site = opened))

async function underLoad(): Promise<Applications> {
  site.startAgent()
  await site.agentServes()
  const made = openApplications(site, { applications: 3, inFlight: 4 })
  made.begin()
  await moreAnswers(made)
  return made
}

function moreAnswers(apps: Applications): Promise<void> {
  const enough = apps.told.length + 100
  return expect
    .poll(
      () => {
        apps.check()
        return apps.told.length
      },
      { timeout: 30_000, interval: 10 },
    )
    .toBeGreaterThanOrEqual(enough)
    .catch((error: unknown) => {
      throw new Error(`the agent does not answer; its log ends with:\n${agentLog().slice(-4_000)}`, { cause: error })
    })
}

/** The ledger has every answered entry once, also after refusals; and the twin bills the counts of the device. */
async function expectNothingLost(apps: Applications): Promise<void> {
  await apps.end()
  const deviceId = await expectUseBilled(site)
  const database = new Database(copyOf(join(site.twinState, 'twin.db')), { readonly: true })
  onTestFinished(() => void database.close())
  const rows = database.prepare('SELECT * FROM usage WHERE device_id = ?').safeIntegers().all(deviceId) as UsageRow[]
  const entries = rows.filter(isDelivery).flatMap(entriesOf)
  const recorded = entries.map(({ text }) => (JSON.parse(text) as { correlationId: string }).correlationId)
  expect(recorded).toHaveLength(new Set(recorded).size)
  expect(apps.told.filter(({ correlationId }) => !recorded.includes(correlationId))).toEqual([])
  // What has no answer may stand there; what is numbered stands there once, however often it was repeated.
  expect(recorded.length - apps.told.length).toBeLessThanOrEqual(apps.unanswered)
}

const wal = (): string => join(site.agentState, 'journal.db-wal')
const agentLog = (): string => readFileSync(join(site.directory, 'agent.log'), 'utf8')

describe('a disk that fails', { timeout }, () => {
  it.for([
    ['in a flush', 'fsync,fdatasync', 'EIO'],
    ['in a write', 'pwrite64', 'EIO'],
    ['in a write, because it is read-only from one moment to the next', 'pwrite64', 'EROFS'],
  ] as const)('%s ends the agent with a code; started again it has all that it answered', async (how, context) => {
    needsStrace(context)
    const [, calls, error] = how
    const apps = await underLoad()
    await failingCalls({ pid: site.agent?.pid ?? 0, calls, error, path: wal() })
    expect(await site.agent?.ended).toBe(74)
    expect(agentLog()).toContain('DISK_FAILED')
    site.startAgent()
    await moreAnswers(apps)
    await expectNothingLost(apps)
  })

  it('for want of space is refused by code, and used again by the same process', async (context) => {
    needsStrace(context)
    const apps = await underLoad()
    const fault = await failingCalls({ pid: site.agent?.pid ?? 0, calls: 'pwrite64', error: 'ENOSPC', path: wal() })
    await site.until('it says so', ({ conditions }) => conditions.some(({ code }) => code === 'NOT_RECORDED'))
    const refused = apps.repeats
    await expect.poll(() => apps.repeats).toBeGreaterThan(refused + 20)
    await fault.end()
    await moreAnswers(apps)
    await site.until('it is well', ({ conditions }) => conditions.every(({ code }) => code !== 'NOT_RECORDED'))
    expect(site.agent?.isAlive).toBe(true)
    await expectNothingLost(apps)
  })
})

describe('a file system', { timeout }, () => {
  const mounted = (): string => dirname(site.agentState)

  function mount(skip: (reason: string) => void, ...args: readonly string[]): void {
    try {
      execFileSync('mount', [...args, mounted()], { stdio: 'pipe' })
    } catch (error) {
      skip(`no file system can be mounted here: ${(error as Error).message}`)
    }
  }

  /** Waits for the process that has just let go of it. */
  async function unmount(): Promise<void> {
    await expect.poll(() => spawnSync('umount', [mounted()], { stdio: 'pipe' }).status, { timeout: 20_000 }).toBe(0)
  }

  const unmountAtLast = (): void => {
    onTestFinished(async () => {
      await site.agent?.end('SIGKILL')
      if (spawnSync('mountpoint', ['-q', mounted()]).status === 0) await unmount()
    })
  }

  it('that gets full under load keeps the agent from deciding, not from delivering', async (context) => {
    mount(context.skip, '-t', 'tmpfs', '-o', 'size=48m', 'tmpfs')
    unmountAtLast()
    const apps = await underLoad()
    const filler = join(mounted(), 'filler')
    // The agent takes from it at the same time.
    expect(() => writeFileSync(filler, Buffer.alloc(64 * 1024 * 1024))).toThrow('ENOSPC')
    const full = await site.until('it says so', ({ conditions }) =>
      conditions.some(({ code }) => code === 'NOT_RECORDED'),
    )
    // What is delivered gives space in its files back: it may decide again meanwhile.
    await site.until(
      'what it had recorded is delivered',
      ({ lastEntry, backlog }) => lastEntry - backlog >= full.lastEntry,
    )
    rmSync(filler)
    await moreAnswers(apps)
    expect(site.agent?.isAlive).toBe(true)
    await expectNothingLost(apps)
  })

  it('that the kernel makes read-only after a failure is refused at each start, and used when it is repaired', async (context) => {
    const image = join(temporaryDirectory(), 'image')
    writeFileSync(image, '')
    truncateSync(image, 64 * 1024 * 1024)
    execFileSync('mkfs.ext4', ['-q', '-F', image], { stdio: 'pipe' })
    const attach = (): void => mount(context.skip, '-o', 'loop,errors=remount-ro', image)
    attach()
    unmountAtLast()
    const apps = await underLoad()
    execFileSync('mount', ['-o', 'remount,abort', mounted()], { stdio: 'pipe' })
    expect(await site.agent?.ended).toBe(74)
    site.startAgent()
    expect(await site.agent?.ended).toBe(74)
    await unmount()
    // 1: there was something to repair.
    expect([0, 1]).toContain(spawnSync('e2fsck', ['-f', '-y', image], { stdio: 'pipe' }).status)
    attach()
    site.startAgent()
    await moreAnswers(apps)
    await expectNothingLost(apps)
  })
})
