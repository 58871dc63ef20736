// The check of a ledger with many entries, in a process with less memory than they take.
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { expect, it } from 'vitest'
import type { Verification } from '../../src/agent/ledger/verify-ledger.ts'
import type { EntryBodyWire } from '../../src/protocol/edge/sync.ts'
import { SEAL, STAMP, attach, journalIn, temporaryDirectory } from '../agent/harness.ts'
import { INSTANCE } from '../agent/sync/fake-cloud.ts'
import { BEGIN } from '../agent/sync/fake-time.ts'
import { COMMAND } from '../support/command.ts'

const ACCOUNT = 'line/i/a/0'
const ENTRIES = 60_000
const PIECE = 1_000

/** As many entries in segments as beyond them. Their bodies take 100 MB. */
async function largeLedger(): Promise<string> {
  const directory = temporaryDirectory()
  const journal = await journalIn(directory)
  await attach(journal, { [ACCOUNT]: BigInt(ENTRIES) })
  const reason = 'x'.repeat(1_500)
  for (let first = 1; first <= ENTRIES; first += PIECE) {
    const entries = Array.from({ length: PIECE }, (_, index) => {
      const body: EntryBodyWire = {
        ...{ n: first + index, kind: 'access', at: BEGIN, earliest: BEGIN, latest: null, instanceId: INSTANCE },
        ...{ policyRevision: 1, engine: 1, correlationId: '5c8ec4fd-f17f-4657-bf09-74a97ddc9f8b', items: [] },
        requester: { type: 'user', value: reason },
        postings: [{ account: ACCOUNT, amount: '1' }],
      }
      const postings = [{ account: ACCOUNT, amount: 1n }]
      return { n: first + index, body: JSON.stringify(body), moves: 'used', postings, idempotencyRecord: null } as const
    })
    await journal.append(entries, STAMP)
    if (first > ENTRIES / 2) continue
    const { seq } = await journal.seal(SEAL)
    await journal.acknowledge(seq, null, null)
  }
  await journal.close()
  return join(directory, 'journal.db')
}

it('reads and exports a ledger in pieces', { timeout: 120_000 }, async () => {
  const path = await largeLedger()
  const file = join(path, '../ledger.json')
  const args = ['--max-old-space-size=72', COMMAND, 'verify', '--db', path, '--json', '--export', file]
  const child = execFile(process.execPath, args)
  const [output, ended] = await Promise.all([text(child.stdout!), once(child, 'close')])
  // The harness signs no segments and no grants.
  expect(ended).toEqual([65, null])
  const { checked } = JSON.parse(output) as Verification
  // The journal may have deleted delivered ones.
  expect(checked.entries).toBeGreaterThanOrEqual(ENTRIES / 2)
  expect(checked.segments).toBe(1 + ENTRIES / 2 / PIECE)
  const { entries } = JSON.parse(readFileSync(file, 'utf8')) as { readonly entries: readonly unknown[] }
  expect(entries).toHaveLength(checked.entries)
})
