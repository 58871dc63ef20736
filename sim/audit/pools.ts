/** What is out of a pool is at most the cap in force, and no incarnation spends more than it was granted. */
import { Books } from './books.ts'
import type { Facts } from './facts.ts'
import { type AccountRow, type Caps, type DeviceAccountRow, lineOf, nameOf } from './records.ts'
import { Violation } from './violation.ts'

export class PoolAudit {
  readonly #facts: Facts

  constructor(facts: Facts) {
    this.#facts = facts
  }

  /** The administrator has changed what a line item may give. */
  setCaps(lineItemId: string, caps: Omit<Caps, 'lineHistory'>): void {
    const history = this.#facts.caps.get(lineItemId)?.lineHistory ?? []
    this.#facts.caps.set(lineItemId, { ...caps, lineHistory: [...history, caps.line] })
  }

  /** What each device may spend above its grants while it cannot ask, micro-tokens: the highest that was ever allowed counts. */
  setArrearsCap(lineItemId: string, cap: bigint): void {
    if (cap > this.#facts.arrearsCap(lineItemId)) this.#facts.arrearsCaps.set(lineItemId, cap)
  }

  checkAccounts(accounts: readonly AccountRow[], held: readonly DeviceAccountRow[]): void {
    const truth = this.outInTruth(held)
    const out = new Books()
    const billed = new Books()
    for (const row of held) {
      const spent = row.used - row.refunded + row.branch_used
      const given = row.granted - row.returned - row.released
      out.add(row.account, given > spent ? given : spent)
      billed.add(row.account, spent + row.presumed)
    }
    for (const account of accounts) {
      this.#facts.look('I1')
      const { id } = account
      if (out.get(id) !== account.granted_out) {
        throw new Violation('I1', `${out.get(id)} of ${id} are on devices, but the pool says ${account.granted_out}`)
      }
      if (billed.get(id) !== account.billed_by_devices) {
        throw new Violation(
          'I1',
          `${billed.get(id)} of ${id} are billed, but the pool says ${account.billed_by_devices}`,
        )
      }
      const total = this.#totalInTruth(account, truth)
      const target = this.#target(account)
      if (target === null) {
        this.#facts.everUnlimited.add(id)
        this.#facts.inForce.set(id, total)
        continue
      }
      const before = this.#facts.inForce.get(id) ?? target
      const allowed = before > target ? before : target
      const exposed = this.#facts.exposure.get(id) + this.#owedByDamaged(id, held)
      const unlimited = this.#facts.spentUnlimited.get(id)
      if (total > allowed + exposed + unlimited && !this.#isVague(id)) {
        throw new Violation('I1', `${total} of ${id} are out, of ${allowed} in force and ${exposed} exposed`)
      }
      this.#facts.inForce.set(id, target > total ? target : total)
    }
  }

  /** Use above the grants that a damaged ledger did not show before it was delivered, as far as the offline policy allows it. */
  #owedByDamaged(id: string, held: readonly DeviceAccountRow[]): bigint {
    const { damaged } = this.#facts
    if (damaged.size === 0) return 0n
    const cap = this.#facts.arrearsCap(lineOf(id))
    const rows = held.filter(({ account, device_id }) => account === id && damaged.has(device_id))
    return rows.reduce((sum, row) => {
      const arrears = row.arrears + row.branch_arrears
      return sum + (arrears < cap ? arrears : cap)
    }, 0n)
  }

  /** It had no limit at times, and a restored twin has forgotten when. */
  #isVague(account: string): boolean {
    return this.#facts.wasRestored && this.#facts.everUnlimited.has(account)
  }

  /** What devices hold of each account, or have spent, whether a twin that was put back knows it or not. */
  outInTruth(held: readonly DeviceAccountRow[]): Books {
    const rows = new Map([...this.#facts.heldBefore, ...held.map((row) => [nameOf(row), row] as const)])
    const out = new Books()
    for (const row of rows.values()) {
      const { account, granted, returned, released, used, refunded, branch_used } = this.#facts.inTruth(row)
      const spent = used - refunded + branch_used
      const given = granted - returned - released
      out.add(account, given > spent ? given : spent)
    }
    return out
  }

  #totalInTruth({ id, charged }: Pick<AccountRow, 'id' | 'charged'>, out: Books): bigint {
    return charged + this.#facts.soldBefore.get(id) + out.get(id)
  }

  /** The twin was put back: what is out by then is not taken from anybody. */
  keepInForce(accounts: readonly AccountRow[], held: readonly DeviceAccountRow[]): void {
    const out = this.outInTruth(held)
    const charged = new Map(accounts.map((account) => [account.id, account.charged]))
    for (const id of new Set([...charged.keys(), ...out.names(), ...this.#facts.soldBefore.names()])) {
      const total = this.#totalInTruth({ id, charged: charged.get(id) ?? 0n }, out)
      const known = this.#facts.inForce.get(id)
      if (known === undefined || total > known) this.#facts.inForce.set(id, total)
    }
  }

  /** The cap that the administrator has set. */
  #target({ id, cap_target }: AccountRow): bigint | null {
    const [kind, , line = '', third = ''] = id.split('/').map(decodeURIComponent)
    const caps = this.#facts.caps.get(line)
    if (caps === undefined) throw new Violation('I1', `nobody has set up the line item of ${id}`)
    const { lineHistory } = caps
    let target: bigint | null = caps.line
    if (kind === 'action') target = caps.allocations.get(third) ?? 0n
    if (kind === 'limit') target = caps.limit ?? 0n
    if (target === cap_target) return target
    if (kind === 'line' && lineHistory.includes(cap_target)) return cap_target
    throw new Violation('I1', `the cap of ${id} is ${String(cap_target)}, but was set to ${String(target)}`)
  }

  /** By all writers together, of what the twin has granted to this incarnation. */
  checkSpent(row: DeviceAccountRow): void {
    const { device_id, incarnation, account, granted, returned } = this.#facts.inTruth(row)
    this.#facts.look('I2')
    if (this.#isVague(account)) return
    const name = `${device_id} ${incarnation} ${account}`
    const spent = this.#facts.spent.get(name)
    const exposed = this.#facts.exposure.get(name)
    const arrears = this.#facts.arrearsCap(lineOf(account)) * (this.#facts.copies.get(device_id) ?? 1n)
    const unlimited = this.#facts.spentUnlimited.get(name)
    if (spent <= granted - returned + exposed + arrears + unlimited) return
    throw new Violation(
      'I2',
      `${spent} were spent by ${name}, of ${granted - returned} granted, ${exposed} exposed and ${arrears} in arrears`,
    )
  }

  /** What was released without evidence may turn out to be spent. */
  expectReleased(row: DeviceAccountRow): void {
    const name = nameOf(row)
    const more = row.released - (this.#released.get(name) ?? 0n)
    if (more <= 0n) return
    this.#released.set(name, row.released)
    this.#facts.exposure.add(row.account, more)
  }

  readonly #released = new Map<string, bigint>()
}
