/** The device's charges over the last day, for display only. Limits are left out, because their number is unbounded. */
import { type AccountId, type Posting, isLimitAccount } from '../../core/accounts/account.ts'
import type { EntryBodyWire } from '../../protocol/edge/sync.ts'
import { type DeviceReportWire, USE_BINS, USE_BIN_MS } from '../../protocol/local/report.ts'
import { TimeSlots } from '../ledger/time-slots.ts'

export const RECALLED_MAX = 1_000

export interface UseDeps {
  readonly now: () => number
  /** Boot-time reading, ms: setting the clock does not shift the counts. */
  readonly sinceBoot: () => number
}

export class UseOverTime {
  readonly #deps: UseDeps
  readonly #accounts = new Map<AccountId, TimeSlots>()
  #since: number

  constructor(deps: UseDeps) {
    this.#deps = deps
    this.#since = deps.sinceBoot()
  }

  /** Call when these are in the journal. */
  add(postings: readonly Posting[]): void {
    if (postings.length > 0) this.#addAt(postings, this.#deps.sinceBoot())
  }

  /** Restores an earlier process's charges; call before adding any. @param entries newest first, without a gap */
  recall(entries: readonly Pick<EntryBodyWire, 'at' | 'kind' | 'postings'>[]): void {
    const { now, sinceBoot } = this.#deps
    for (const { at, kind, postings } of entries) {
      const came = sinceBoot() - Math.max(0, now() - at)
      if (came < this.#since) this.#since = came
      if (kind !== 'access') continue
      const charged = postings.map(({ account, amount }) => ({ account, amount: BigInt(amount) }))
      this.#addAt(charged, came)
    }
  }

  reading(): DeviceReportWire['use'] {
    const now = this.#deps.now()
    const sinceBoot = this.#deps.sinceBoot()
    this.#forgetIdle(sinceBoot)
    const restOfBin = USE_BIN_MS - (sinceBoot % USE_BIN_MS)
    return {
      binMs: USE_BIN_MS,
      until: Math.ceil(now + restOfBin),
      since: Math.ceil(now - (sinceBoot - this.#since)),
      accounts: [...this.#accounts].map(([account, slots]) => ({
        account,
        charged: slots.read(sinceBoot).map(String),
      })),
    }
  }

  #addAt(postings: readonly Posting[], sinceBoot: number): void {
    for (const { account, amount } of postings) {
      if (amount === 0n) continue
      let slots = this.#accounts.get(account)
      if (slots === undefined) {
        if (isLimitAccount(account)) continue
        // Each period has its own account, so idle ones make space for new ones.
        this.#forgetIdle(this.#deps.sinceBoot())
        slots = new TimeSlots(USE_BIN_MS, USE_BINS, this.#deps.sinceBoot())
        this.#accounts.set(account, slots)
      }
      slots.add(amount, sinceBoot)
    }
  }

  #forgetIdle(sinceBoot: number): void {
    for (const [account, slots] of this.#accounts) if (slots.isEmpty(sinceBoot)) this.#accounts.delete(account)
  }
}
