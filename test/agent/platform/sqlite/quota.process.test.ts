// A process that records entries until the quota of its user is used up.
import { spawnSync } from 'node:child_process'
import { expect, it } from 'vitest'
import { needsStrace } from '../../../support/strace.ts'
import { attach, journalIn, temporaryDirectory } from '../../harness.ts'
import { A } from './damaged.ts'

const PROCESS = new URL('./committing-process.ts', import.meta.url).pathname

it('refuses further entries with a code, and keeps those that it recorded', { timeout: 60_000 }, async (context) => {
  needsStrace(context)
  const directory = temporaryDirectory()
  const prepared = await journalIn(directory)
  await attach(prepared, { [A]: 1_000_000n })
  await prepared.close()
  // The first allocation is for the disk reserve.
  const faults = ['pwrite64:error=EDQUOT:when=500+', 'fallocate:error=EDQUOT:when=2+'].flatMap((fault) => [
    '-e',
    `inject=${fault}`,
  ])
  const tracing = ['-f', '-qq', '-o', '/dev/null', '-e', 'trace=pwrite64,fallocate', ...faults]
  const { stdout, stderr } = spawnSync('strace', [...tracing, process.execPath, PROCESS, directory], {
    encoding: 'utf8',
  })
  expect(stderr).toContain("code: 'NOT_RECORDED'")
  const journal = await journalIn(directory)
  expect((await journal.read()).lastEntry).toBe(Number(stdout.trim().split('\n').at(-1)))
})
