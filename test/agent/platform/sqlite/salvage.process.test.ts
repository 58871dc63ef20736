// The salvage of a journal with many undelivered entries, in the process of an agent.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, readdirSync, watch } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import Database from 'better-sqlite3'
import { expect, it, onTestFinished } from 'vitest'
import {
  IDENTITY,
  JOURNAL_LIMITS,
  SEAL,
  STAMP,
  entry,
  journalIn,
  payloadOf,
  temporaryDirectory,
} from '../../harness.ts'
import type { SegmentWire } from '../../../../src/protocol/edge/sync.ts'
import { needsStrace } from '../../../support/strace.ts'
import { damage, deviceWithBacklog, deviceWithEntries } from './damaged.ts'

const DELIVERED = 20

const MODULE = new URL('../../../../src/agent/platform/sqlite/salvage-journal.ts', import.meta.url).href

/** Opens the journal, and closes it. */
function opening(path: string): readonly string[] {
  const options = { path, limits: JOURNAL_LIMITS, later: [], left: null }
  const program = `
    import { openOrSalvage } from ${JSON.stringify(MODULE)}
    openOrSalvage(${JSON.stringify(options)}, Date.now()).close()`
  return ['--input-type=module', '--eval', program]
}

function started(command: string, args: readonly string[]): ChildProcess {
  const child = spawn(command, args, { stdio: 'ignore' })
  onTestFinished(() => void child.kill('SIGKILL'))
  return child
}

/** Waits until the file appears or changes, or the process has ended. */
async function changeOf(path: string, ended: Promise<unknown>): Promise<void> {
  const watcher = watch(dirname(path))
  const changed = new Promise<void>((resolve) => {
    watcher.on('change', (_type, name) => {
      if (name === basename(path)) resolve()
    })
  })
  await Promise.race([changed, ended])
  watcher.close()
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
  const { directory, path } = await deviceWithEntries(60_000, 1_500)
  damage(path)
  const child = started(process.execPath, ['--max-old-space-size=48', ...opening(path)])
  expect(await once(child, 'close')).toEqual([0, null])
  const journal = await journalIn(directory)
  expect((await journal.read()).salvages).toMatchObject([{ salvagedEntries: 60_000 - DELIVERED, lostEntries: 0 }])
})

it('delivers each entry once, whenever it was killed', { timeout: 120_000 }, async () => {
  const LAST = 20_000
  const { directory, path } = await deviceWithEntries(LAST, 10)
  damage(path)
  const seen = new Set<string>()
  for (const suffix of ['.copy', '.draft', '.draft-wal', '.salvaged', '']) {
    const child = started(process.execPath, opening(path))
    const closed = once(child, 'close')
    await changeOf(`${path}${suffix}`, closed)
    child.kill('SIGKILL')
    await closed
    for (const name of readdirSync(directory)) seen.add(name.replace(/-\d{4}-.*/, ''))
  }
  expect([...seen]).toEqual(expect.arrayContaining(['journal.db.copy', 'journal.db.draft']))
  const numbers = await deliveredBy(directory)
  expect(numbers).toEqual(Array.from({ length: LAST - DELIVERED }, (_, index) => DELIVERED + 1 + index))
  expect(readdirSync(directory).filter((name) => /\.(?:copy|draft|salvaged)/.test(name))).toEqual([])
})

it.for([
  ['a quota without space for it', ['fallocate:error=EDQUOT']],
  ['a quota that is used up while it runs', ['pwrite64:error=EDQUOT:when=1', 'fallocate:error=EDQUOT:when=2+']],
  ['a disk that fails once', ['pwrite64:error=EIO:when=1']],
] as const)('waits at %s, and loses nothing', async ([, faults], context) => {
  needsStrace(context)
  const { journal, path: original } = await deviceWithBacklog()
  const directory = temporaryDirectory()
  const path = join(directory, 'journal.db')
  // Its slots alone have this entry.
  await journal.append([entry(61, [])], STAMP)
  for (const suffix of ['', '-wal']) copyFileSync(`${original}${suffix}`, `${path}${suffix}`)
  // Without a log, which its close would write to.
  const database = new Database(path)
  database.pragma('wal_checkpoint(TRUNCATE)')
  database.close()
  damage(path)
  const injected = faults.flatMap((fault) => ['-e', `inject=${fault}`])
  const tracing = ['-f', '-qq', '-o', '/dev/null', '-e', 'trace=pwrite64,fallocate', ...injected]
  const child = started('strace', [...tracing, process.execPath, ...opening(path)])
  expect(await once(child, 'close')).toEqual([1, null])
  expect(readdirSync(directory).filter((name) => name.includes('damaged'))).toEqual([])
  const salvaged = await journalIn(directory)
  expect((await salvaged.read()).salvages).toMatchObject([{ salvagedEntries: 41, lostEntries: 0 }])
})
