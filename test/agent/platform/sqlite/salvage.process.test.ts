// The salvage of a journal with many undelivered entries, in the process of an agent.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, it, onTestFinished } from 'vitest'
import { IDENTITY, JOURNAL_LIMITS, SEAL, STAMP, entry, journalIn, payloadOf } from '../../harness.ts'
import type { SegmentWire } from '../../../../src/protocol/edge/sync.ts'
import { A, damage, deviceWithBacklog } from './damaged.ts'

const DELIVERED = 20

/** With undelivered entries up to this one, each with a body of that many bytes. Damaged. */
async function damagedDevice(
  last: number,
  bytes: number,
): Promise<{ readonly directory: string; readonly path: string }> {
  const { directory, journal, path } = await deviceWithBacklog()
  const { lastEntry } = await journal.read()
  const posting = { account: A, amount: '1' }
  for (let n = lastEntry + 1; n <= last; n += 1_000) {
    const entries = Array.from({ length: Math.min(1_000, last - n + 1) }, (_, index) => {
      const body = { n: n + index, kind: 'access', postings: [posting], fill: 'x'.repeat(bytes) }
      return { ...entry(n + index, [{ account: A, amount: 1n }]), body: JSON.stringify(body) }
    })
    await journal.append(entries, STAMP)
  }
  await journal.close()
  damage(path)
  return { directory, path }
}

const MODULE = new URL('../../../../src/agent/platform/sqlite/salvage-journal.ts', import.meta.url).href

/** Salvages, and ends. */
function started(path: string, ...flags: readonly string[]): ChildProcess {
  const options = { path, limits: JOURNAL_LIMITS, later: [], left: null }
  const program = `
    import { openOrSalvage } from ${JSON.stringify(MODULE)}
    openOrSalvage(${JSON.stringify(options)}, Date.now()).close()`
  const child = spawn(process.execPath, [...flags, '--input-type=module', '--eval', program], { stdio: 'ignore' })
  onTestFinished(() => void child.kill('SIGKILL'))
  return child
}

async function deliveredBy(directory: string): Promise<readonly number[]> {
  const journal = await journalIn(directory)
  if ((await journal.read()).identity === null) await journal.saveIdentity(IDENTITY)
  await journal.attach(9)
  const numbers: number[] = []
  for (;;) {
    const { document, seq } = await journal.seal(SEAL)
    const { undeliveredRange } = payloadOf(document) as SegmentWire
    await journal.acknowledge(seq, null, null)
    if (undeliveredRange === null) return numbers
    for (const body of undeliveredRange.entries.bodies) numbers.push((JSON.parse(body) as { n: number }).n)
  }
}

it('needs less memory than the entries take', { timeout: 120_000 }, async () => {
  const { directory, path } = await damagedDevice(60_000, 1_500)
  expect(await once(started(path, '--max-old-space-size=48'), 'close')).toEqual([0, null])
  const journal = await journalIn(directory)
  expect((await journal.read()).salvages).toMatchObject([{ salvagedEntries: 60_000 - DELIVERED, lostEntries: 0 }])
})

it('delivers each entry once, whenever it was killed', { timeout: 120_000 }, async () => {
  const LAST = 20_000
  const { directory, path } = await damagedDevice(LAST, 10)
  const seen = new Set<string>()
  for (const after of ['', '.copy', '.draft', '.draft-wal', '.salvaged', '']) {
    const child = started(path)
    const closed = once(child, 'close')
    await sleep(after === '' ? 200 : 0)
    while (child.exitCode === null && !existsSync(`${path}${after}`)) await sleep(1)
    child.kill('SIGKILL')
    await closed
    for (const name of readdirSync(directory)) seen.add(name.replace(/-\d{4}-.*/, ''))
  }
  expect([...seen]).toEqual(expect.arrayContaining(['journal.db.copy', 'journal.db.draft']))
  const numbers = await deliveredBy(directory)
  expect(numbers).toEqual(Array.from({ length: LAST - DELIVERED }, (_, index) => DELIVERED + 1 + index))
  expect(readdirSync(directory).filter((name) => /\.(?:copy|draft|salvaged)/.test(name))).toEqual([])
})
