// What tallygate restore says of the ledger that it replaces.
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { backUpLedger } from '../../src/agent/platform/sqlite/backup.ts'
import { volatileLogOf } from '../../src/agent/platform/tmpfs/volatile-log.ts'
import { readBootId } from '../../src/platform/uptime.ts'
import { CHAIN_START } from '../../src/protocol/signing.ts'
import { deviceWithBacklog } from '../agent/platform/sqlite/damaged.ts'
import { IDENTITY, attach, journalIn, temporaryDirectory } from '../agent/harness.ts'
import { tallygate } from './outside.ts'

it.each([
  ['is left', 'The previous ledger is missing: an unknown number of undelivered entries is lost.'],
  ['is missing, too', 'There was no previous ledger.'],
])('of a missing ledger whose log %s', async (kind, said) => {
  const { directory, journal, path } = await deviceWithBacklog()
  const [file, run] = [join(directory, 'backup.db'), temporaryDirectory()]
  await backUpLedger(path, file)
  await journal.close()
  rmSync(path)
  if (kind === 'is left')
    volatileLogOf(directory, run, readBootId()).begin(
      { deviceId: IDENTITY.deviceId, epoch: 1 },
      { n: 0, head: CHAIN_START },
    )
  const env = { TALLYGATE_AGENT_WRITE_BEHIND_DIRECTORY: run }
  const { out } = await tallygate(['restore', file, '--db', path], { env })
  expect(out.split('\n').slice(0, 3)).toEqual([
    said,
    'Start the agent. It grants no requests until it has attached to the cloud again.',
    'Then it delivers 40 entries that the cloud may not have. The cloud bills no entry twice.',
  ])
})

it('announces no delivery after the restore of a ledger without entries', async () => {
  const directory = temporaryDirectory()
  const journal = await journalIn(directory)
  await attach(journal, {})
  const [path, file] = [join(directory, 'journal.db'), join(directory, 'backup.db')]
  await backUpLedger(path, file)
  await journal.close()
  const { out } = await tallygate(['restore', file, '--db', path])
  expect(out).toContain('Start the agent.')
  expect(out).not.toContain('delivers')
})
