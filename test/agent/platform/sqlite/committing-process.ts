// A process that records entries as fast as it can and says, after each commit, how many are durable; it ends when it is
// killed. Run with the state directory as its argument, and FAILING_CHECKPOINT to have the flush of the first checkpoint fail, with
// which it ends by itself.
import { fdatasync, fdatasyncSync, readlinkSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { openJournal } from '../../../../src/agent/platform/sqlite/journal.ts'
import { type Flushes, runInThisThread } from '../../../../src/agent/platform/sqlite/journal-runner.ts'
import type { PendingEntry } from '../../../../src/agent/ledger/journal.ts'

const directory = process.argv[2] ?? ''
const isFailing = process.argv[3] === 'FAILING_CHECKPOINT'
const flushes: Flushes = {
  beside: (file, done) => {
    const isDatabase = readlinkSync(`/proc/self/fd/${file}`).endsWith('journal.db')
    if (isDatabase && isFailing) setImmediate(done, new Error('EIO'))
    else fdatasync(file, done)
  },
  here: fdatasyncSync,
}
const account = 'line/i/a/0'
const options = {
  path: join(directory, 'journal.db'),
  limits: {
    ...{ pagesMax: 100_000, diskReservePages: 16, retentionMs: 1, retainedBytesMax: 1, answersMax: 10 },
    ...{ recentEntries: 1_000, pastRulesBytesMax: 0, segmentEntriesMax: 1_000 },
  },
  sign: async (payload: string) => `e30.${payload}.AA`,
  now: () => 0,
  log: { info: () => undefined, warn: () => undefined },
  onBroken: (error: Error) => {
    if (!isFailing) throw error
  },
}
const journal = await openJournal(options, (given) => runInThisThread(given, flushes))
let { lastEntry: n } = await journal.read()
const stamp = { clock: { bootId: 'b', sinceBoot: 1, earliest: 1, latest: null }, grantAgedMs: 0 }
let isBroken = false
while (!isBroken) {
  const size = 1 + (n % 50)
  const entries = Array.from({ length: size }, (): PendingEntry => {
    n += 1
    const postings = [{ account, amount: 1n }]
    const body = JSON.stringify({ n, kind: 'access', postings: [{ account, amount: '1' }] })
    const idempotencyRecord = { session: `s${n % 20}`, n, requestHash: 'h', answer: String(n), policyRevision: 1 }
    return { n, body, moves: 'used', postings, idempotencyRecord }
  })
  try {
    await journal.append(entries, stamp)
    writeSync(1, `${n}\n`)
  } catch (error) {
    if (!isFailing) throw error
    isBroken = true
  }
}
