import { expect, it } from 'vitest'
import { WatchedJournal } from '../../../src/agent/ledger/watch-journal.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { entry, STAMP } from '../harness.ts'

it('a journal that takes no entries is a condition with its beginning, until it takes one again', async () => {
  let now = 1_000
  let failure: Error | null = null
  const said: string[] = []
  const write = async (): Promise<void> => {
    if (failure !== null) throw failure
  }
  const log = (_fields: unknown, message: string): void => void said.push(message)
  const journal = new WatchedJournal(
    { append: write, saveClock: write, appendWriteBehind: async () => '', limit: write },
    () => now,
    {
      info: log,
      warn: log,
    },
  )
  const append = () => journal.append([entry(1, [])], STAMP)

  await append()
  expect(journal.condition()).toBeNull()
  failure = new CodedError('NOT_RECORDED', 'the disk is full')
  await expect(append()).rejects.toBe(failure)
  now = 2_000
  await expect(append()).rejects.toBe(failure)
  expect(journal.condition()).toMatchObject({ subject: 'ledger', code: 'NOT_RECORDED', since: 1_000 })
  failure = null
  await journal.saveClock(STAMP)
  expect(journal.condition()).not.toBeNull()
  await append()
  expect(journal.condition()).toBeNull()
  expect(said).toEqual(['the ledger takes no entries', 'the ledger takes entries again'])

  // A failure of unknown outcome is another matter.
  failure = new CodedError('DISK_FAILED', 'a flush failed')
  await expect(append()).rejects.toBe(failure)
  expect(journal.condition()).toBeNull()
})
