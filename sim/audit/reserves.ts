/** Devices are granted nothing of what a pool reserves for the cloud. */
import type Sqlite from 'better-sqlite3'
import { Books } from './books.ts'
import { type AccountRow, type DeviceAccountRow, lineOf, unfilledReserve } from './records.ts'
import type { SharedState } from './shared-state.ts'
import { Violation } from './violation.ts'

export class ReserveAudit {
  readonly #shared: SharedState
  /** Micro-tokens ever granted, by account. */
  #granted = new Books()
  /** What may have taken free tokens since the last look, other than a grant. */
  readonly #terms = new Map<string, string>()

  constructor(shared: SharedState) {
    this.#shared = shared
  }

  check(database: Sqlite.Database, accounts: readonly AccountRow[], held: readonly DeviceAccountRow[]): void {
    const granted = new Books()
    for (const { account, granted: amount } of held) granted.add(account, amount)
    for (const row of accounts) {
      const { id, charged, granted_out: out, withheld, cap_target: cap } = row
      const unfilled = unfilledReserve(database, row)
      const terms = `${cap} ${withheld} ${unfilled + (unfilled > 0n ? charged : 0n)}`
      const isSame = this.#terms.get(id) === terms
      this.#terms.set(id, terms)
      const isGranted = granted.get(id) > this.#granted.get(id)
      if (unfilled === 0n || cap === null || !isSame || !isGranted || this.#isVague(id)) continue
      this.#shared.look('I1')
      const free = cap - withheld - charged - out
      if (free >= unfilled) continue
      throw new Violation('I1', `${free} of ${id} are free after a grant, of ${unfilled} reserved for the twin`)
    }
    this.#granted = granted
  }

  /** Devices may have spent more than they were granted, or have grants that a restored cloud has forgotten. */
  #isVague(account: string): boolean {
    const { wasRestored, suspects, damaged, everUnlimited } = this.#shared
    if (wasRestored || suspects.size > 0 || damaged.size > 0 || everUnlimited.has(account)) return true
    return this.#shared.overspendCap(lineOf(account)) > 0n
  }
}
