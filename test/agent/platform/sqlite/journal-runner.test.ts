// When the journal answers: after the flush of what it has committed, and not at all from what a flush may have lost.
import { copyFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { IDLE_MS } from '../../../../src/agent/platform/sqlite/housekeeping.ts'
import {
  type Flushes,
  runInThisThread,
  type StartRunner,
} from '../../../../src/agent/platform/sqlite/journal-runner.ts'
import { messageOf } from '../../../../src/protocol/errors.ts'
import type { Journal } from '../../../../src/agent/ledger/journal.ts'
import { attach, entry, journalIn, STAMP, temporaryDirectory } from '../../harness.ts'

/** Turns of the event loop in which everything happens that waits for no flush. */
const TURNS = 20

async function settle(): Promise<void> {
  for (let n = 0; n < TURNS; n += 1) await turn()
}

/** An attached journal whose flushes end when the test says so. */
async function journalWithFlushes({ isFast = false } = {}) {
  const begun: ((error: Error | null) => void)[] = []
  const control = { isManual: false, here: 0, hereFails: false }
  const flushes: Flushes = {
    beside: (_file, done) => {
      if (control.isManual) begun.push(done)
      else if (isFast) done(null)
      else setTimeout(done, 2, null)
    },
    here: () => {
      control.here += 1
      if (control.hereFails) throw new Error('EIO')
    },
  }
  const runner: StartRunner = (options) => runInThisThread(options, flushes)
  const broken: Error[] = []
  const directory = temporaryDirectory()
  const journal = await journalIn(directory, { onBroken: (error) => void broken.push(error) }, runner)
  await attach(journal, {})
  await settle()
  const end = async (error: Error | null = null): Promise<void> => {
    begun.shift()?.(error)
    await settle()
  }
  return { journal, begun, control, broken, end, directory }
}

/** Current state of a promise. */
function outcomeOf(promise: Promise<unknown>): { state: string } {
  const outcome = { state: 'waits' }
  promise.then(
    () => (outcome.state = 'done'),
    (error: unknown) => (outcome.state = `fails: ${messageOf(error)}`),
  )
  return outcome
}

const two = (journal: Journal, n: number) => journal.append([entry(n, []), entry(n + 1, [])], STAMP)

describe('a call that commits', () => {
  it('is answered after the flush, for which the next call waits', async () => {
    const { journal, begun, control, end } = await journalWithFlushes()
    control.isManual = true
    const first = outcomeOf(two(journal, 1))
    const second = outcomeOf(two(journal, 3))
    await settle()
    expect([first.state, second.state, begun.length]).toEqual(['waits', 'waits', 1])
    await end()
    expect([first.state, second.state, begun.length]).toEqual(['done', 'waits', 1])
    await end()
    expect(second.state).toBe('done')
  })

  it('whose flush fails is lost with all later ones, and the database is not touched again', async () => {
    const { journal, control, broken, end, directory } = await journalWithFlushes()
    control.isManual = true
    const calls = [outcomeOf(two(journal, 1)), outcomeOf(journal.saveClock(STAMP))]
    await end(new Error('EIO'))
    for (const { state } of calls) expect(state).toMatch(/unknown: .*journal\.db-wal: EIO/)
    expect(broken).toMatchObject([{ code: 'DISK_FAILED' }])
    await expect(journal.read()).rejects.toThrow('unknown')
    await journal.close()
    await expect(journalIn(directory)).rejects.toMatchObject({ code: 'STATE_IN_USE' })
  })
})

describe('a commit for all callers', () => {
  it('does not wait for a hand-over where the disk is fast', async () => {
    const { journal, control } = await journalWithFlushes({ isFast: true })
    await journal.append([entry(1, [])], STAMP, true)
    expect(control.here).toBe(1)
    await two(journal, 2)
    expect(control.here).toBe(1)
  })

  it('waits beside the thread where the disk is slow', async () => {
    const { journal, control } = await journalWithFlushes()
    await journal.append([entry(1, [])], STAMP, true)
    expect(control.here).toBe(0)
  })

  it('notices a failed flush in place', async () => {
    const { journal, control, broken } = await journalWithFlushes({ isFast: true })
    control.hereFails = true
    await expect(journal.append([entry(1, [])], STAMP, true)).rejects.toThrow('EIO')
    expect(broken).toMatchObject([{ code: 'DISK_FAILED' }])
  })
})

describe('a checkpoint', () => {
  /** Commits until the journal flushes without a call. @returns the number of the next entry */
  async function untilCheckpoint(test: Awaited<ReturnType<typeof journalWithFlushes>>): Promise<number> {
    const { journal, begun, control, end } = test
    control.isManual = true
    for (let n = 1; n < 10_000; n += 2) {
      const call = outcomeOf(two(journal, n))
      await settle()
      while (begun.length > 0 && call.state === 'waits') await end()
      if (begun.length > 0) return n + 2
    }
    throw new Error('there was no checkpoint')
  }

  it('ends with a flush, for which the next call waits', async () => {
    const test = await journalWithFlushes()
    const next = await untilCheckpoint(test)
    const { journal, begun, end } = test
    const call = outcomeOf(two(journal, next))
    await settle()
    expect([call.state, begun.length]).toEqual(['waits', 1])
    await end()
    // Either the second flush of the checkpoint, or that of the call.
    while (call.state === 'waits') await end()
    expect(call.state).toBe('done')
  })

  it('whose flush fails makes the next call fail', async () => {
    const test = await journalWithFlushes()
    const next = await untilCheckpoint(test)
    await test.end(new Error('EIO'))
    await expect(two(test.journal, next)).rejects.toThrow('EIO')
    expect(test.broken).toMatchObject([{ code: 'DISK_FAILED' }])
  })
})

describe('a file that another program removes', () => {
  const poll = { interval: 2 * IDLE_MS, timeout: 20_000 }

  it.for(['journal.db', 'journal.db-wal'])('%s ends the journal', async (name) => {
    const { journal, broken, directory } = await journalWithFlushes()
    await two(journal, 1)
    rmSync(join(directory, name))
    const saved = (): Promise<string> => journal.saveClock(STAMP).then(() => 'saved', messageOf)
    await expect.poll(saved, poll).toMatch(/was removed or replaced by another program/)
    expect(broken).toMatchObject([{ code: 'DISK_FAILED', message: expect.stringContaining(`/${name} was`) as string }])
  })

  it.for(['journal.db', 'journal.db-wal'])('%s ends an idle journal, without a call', async (name) => {
    const { journal, broken, directory } = await journalWithFlushes()
    await two(journal, 1)
    rmSync(join(directory, name))
    await expect.poll(() => broken, poll).toMatchObject([{ code: 'DISK_FAILED' }])
    await expect(journal.saveClock(STAMP)).rejects.toThrow('was removed or replaced by another program')
    expect(broken).toHaveLength(1)
  })

  it('leaves its entries in the database, if it was the log', async () => {
    const { journal, broken, directory } = await journalWithFlushes()
    await two(journal, 1)
    rmSync(join(directory, 'journal.db-wal'))
    await two(journal, 3)
    const isBroken = (): Promise<boolean> =>
      journal.saveClock(STAMP).then(
        () => false,
        () => broken.length === 1,
      )
    await expect.poll(isBroken, poll).toBe(true)
    const copy = temporaryDirectory()
    copyFileSync(join(directory, 'journal.db'), join(copy, 'journal.db'))
    expect(await (await journalIn(copy)).read()).toMatchObject({ lastEntry: 4 })
  })
})
