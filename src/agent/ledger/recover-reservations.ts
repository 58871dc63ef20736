/**
 * Closes reservations that the previous process left open. If the log fits the journal, its entries are recorded.
 * Otherwise the machine lost power, and the rest of every reservation is burned. Idempotent.
 */
import { type AccountId, instanceIdOf } from '../../core/accounts/account.ts'
import { chunksOf } from '../../core/chunks.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { EntryBodyWire } from '../../protocol/edge/sync.ts'
import type { ClockStamp, Journal, PendingEntry, Snapshot } from './journal.ts'
import { type LeftLog, missingFrom } from './volatile-log.ts'
import type { Log } from '../../protocol/log.ts'

/** Reservations in one entry: the counters of even the longest accounts fit a segment. */
const BURN_ACCOUNTS_MAX = 500

export interface RecoveryDeps {
  readonly journal: Pick<Journal, 'appendWriteBehind'>
  /** Log of an earlier process; undefined: none, or unreadable. */
  readonly left: LeftLog | undefined
  readonly bootId: string
  readonly reading: ClockReading
  readonly stamp: ClockStamp
  readonly newCorrelationId: () => string
  readonly engine: number
  readonly log: Pick<Log, 'warn'>
}

/** Returns whether the journal has changed. */
export async function recoverReservations(deps: RecoveryDeps, snapshot: Snapshot): Promise<boolean> {
  const { journal, left, bootId, stamp, log } = deps
  const missing = missingFrom(left, snapshot, bootId)
  const entries = missing ?? burnsOf(deps, snapshot)
  if (entries.length === 0 && snapshot.openReservations.size === 0) return false
  const used = new Map<AccountId, Micro>()
  for (const account of snapshot.openReservations.keys()) used.set(account, snapshot.accounts.get(account)?.used ?? 0n)
  for (const { moves, postings } of entries) {
    if (moves === 'refunded') continue
    for (const { account, amount } of postings) {
      const before = used.get(account)
      if (before !== undefined) used.set(account, before + amount)
    }
  }
  const closed = [...used].map(([account, usedUpTo]) => ({ account, usedUpTo }))
  await journal.appendWriteBehind(entries, closed, stamp, true)
  if (missing === undefined) {
    const burned = entries.flatMap(({ postings }) => postings)
    const reservations = burned.map(({ account, amount }) => ({ account, tokens: String(amount) }))
    log.warn({ reservations }, 'the power was cut with open reservations: their unused part counts as used')
  }
  return true
}

function burnsOf({ reading, newCorrelationId, engine }: RecoveryDeps, snapshot: Snapshot): readonly PendingEntry[] {
  const byInstance = Map.groupBy(snapshot.openReservations, ([account]) => instanceIdOf(account))
  const parts = [...byInstance].flatMap(([instanceId, all]) =>
    [...chunksOf(all, BURN_ACCOUNTS_MAX)].map((blocks) => ({ instanceId, blocks })),
  )
  const { now, earliest, latest } = reading
  return parts.map(({ instanceId, blocks }, index): PendingEntry => {
    const n = snapshot.lastEntry + 1 + index
    const postings = blocks.map(([account, end]) => {
      return { account, amount: end - (snapshot.accounts.get(account)?.used ?? 0n) }
    })
    const policy = snapshot.policies.find((each) => each.instanceId.toLowerCase() === instanceId.toLowerCase())
    const body: EntryBodyWire = {
      n,
      kind: 'burn',
      at: now,
      earliest,
      latest,
      instanceId,
      policyRevision: policy?.revision ?? 1,
      engine,
      correlationId: newCorrelationId(),
      requester: { type: '', value: '' },
      items: [],
      postings: postings.map(({ account, amount }) => ({ account, amount: String(amount) })),
    }
    return { n, body: JSON.stringify(body), moves: 'burned', postings, idempotencyRecord: null }
  })
}
