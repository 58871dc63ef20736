// The owner of a device edits its ledger. Whatever column it is: the edit is reported, or it changes nothing that matters.
import { copyFileSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { describe, expect, it } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { available } from '../../../src/core/accounts/grant.ts'
import { NO_DEVICE_ACCOUNT, mergeSegment } from '../../../src/core/sync/receive.ts'
import type { Journal, Snapshot } from '../../../src/agent/ledger/journal.ts'
import { deriveState, openSigned, trustInAnswers } from '../../../src/agent/ledger/signed-state.ts'
import { verifyLedger } from '../../../src/agent/ledger/verify-ledger.ts'
import { readLedger } from '../../../src/agent/platform/sqlite/read-ledger.ts'
import {
  type EntryBodyWire,
  type Segment,
  type SyncAnswerWire,
  entryBody,
  segment,
} from '../../../src/protocol/edge/sync.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { signDocument } from '../../../src/protocol/signing.ts'
import fc from '../../support/fast-check.ts'
import { IDENTITY, SEAL, STAMP, journalIn, payloadOf, temporaryDirectory } from '../harness.ts'
import { DEVICE, INSTANCE } from '../sync/fake-cloud.ts'
import { type NewSigner, newSigner } from '../../support/new-signer.ts'
import { BEGIN } from '../sync/fake-time.ts'
import { policyWith } from '../sync/policies.ts'

const LINE = lineAccount(INSTANCE, 'line-1', 0)
const OTHER = lineAccount(INSTANCE, 'line-2', 0)
const GRANTED = new Map([
  [LINE, 950n],
  [OTHER, 40n],
])
const USED = new Map([
  [LINE, 37n],
  [OTHER, 40n],
])

/** Nothing signs these: what the device alone knows of its time, its reservations and its callers. */
const OF_THE_DEVICE_ALONE = new Set([
  'identity.document',
  'state.grant_aged_ms',
  'state.clock_boot_id',
  'state.clock_since_boot',
  'state.clock_earliest',
  'state.clock_latest',
  // A higher number than the cloud knows ends the epoch with the next sync, and no token with it.
  'state.last_seq',
  'account.reserved',
  'account.burned',
])

async function charge(journal: Journal, n: number, account: string, amount: bigint): Promise<void> {
  const body: EntryBodyWire = {
    ...{ n, kind: 'access', at: BEGIN, earliest: BEGIN, latest: null, instanceId: INSTANCE, policyRevision: 1 },
    ...{ engine: 1, correlationId: '5c8ec4fd-f17f-4657-bf09-74a97ddc9f8b', requester: { type: 'user', value: 'ada' } },
    ...{ items: [], postings: [{ account, amount: String(amount) }] },
  }
  const postings = [{ account, amount }]
  await journal.append([{ n, body: JSON.stringify(body), moves: 'used', postings, idempotencyRecord: null }], STAMP)
}

/** @param aheadMs by which the clock of the cloud is ahead */
async function exchange(journal: Journal, key: NewSigner, aheadMs = 0, named = GRANTED): Promise<void> {
  const { document: segment, epoch, seq, hash } = await journal.seal(SEAL)
  const time = BEGIN + aheadMs + seq
  const { entries } = payloadOf(segment) as Segment
  const to = entries.first + entries.bodies.length - 1
  const flags = { exhausted: false, unlimited: false }
  const accounts = [...named].map(([account, granted]) => ({ account, granted, ...flags }))
  const grant = { term: seq, lifetimeMs: 86_400_000, expiresAt: BEGIN + 86_400_000 }
  const policies = [{ instanceId: INSTANCE, revision: 1 }]
  const answer: SyncAnswerWire = {
    ...{ outcome: 'MERGED', deviceId: DEVICE, epoch, seq, hash, directives: [], releases: [], sessions: [] },
    receipt: { epoch, seq, hash, entries: { from: entries.first, to, head: entries.head }, retainUntil: BEGIN },
    grant: { ...grant, accounts: accounts.map((each) => ({ ...each, granted: String(each.granted), available: '0' })) },
    ...{ policies, nextSyncMs: 1, time },
  }
  const document = await signDocument('sync-answer', JSON.stringify(answer), key.signer)
  const confirmation = { time, policies }
  await journal.acknowledge(seq, { ...grant, agedMs: 0, accounts }, confirmation, { document, retainUntil: BEGIN })
}

/** A device with rules, in its first epoch. */
async function attached(
  directory: string,
  key: NewSigner,
  changes?: Parameters<typeof journalIn>[1],
): Promise<Journal> {
  const journal = await journalIn(directory, changes)
  await journal.saveIdentity({ ...IDENTITY, trustedKeys: [JSON.stringify(key.jwk)] })
  await journal.attach(1)
  const document = await signDocument(
    'policy',
    JSON.stringify({ ...policyWith(1), trustedKeys: [key.jwk] }),
    key.signer,
  )
  await journal.savePolicy({ instanceId: INSTANCE, revision: 1, document }, null)
  return journal
}

/** Two accounts, one of them used up; entries that are acknowledged, in flight and not sealed. */
async function ledger(aheadMs = 0): Promise<string> {
  const directory = temporaryDirectory()
  const key = await newSigner()
  const journal = await attached(directory, key)
  await exchange(journal, key, aheadMs)
  await charge(journal, 1, LINE, 10n)
  await charge(journal, 2, OTHER, 40n)
  await exchange(journal, key)
  await charge(journal, 3, LINE, 20n)
  await journal.seal(SEAL)
  await charge(journal, 4, LINE, 7n)
  await journal.close()
  return join(directory, 'journal.db')
}

/** Of 30 tokens used, the kept segments prove 10: the later ones are deleted. */
async function forgetful(): Promise<{ readonly directory: string; readonly path: string }> {
  let now = BEGIN
  const directory = temporaryDirectory()
  const key = await newSigner()
  const journal = await attached(directory, key, { now: () => now, limits: { retentionMs: 1_000 } })
  await exchange(journal, key)
  await charge(journal, 1, LINE, 10n)
  await exchange(journal, key)
  await charge(journal, 2, LINE, 20n)
  await exchange(journal, key, 0, new Map())
  now += 2_000
  for (let n = 0; n < 3; n += 1) await exchange(journal, key, 0, new Map())
  expect(await journal.sealed(2)).not.toBeNull()
  expect(await journal.sealed(3)).toBeNull()
  await journal.close()
  return { directory, path: join(directory, 'journal.db') }
}

function lowerUse(path: string, used: number): void {
  const database = new Database(path)
  database.prepare('UPDATE account SET used = :used, sealed_used = :used WHERE used = 30').run({ used })
  database.close()
}

interface Start {
  readonly reported: boolean
  /** What decides: balances, grant, rules. */
  readonly decides: unknown
  readonly snapshot: Snapshot | null
}

/** As an agent starts. */
async function start(directory: string): Promise<Start> {
  const journal = await journalIn(directory).catch((error: unknown) => {
    if (error instanceof CodedError) return null
    throw error
  })
  if (journal === null) return { reported: true, decides: null, snapshot: null }
  const stored = await journal.read()
  await journal.close()
  const { identity, epoch, fenced } = stored
  const trust = await trustInAnswers(identity ?? { trustedKeys: [] })
  const signed = await openSigned(stored.signedAnswers, trust, { deviceId: identity?.deviceId ?? '', epoch })
  const { edits, ...derived } = deriveState(stored, signed)
  const snapshot = { ...stored, ...derived }
  const decides = {
    accounts: [...derived.accounts].map(([id, state]) => [id, available(state), state.unlimited, state.exhausted]),
    grant: { ...derived.grant, agedMs: 0 },
    policies: derived.policies,
    position: [epoch, fenced, stored.lastEntry, stored.entryHead, stored.lastSealedEntry],
  }
  return { reported: edits.length > 0 || (stored.salvages ?? []).length > 0 || fenced, decides, snapshot }
}

async function isWhole(path: string): Promise<boolean> {
  return readLedger(path, verifyLedger).then(
    ({ findings }) => findings.length === 0,
    () => false,
  )
}

interface Column {
  readonly table: string
  readonly column: string
  readonly rows: number
}

function columnsOf(path: string): readonly Column[] {
  const database = new Database(path)
  const tables = ['state', 'identity', 'policy', 'account', 'block', 'slot', 'segment', 'segment_document']
  const columns = tables.flatMap((table) => {
    const rows = database.prepare(`SELECT count(*) FROM ${table}`).pluck().get() as number
    return (database.pragma(`table_info(${table})`) as { name: string }[]).map(({ name: column }) => {
      return { table, column, rows }
    })
  })
  database.close()
  return columns
}

function edit(path: string, { table, column }: Column, row: number, value: number | string | null): void {
  const database = new Database(path)
  const key = database.prepare(`SELECT * FROM ${table} LIMIT 1 OFFSET ?`).get(row) as Record<string, unknown>
  const where = Object.keys(key).map((name) => `${name} IS :${name}`)
  try {
    database
      .prepare(`UPDATE ${table} SET ${column} = :new_value WHERE ${where.join(' AND ')}`)
      .run({ ...key, new_value: value })
  } catch {
    // The schema refuses it.
  }
  database.close()
}

describe('a ledger that its owner edits', () => {
  it('starts without a report as it was left', async () => {
    const path = await ledger()
    expect(await isWhole(path)).toBe(true)
    const { reported, snapshot } = await start(join(path, '..'))
    expect(reported).toBe(false)
    expect(available(snapshot!.accounts.get(LINE)!)).toBe(913n)
  })

  it('starts without a report when segments are deleted that are later than the proof of a grant', async () => {
    const { directory, path } = await forgetful()
    expect(await isWhole(path)).toBe(true)
    const { reported, snapshot } = await start(directory)
    expect(reported).toBe(false)
    expect(available(snapshot!.accounts.get(LINE)!)).toBe(920n)

    lowerUse(path, 9)
    expect(await isWhole(path)).toBe(false)
    expect((await start(directory)).reported).toBe(true)
  })

  it.each([1n, 20n, 940n])('hides no use from the cloud when its deleted segments counted more: %d', async (amount) => {
    const { directory, path } = await forgetful()
    lowerUse(path, 10)
    const { reported, snapshot } = await start(directory)
    expect(reported).toBe(false)
    expect(available(snapshot!.accounts.get(LINE)!)).toBe(940n)
    const journal = await journalIn(directory)
    await charge(journal, 3, LINE, amount)
    const sent = segment.parse(payloadOf((await journal.seal(SEAL)).document))
    await journal.close()
    const items = [{ total: amount, parts: [{ lineItemId: 'line-1', charged: amount }] }]
    const entries = sent.entries.bodies.map((body) => ({ ...entryBody.parse(JSON.parse(body)), items }))
    const { first: firstEntry, previousHash: entriesPreviousHash, head: entryHead } = sent.entries
    const known = { ...NO_DEVICE_ACCOUNT, granted: 950n, used: 30n }
    const state = { status: 'ACTIVE', lastSeq: sent.seq - 1, lastHash: sent.previousHash, lastEntry: 2 } as const
    const merge = mergeSegment(
      { ...state, entryHead: entriesPreviousHash, carriedOn: false, forked: false },
      new Map([[LINE, known]]),
      {
        counters: sent.counters,
        ...{ firstEntry, entriesPreviousHash, entryHead, entries },
        entryHashes: [entryHead],
      },
      { instances: new Set([INSTANCE]), returns: true, closes: false, grantTaken: false, grantsForgotten: false },
    )
    const problem = amount < 20n ? 'COUNTER_FELL' : 'COUNTERS_DO_NOT_FIT_ENTRIES'
    expect(merge).toEqual({ merged: false, problem, account: LINE })
  })

  it.each([
    ['unlimited', 'UPDATE account SET unlimited = 1'],
    ['granted', 'UPDATE account SET granted = 9000'],
    ['a grant without end', 'UPDATE state SET grant_term = NULL'],
    ['a grant that lives on', 'UPDATE state SET grant_lifetime_ms = 1e15, grant_expires_at = 9e15'],
    ['a proof that is gone', 'UPDATE account SET granted = 9000, proof = NULL'],
    ['use that is taken back', 'UPDATE account SET used = 7, sealed_used = 0'],
    ['rules that are as new as ever', 'UPDATE policy SET confirmed_at = 9e15'],
  ])('spends no more with %s, and says so', async (_what, sql) => {
    const path = await ledger()
    const database = new Database(path)
    database.exec(sql)
    database.close()
    expect(await isWhole(path)).toBe(false)
    const { reported, snapshot } = await start(join(path, '..'))
    expect(reported).toBe(true)
    for (const [account, state] of snapshot?.accounts ?? []) {
      expect(state.unlimited).toBe(false)
      expect(available(state)).toBeLessThanOrEqual(GRANTED.get(account)! - USED.get(account)!)
    }
    expect(snapshot?.grant?.expiresAt ?? 0).toBeLessThanOrEqual(BEGIN + 86_400_000)
    for (const { confirmedAt } of snapshot?.policies ?? []) expect(confirmedAt).toBeLessThanOrEqual(BEGIN + 2)
  })

  it('is whole after the clock of the cloud was ahead, and counts the age of its rules from the last answer', async () => {
    const path = await ledger(500)
    expect(await isWhole(path)).toBe(true)
    const { reported, snapshot } = await start(join(path, '..'))
    expect(reported).toBe(false)
    expect(snapshot?.policies).toMatchObject([{ confirmedAt: BEGIN + 2 }])
  })

  it('reports the edit of any column, or decides as before', { timeout: 300_000 }, async () => {
    const whole = await ledger()
    const columns = columnsOf(whole)
    const copyOf = (): string => {
      const path = join(temporaryDirectory(), 'journal.db')
      copyFileSync(whole, path)
      return path
    }
    const before = await start(join(copyOf(), '..'))
    const values = fc.oneof(
      fc.integer({ min: -2, max: 50 }),
      fc.constantFrom(null, '', 'x', '0'.repeat(64), 'e30.e30.AA', 950, 1_000_000, 9e15, 'ACKNOWLEDGED', 'ABANDONED'),
    )
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...columns), fc.nat(), values, async (column, nth, value) => {
        const path = copyOf()
        if (column.rows > 0) edit(path, column, nth % column.rows, value)
        const found = !(await isWhole(path))
        const after = await start(join(path, '..'))
        const name = `${column.table}.${column.column}`
        for (const [account, state] of after.snapshot?.accounts ?? []) {
          const left = (GRANTED.get(account) ?? 0n) - (USED.get(account) ?? 0n)
          expect(state.unlimited, name).toBe(false)
          expect(available(state), name).toBeLessThanOrEqual(left)
        }
        if (OF_THE_DEVICE_ALONE.has(name) || found || after.reported) return
        expect(after.decides, name).toEqual(before.decides)
      }),
      { numRuns: 60 },
    )
  })
})
