// Processes whose user has used up its quota.
import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { needsStrace } from '../../../support/strace.ts'
import { attach, journalIn, temporaryDirectory } from '../../harness.ts'
import { A, deviceWithBacklog } from './damaged.ts'

const PROCESS = new URL('./committing-process.ts', import.meta.url).pathname

const BACKUP_MODULE = new URL('../../../../src/agent/platform/sqlite/backup.ts', import.meta.url).href

/** @param faults the calls that fail, and optionally which of them. @param args of Node */
function withoutQuota(faults: readonly string[], args: readonly string[]) {
  const traced = faults.map((fault) => fault.replace(/:.*/, '')).join()
  const injections = faults.flatMap((fault) => ['-e', `inject=${fault}:error=EDQUOT`])
  const tracing = ['-f', '-qq', '-o', '/dev/null', '-e', `trace=${traced}`, ...injections]
  return spawnSync('strace', [...tracing, process.execPath, ...args], { encoding: 'utf8' })
}

it('refuses further entries with a code, and keeps those that it recorded', { timeout: 60_000 }, async (context) => {
  needsStrace(context)
  const directory = temporaryDirectory()
  const prepared = await journalIn(directory)
  await attach(prepared, { [A]: 1_000_000n })
  await prepared.close()
  // The first allocation is for the disk reserve.
  const { stdout, stderr } = withoutQuota(['pwrite64:when=500+', 'fallocate:when=2+'], [PROCESS, directory])
  expect(stderr).toContain("code: 'NOT_RECORDED'")
  const journal = await journalIn(directory)
  expect((await journal.read()).lastEntry).toBe(Number(stdout.trim().split('\n').at(-1)))
})

it('names the quota if a backup cannot be made', { timeout: 60_000 }, async (context) => {
  needsStrace(context)
  const { directory, journal, path } = await deviceWithBacklog()
  await journal.close()
  const to = join(directory, 'backup.db')
  const program = `
    import { backUpLedger } from ${JSON.stringify(BACKUP_MODULE)}
    await backUpLedger(${JSON.stringify(path)}, ${JSON.stringify(to)})`
  const { stderr } = withoutQuota(['pwrite64', 'fallocate'], ['--input-type=module', '--eval', program])
  expect(stderr).toContain(`Cannot write ${to}: the disk or the quota of this user is full.`)
})
