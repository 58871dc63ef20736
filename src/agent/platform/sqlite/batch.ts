/** What one commit of entries changes. */
import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { EntryBodyWire } from '../../../protocol/edge/sync.ts'
import type { ClockStamp, IdempotencyRecord, PendingEntry, Reservation, StoredSession } from '../../ledger/journal.ts'

export interface AccountMove {
  readonly account: AccountId
  readonly used: Micro
  readonly refunded: Micro
  readonly burned: Micro
  /** How far usage may exceed the grant; 0n: not at all. */
  readonly allowance: Micro
}

export interface Batch {
  readonly firstN: number
  readonly entries: readonly Pick<PendingEntry, 'body' | 'inputs'>[]
  readonly moves: readonly AccountMove[]
  readonly answers: readonly IdempotencyRecord[]
  readonly sessions: readonly StoredSession[]
  readonly reservations: readonly Reservation[]
  /** These entries were already answered, so they may use the disk space reserved for deliveries. */
  readonly answered: boolean
  readonly stamp: ClockStamp
}

export type Sum = { -readonly [K in keyof AccountMove]: AccountMove[K] }

/** Of the account, which is added if it is not there. */
export function sumIn(sums: Map<AccountId, Sum>, account: AccountId): Sum {
  let sum = sums.get(account)
  if (sum === undefined) {
    sum = { account, used: 0n, refunded: 0n, burned: 0n, allowance: 0n }
    sums.set(account, sum)
  }
  return sum
}

/** What the postings of recorded entries move: not the allowances, which bodies do not have. */
export function movesOf(bodies: Iterable<string>): Map<AccountId, Sum> {
  const moves = new Map<AccountId, Sum>()
  for (const body of bodies) {
    const { kind, postings } = JSON.parse(body) as EntryBodyWire
    for (const { account, amount } of postings) {
      const sum = sumIn(moves, account)
      if (kind === 'refund') sum.refunded += BigInt(amount)
      else sum.used += BigInt(amount)
      if (kind === 'burn') sum.burned += BigInt(amount)
    }
  }
  return moves
}

export function batchOf(
  entries: readonly PendingEntry[],
  reservations: readonly Reservation[],
  stamp: ClockStamp,
  answered: boolean,
): Batch {
  const moves = new Map<AccountId, Sum>()
  const answers: IdempotencyRecord[] = []
  const sessions = new Map<string, StoredSession>()
  for (const { moves: counter, postings, allowances, idempotencyRecord, session } of entries) {
    if (session !== undefined) sessions.set(session.id, session)
    if (idempotencyRecord !== null) answers.push(idempotencyRecord)
    for (const { account, amount } of postings) {
      const sum = sumIn(moves, account)
      sum[counter] += amount
      const allowance = allowances?.get(account) ?? 0n
      if (allowance > sum.allowance) sum.allowance = allowance
      if (counter === 'burned') sum.used += amount
    }
  }
  return {
    firstN: entries[0]?.n ?? 0,
    entries,
    moves: [...moves.values()],
    answers,
    sessions: [...sessions.values()],
    reservations,
    answered,
    stamp,
  }
}
