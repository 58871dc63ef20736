/**
 * Limits how many accounts of new requesters the device opens in the cloud, so that an application that invents requesters
 * does not use up the allowance of the device's syncs: all known requesters depend on them.
 */
import { type AccountId, parseAccount } from '../../core/accounts/account.ts'
import { CodedError } from '../../protocol/errors.ts'
import { Bucket } from '../runtime/bucket.ts'
import type { Balances } from './balances.ts'

/** At once, and per hour and after a restart. Below what the cloud accepts of a device: see `OPENED_BYTES` in `sync-gate.ts`. */
export const NEW_REQUESTERS_MAX = 16_000
export const NEW_REQUESTERS_PER_HOUR = 5_000

const REFILL_MS = (NEW_REQUESTERS_MAX * 60 * 60_000) / NEW_REQUESTERS_PER_HOUR

export class NewRequesters {
  readonly #balances: Pick<Balances, 'get'>
  readonly #clock: { sinceBoot(): number }
  #allowance: Bucket
  /** The last ones that were counted. They may still have no balance: a repeated request does not count them again. */
  readonly #named = new Set<AccountId>()

  constructor(balances: Pick<Balances, 'get'>, clock: { sinceBoot(): number }) {
    this.#balances = balances
    this.#clock = clock
    this.#allowance = this.#full()
    // The process before may have named many.
    this.#allowance.owe(BigInt(NEW_REQUESTERS_MAX - NEW_REQUESTERS_PER_HOUR), clock.sinceBoot())
  }

  areAmong(accounts: readonly AccountId[]): boolean {
    return accounts.some((account) => this.#isNew(account))
  }

  /** Call before a segment names the accounts. Counts those of requesters without a balance. Null: they are admitted. */
  refusalOf(accounts: Iterable<AccountId>): CodedError | null {
    const opened = [...accounts].filter((account) => this.#isNew(account) && !this.#named.has(account))
    if (opened.length === 0) return null
    const count = BigInt(opened.length)
    const now = this.#clock.sinceBoot()
    if (this.#allowance.take(count, now)) {
      this.#name(opened)
      return null
    }
    return new CodedError('REQUESTERS_LIMITED', 'This device has named too many new requesters.', {
      details: { retryAfterMs: this.#allowance.waitFor(count, now) },
    })
  }

  /** Of an epoch, which begins without balances: the cloud knows the requesters of the one before. */
  begin(): void {
    this.#allowance = this.#full()
    this.#named.clear()
  }

  #name(accounts: readonly AccountId[]): void {
    for (const account of accounts) this.#named.add(account)
    // The oldest ones first: a set keeps its sequence.
    for (const account of this.#named) {
      if (this.#named.size <= NEW_REQUESTERS_MAX) return
      this.#named.delete(account)
    }
  }

  #isNew(account: AccountId): boolean {
    return this.#balances.get(account) === undefined && parseAccount(account)?.kind === 'limit'
  }

  #full(): Bucket {
    return new Bucket(BigInt(NEW_REQUESTERS_MAX), REFILL_MS, this.#clock.sinceBoot())
  }
}
