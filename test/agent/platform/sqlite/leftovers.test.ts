// Files of a salvage or a restore that was killed, and processes that salvage or restore the same ledger.
import { mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { restoreLedger } from '../../../../src/agent/platform/sqlite/restore-ledger.ts'
import { lockDirectory } from '../../../../src/agent/platform/sqlite/lock-directory.ts'
import { journalIn } from '../../harness.ts'
import { BEGIN } from '../../sync/fake-time.ts'
import { deviceWithBacklog } from './damaged.ts'

const FILES = ['.copy', '.copy-wal', '.draft', '.draft-wal', '.restoring']

async function withLeftovers() {
  const { directory, journal, path } = await deviceWithBacklog()
  await journal.close()
  for (const suffix of FILES) writeFileSync(`${path}${suffix}`, 'left')
  const leftovers = (): number =>
    readdirSync(directory).filter((name) => /\.(?:copy|draft|restoring)/.test(name)).length
  return { directory, path, leftovers }
}

it('removes the files of a killed salvage or restore at the next start', async () => {
  const { directory, leftovers } = await withLeftovers()
  const journal = await journalIn(directory)
  expect((await journal.read()).lastEntry).toBe(60)
  expect(leftovers()).toBe(0)
})

it('keeps these files while another process salvages or restores the ledger', async () => {
  const { directory, path, leftovers } = await withLeftovers()
  {
    using _lock = lockDirectory(directory)
    await expect(journalIn(directory)).rejects.toMatchObject({ code: 'STATE_IN_USE' })
    await expect(restoreLedger(path, path, BEGIN)).rejects.toMatchObject({ code: 'STATE_IN_USE' })
    expect(leftovers()).toBe(FILES.length)
  }
  await journalIn(directory)
  expect(leftovers()).toBe(0)
})

it('opens the ledger although such a file cannot be removed', async () => {
  const { directory, path } = await withLeftovers()
  rmSync(`${path}.copy`)
  mkdirSync(`${path}.copy`)
  const journal = await journalIn(directory)
  expect((await journal.read()).lastEntry).toBe(60)
})
