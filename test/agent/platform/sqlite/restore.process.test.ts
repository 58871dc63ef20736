// A restore that is killed at any rename: the next start of the agent, or the next restore, completes it.
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { backUpLedger } from '../../../../src/agent/platform/sqlite/backup.ts'
import { restoreLedger } from '../../../../src/agent/platform/sqlite/restore-ledger.ts'
import { needsStrace } from '../../../support/strace.ts'
import { STAMP, journalIn, temporaryDirectory } from '../../harness.ts'
import { BEGIN } from '../../sync/fake-time.ts'
import { damage, deviceWithBacklog, deviceWithEntries, entries } from './damaged.ts'

const MODULE = new URL('../../../../src/agent/platform/sqlite/restore-ledger.ts', import.meta.url).href

function restoring(backup: string, path: string): readonly string[] {
  const script = `import { restoreLedger } from ${JSON.stringify(MODULE)}
    await restoreLedger(${JSON.stringify(backup)}, ${JSON.stringify(path)}, ${BEGIN})`
  return ['--input-type=module', '--eval', script]
}

/** Returns whether the process was killed at the rename with this number. */
function restoreKilledAt(number: number, backup: string, path: string): boolean {
  const inject = `inject=rename:signal=SIGKILL:when=${number}`
  const node = [process.execPath, ...restoring(backup, path)]
  const { status, signal, stderr } = spawnSync('strace', ['-f', '-qq', '-o', '/dev/null', '-e', inject, ...node], {
    encoding: 'utf8',
    env: { ...process.env, TMPDIR: temporaryDirectory() },
  })
  if (status !== 0 && signal !== 'SIGKILL' && status !== 137) throw new Error(stderr)
  return status !== 0
}

it(
  'keeps what a damaged ledger and the backup give if it is killed at any rename',
  { timeout: 120_000 },
  async (context) => {
    needsStrace(context)
    const device = await deviceWithBacklog()
    const backup = join(device.directory, 'backup.db')
    await backUpLedger(device.path, backup)
    await device.journal.append(entries(61, 60), STAMP)
    await device.journal.close()
    damage(device.path)
    let kills = 0
    for (let isKilled = true; isKilled;) {
      const [started, repeated] = [temporaryDirectory(), temporaryDirectory()]
      cpSync(device.directory, started, { recursive: true })
      const path = join(started, 'journal.db')
      isKilled = restoreKilledAt(kills + 1, backup, path)
      cpSync(started, repeated, { recursive: true })
      const again = await restoreLedger(backup, join(repeated, 'journal.db'), BEGIN)
      expect([kills, again]).toEqual([kills, expect.objectContaining({ undelivered: 100, lost: 0 })])
      const journal = await journalIn(started)
      const { undeliveredRanges } = await journal.read()
      await journal.close()
      expect([kills, undeliveredRanges]).toEqual([kills, 100])
      expect(existsSync(`${path}.salvaged`)).toBe(false)
      if (isKilled) kills += 1
    }
    expect(kills).toBeGreaterThan(1)
  },
)

it('needs less memory than the entries take', { timeout: 120_000 }, async () => {
  const { path: backup } = await deviceWithEntries(60_000, 1_500)
  const directory = temporaryDirectory()
  const restore = restoring(backup, join(directory, 'journal.db'))
  expect(spawnSync(process.execPath, ['--max-old-space-size=48', ...restore]).status).toBe(0)
  const journal = await journalIn(directory)
  expect((await journal.read()).undeliveredRanges).toBe(60_000 - 20)
})
