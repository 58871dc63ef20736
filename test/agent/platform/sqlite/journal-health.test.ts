import Database from 'better-sqlite3'
import { expect, it } from 'vitest'
import { JournalHandler } from '../../../../src/agent/platform/sqlite/journal-handler.ts'
import type { JournalStore } from '../../../../src/agent/platform/sqlite/journal-store.ts'
import { runInThisThread, type StartRunner } from '../../../../src/agent/platform/sqlite/journal-runner.ts'
import { CodedError } from '../../../../src/protocol/errors.ts'
import { attach, callOf, entry, journalIn, STAMP, temporaryDirectory } from '../../harness.ts'

const FULL = new CodedError('NOT_RECORDED', 'the disk is full', { details: { path: 'journal.db' } })
const FAILED = new CodedError('DISK_FAILED', 'a flush failed')

/** An attached journal on a disk that fails each call as the test sets it, before it takes effect. */
async function journalOnFailingDisk() {
  const disk: { error: CodedError | null; now: number } = { error: null, now: 1_000 }
  const logged: string[] = []
  const broken: Error[] = []
  const runner: StartRunner = (options) => {
    const here = runInThisThread(options)
    return {
      post: (call) => {
        if (disk.error === null || call.name === 'close') here.post(call)
        else call.done(disk.error)
      },
    }
  }
  const log = (_fields: unknown, message: string): void => void logged.push(message)
  const journal = await journalIn(
    temporaryDirectory(),
    { now: () => disk.now, log: { info: log, warn: log }, onBroken: (error) => void broken.push(error) },
    runner,
  )
  await attach(journal, {})
  return { journal, disk, logged, broken }
}

it('reports since when it takes no entries, until it takes one again or saves the clock', async () => {
  const { journal, disk, logged, broken } = await journalOnFailingDisk()
  await journal.append([entry(1, [])], STAMP)
  expect(journal.condition()).toBeNull()
  disk.error = FULL
  await expect(journal.append([entry(2, [])], STAMP)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
  disk.now = 2_000
  await expect(journal.append([entry(2, [])], STAMP)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
  expect(journal.condition()).toEqual({
    subject: 'ledger',
    code: 'NOT_RECORDED',
    message: 'the disk is full',
    since: 1_000,
  })
  disk.error = null
  await journal.fence()
  expect(journal.condition()).not.toBeNull()
  await journal.attach(2)
  await journal.appendWriteBehind([entry(1, [])], [], STAMP, true)
  expect(journal.condition()).not.toBeNull()
  await journal.append([entry(2, [])], STAMP)
  expect(journal.condition()).toBeNull()
  disk.error = FULL
  await expect(journal.append([entry(3, [])], STAMP)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
  disk.error = null
  await journal.saveClock(STAMP)
  expect(journal.condition()).toBeNull()
  const both = ['the ledger takes no entries', 'the ledger takes entries again']
  expect(logged).toEqual([...both, ...both])
  expect(broken).toEqual([])
})

it.for(['saveClock', 'limit', 'seal', 'fence'] as const)('reports a full disk that refuses %s', async (method) => {
  const { journal, disk } = await journalOnFailingDisk()
  disk.error = FULL
  const calls = {
    saveClock: () => journal.saveClock(STAMP),
    limit: () => journal.limit([]),
    seal: () => journal.seal({} as never),
    fence: () => journal.fence(),
  }
  await expect(calls[method]()).rejects.toMatchObject({ code: 'NOT_RECORDED' })
  expect(journal.condition()).toMatchObject({ code: 'NOT_RECORDED' })
})

it('fails all calls after one of unknown outcome, with no error that could pass for a refusal', async () => {
  const { journal, disk, broken } = await journalOnFailingDisk()
  disk.error = FAILED
  const calls = [journal.append([entry(1, [])], STAMP), journal.saveClock(STAMP)]
  disk.error = null
  const errors: unknown[] = []
  for (const call of [...calls, journal.proofs()]) errors.push(await call.catch((error: unknown) => error))
  for (const error of errors) {
    expect(error).not.toBeInstanceOf(CodedError)
    expect(error).toMatchObject({ name: 'JournalLost', cause: { code: 'DISK_FAILED', message: 'a flush failed' } })
  }
  expect(broken).toMatchObject([{ code: 'DISK_FAILED' }])
  expect(journal.condition()).toBeNull()
})

it.each(['SQLITE_CORRUPT', 'SQLITE_CORRUPT_INDEX', 'SQLITE_NOTADB', 'SQLITE_IOERR_READ'])(
  'calls %s damage at the start only: later, it restarts into the check',
  (code) => {
    const error = new Database.SqliteError('a page reads wrongly', code)
    const fail = (): never => {
      throw error
    }
    const handlerOf = (open: () => JournalStore) =>
      new JournalHandler({ path: 'journal.db', open, diskReserve: { fill: () => true, release: () => false } })
    const codeOf = (handler: JournalHandler): unknown => {
      const failure = handler.run(callOf('recent', (store) => store.recent(1)))
      if (!(failure instanceof CodedError)) return null
      expect(failure.cause).toBe(error)
      return failure.code
    }
    expect(codeOf(handlerOf(fail))).toBe(code === 'SQLITE_IOERR_READ' ? 'DISK_FAILED' : 'DATABASE_CORRUPT')
    const running = { file: { hasDiskReserve: true }, now: 0, recent: fail } as unknown as JournalStore
    expect(codeOf(handlerOf(() => running))).toBe('DISK_FAILED')
  },
)
