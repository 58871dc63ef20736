/**
 * When this device charged what, over the last day: for the eyes of a technician, and nothing else. It counts in memory what
 * the journal has taken and never writes; a start recalls as much as the ledger still holds, and says from when on all is known.
 * Limits of single requesters are left out: there may be any number of them.
 */
import { type AccountId, type Posting, isLimitAccount } from '../../core/accounts/account.ts'
import type { EntryBodyWire } from '../../protocol/edge/sync.ts'
import { type DeviceReportWire, USE_BINS, USE_BIN_MS } from '../../protocol/local/report.ts'
import { TimeSlots } from './time-slots.ts'

/** Entries that a start may look at. */
export const RECALLED_MAX = 1_000

export interface UseDeps {
  /** Best estimate, POSIX ms. */
  readonly now: () => number
  /** Boot-time reading, ms: a clock that is set does not shift what is counted by it. */
  readonly sinceBoot: () => number
}

export class UseOverTime {
  readonly #deps: UseDeps
  readonly #accounts = new Map<AccountId, TimeSlots>()
  /** Boot-time reading from which on all is known. */
  #since: number

  constructor(deps: UseDeps) {
    this.#deps = deps
    this.#since = deps.sinceBoot()
  }

  /** These stand in the journal, as used. */
  add(postings: readonly Posting[]): void {
    if (postings.length > 0) this.#addAt(postings, this.#deps.sinceBoot())
  }

  /**
   * What an agent before this one recorded; called before anything is added.
   *
   * @param entries newest first, without a gap
   */
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
        // Periods follow one another: an account that is not used any more makes room for the next.
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
