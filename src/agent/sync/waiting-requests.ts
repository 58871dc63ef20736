/** Access requests that wait for tokens. The next segment carries their needs. Null: a round failed, or timed out. */
import type { AccountId } from '../../core/accounts/account.ts'
import { type Micro, countable } from '../../core/pricing/amount.ts'
import type { Need } from '../../core/accounts/grant.ts'
import {
  NEED_ACCOUNTS_MAX,
  SEGMENT_NEEDS_BYTES_MAX,
  SEGMENT_NEEDS_MAX,
  SEGMENT_NEED_POSTINGS_MAX,
} from '../../protocol/edge/sync.ts'
import { type PoolBalances, type WaitingTopUp, requestTooLarge } from '../access/local-decisions.ts'
import type { NewRequesters } from '../ledger/new-requesters.ts'
import type { Timers } from '../runtime/timers.ts'

interface Waiting extends WaitingTopUp {
  readonly needBytes: number
  readonly needPostings: number
  carried: boolean
  poolBalances: PoolBalances | null
  readonly resolve: () => void
  readonly reject: (error: Error) => void
}

export class WaitingRequests {
  readonly #waiting = new Set<Waiting>()
  readonly #timers: Timers

  constructor(timers: Timers) {
    this.#timers = timers
  }

  /** Null: no answer. @throws CodedError REQUEST_TOO_LARGE: does not fit a segment; REQUESTERS_LIMITED */
  wait({ needs, accounts }: WaitingTopUp, patienceMs: number): Promise<PoolBalances | null> {
    const needBytes = bytesOf(needs)
    const needPostings = needs.flat().length
    const isTooMany = needs.length > SEGMENT_NEEDS_MAX || needs.some(({ length }) => length > NEED_ACCOUNTS_MAX)
    if (isTooMany || needPostings > SEGMENT_NEED_POSTINGS_MAX || needBytes > SEGMENT_NEEDS_BYTES_MAX) {
      const named = new Set(needs.flat().map(({ account }) => account)).size
      throw requestTooLarge(named)
    }
    return new Promise((done, fail) => {
      const waiting: Waiting = {
        needs,
        accounts,
        needBytes,
        needPostings,
        carried: false,
        poolBalances: null,
        resolve: () => {
          remove()
          done(waiting.poolBalances)
        },
        reject: (error) => {
          remove()
          fail(error)
        },
      }
      const remove = (): void => {
        cancel()
        this.#waiting.delete(waiting)
      }
      const cancel = this.#timers.after(patienceMs, waiting.resolve)
      this.#waiting.add(waiting)
    })
  }

  get hasNew(): boolean {
    for (const { carried } of this.#waiting) if (!carried) return true
    return false
  }

  /**
   * As many as fit the next segment, first come, first served. Those with new requesters come last: an application that
   * invents requesters does not delay known ones.
   */
  carry(newRequesters: Pick<NewRequesters, 'areAmong' | 'refusalOf'>): {
    readonly needs: readonly Need[]
    readonly accounts: ReadonlySet<AccountId>
  } {
    const needs: Need[] = []
    const accounts = new Set<AccountId>()
    let [bytes, postings] = [0, 0]
    for (const waiting of this.#knownFirst(newRequesters)) {
      const length = bytes + waiting.needBytes
      const count = postings + waiting.needPostings
      if (needs.length + waiting.needs.length > SEGMENT_NEEDS_MAX || length > SEGMENT_NEEDS_BYTES_MAX) break
      if (count > SEGMENT_NEED_POSTINGS_MAX) break
      const refusal = newRequesters.refusalOf(waiting.accounts.filter((account) => !accounts.has(account)))
      if (refusal !== null) {
        waiting.reject(refusal)
        continue
      }
      bytes = length
      postings = count
      waiting.carried = true
      needs.push(...waiting.needs)
      for (const account of waiting.accounts) accounts.add(account)
    }
    return { needs, accounts }
  }

  #knownFirst(newRequesters: Pick<NewRequesters, 'areAmong'>): readonly Waiting[] {
    const known: Waiting[] = []
    const others: Waiting[] = []
    for (const waiting of this.#waiting) {
      if (!waiting.carried) (newRequesters.areAmong(waiting.accounts) ? others : known).push(waiting)
    }
    return [...known, ...others]
  }

  /** Sum of the waiting requests' needs by account; these tokens are not returned. */
  needed(): ReadonlyMap<AccountId, Micro> {
    const sums = new Map<AccountId, Micro>()
    for (const { needs } of this.#waiting) {
      for (const { account, amount } of needs.flat()) sums.set(account, countable((sums.get(account) ?? 0n) + amount))
    }
    return sums
  }

  receive(poolBalances: PoolBalances): void {
    for (const waiting of this.#waiting) if (waiting.carried) waiting.poolBalances ??= poolBalances
  }

  resolveCarried(): void {
    for (const waiting of [...this.#waiting]) if (waiting.carried) waiting.resolve()
  }

  resolveAll(): void {
    for (const waiting of [...this.#waiting]) waiting.resolve()
  }
}

function bytesOf(needs: readonly Need[]): number {
  let bytes = 0
  // Account id, an amount of up to 19 digits, and the JSON around them.
  for (const need of needs) for (const { account } of need) bytes += Buffer.byteLength(JSON.stringify(account)) + 50
  return bytes + 3 * needs.length
}
