/** A pool's outstanding tokens are at most the cap in force, and no epoch spends above its grants. */
import { Books } from './books.ts'
import type { SharedState } from './shared-state.ts'
import { type AccountRow, type Caps, type DeviceAccountRow, lineOf, nameOf } from './records.ts'
import { Violation } from './violation.ts'

export class PoolAudit {
  readonly #shared: SharedState

  constructor(shared: SharedState) {
    this.#shared = shared
  }

  setCaps(lineItemId: string, caps: Omit<Caps, 'history'>): void {
    const { line, limit } = this.#shared.caps.get(lineItemId)?.history ?? { line: [], limit: [] }
    const history = { line: [...line, caps.line], limit: [...limit, caps.limit ?? 0n] }
    this.#shared.caps.set(lineItemId, { ...caps, history })
  }

  /** Cap per device without contact, micro-tokens: the highest ever allowed counts. */
  setOverspendCap(lineItemId: string, cap: bigint): void {
    if (cap > this.#shared.overspendCap(lineItemId)) this.#shared.overspendCaps.set(lineItemId, cap)
  }

  checkAccounts(accounts: readonly AccountRow[], held: readonly DeviceAccountRow[]): void {
    const inTruth = this.#inTruth(held)
    const truth = heldOrSpent(inTruth)
    const out = new Books()
    const billed = new Books()
    for (const row of held) {
      const spent = row.used - row.refunded + row.branch_used
      const given = row.granted - row.returned - row.released
      out.add(row.account, given > spent ? given : spent)
      billed.add(row.account, spent + row.presumed)
    }
    for (const account of accounts) {
      this.#shared.look('I1')
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
      const imported = this.#newlyImported(account)
      const total = this.#totalInTruth(account, truth)
      const target = this.#target(account)
      if (target === null) {
        this.#shared.everUnlimited.add(id)
        this.#shared.inForce.set(id, total)
        continue
      }
      const before = (this.#shared.inForce.get(id) ?? target) + imported
      const allowed = before > target ? before : target
      const exposed = this.#shared.exposure.get(id) + this.#owedByDamaged(id, inTruth)
      const unlimited = this.#shared.spentUnlimited.get(id)
      if (total > allowed + exposed + unlimited && !this.#isVague(id)) {
        throw new Violation('I1', `${total} of ${id} are out, of ${allowed} in force and ${exposed} exposed`)
      }
      this.#shared.inForce.set(id, target > total ? target : total)
    }
  }

  /** Imported use is spent, whatever the cap. It may be a part of what a restored cloud has forgotten. */
  #newlyImported({ id, imported }: AccountRow): bigint {
    const more = imported - (this.#imported.get(id) ?? 0n)
    this.#imported.set(id, imported)
    if (more <= 0n) return 0n
    if (!this.#shared.importsRepeat) return more
    const forgotten = this.#shared.soldBefore.get(id)
    const again = forgotten < more ? forgotten : more
    this.#shared.soldBefore.add(id, -again)
    return more - again
  }

  readonly #imported = new Map<string, bigint>()

  /** Overspend that a damaged ledger hides until delivery, within the offline policy. */
  #owedByDamaged(id: string, inTruth: readonly DeviceAccountRow[]): bigint {
    const { damaged } = this.#shared
    if (damaged.size === 0) return 0n
    const cap = this.#shared.overspendCap(lineOf(id))
    const rows = inTruth.filter(({ account, device_id }) => account === id && damaged.has(device_id))
    return rows.reduce((sum, row) => {
      const overspend = row.overspend + row.branch_overspend
      return sum + (overspend < cap ? overspend : cap)
    }, 0n)
  }

  /** It had no limit at times that a restored cloud has forgotten. */
  #isVague(account: string): boolean {
    return this.#shared.wasRestored && this.#shared.everUnlimited.has(account)
  }

  /** Tokens granted or spent per account, whether or not a restored cloud knows. */
  #inTruth(held: readonly DeviceAccountRow[]): readonly DeviceAccountRow[] {
    const rows = new Map([...this.#shared.heldBefore, ...held.map((row) => [nameOf(row), row] as const)])
    return [...rows.values()].map((row) => this.#shared.inTruth(row))
  }

  #totalInTruth({ id, charged }: Pick<AccountRow, 'id' | 'charged'>, out: Books): bigint {
    return charged + this.#shared.soldBefore.get(id) + out.get(id)
  }

  /** At a restore, outstanding tokens stay with their devices. */
  keepInForce(accounts: readonly AccountRow[], held: readonly DeviceAccountRow[]): void {
    const out = heldOrSpent(this.#inTruth(held))
    const charged = new Map(accounts.map((account) => [account.id, account.charged]))
    this.#imported.clear()
    for (const { id, imported } of accounts) this.#imported.set(id, imported)
    for (const id of new Set([...charged.keys(), ...out.names(), ...this.#shared.soldBefore.names()])) {
      const total = this.#totalInTruth({ id, charged: charged.get(id) ?? 0n }, out)
      const known = this.#shared.inForce.get(id)
      if (known === undefined || total > known) this.#shared.inForce.set(id, total)
    }
  }

  #target({ id, cap_target }: AccountRow): bigint | null {
    const [kind, , line = '', third = ''] = id.split('/').map(decodeURIComponent)
    const caps = this.#shared.caps.get(line)
    if (caps === undefined) throw new Violation('I1', `the line item of ${id} was never set up`)
    const { history } = caps
    let target: bigint | null = caps.line
    if (kind === 'action') target = caps.allocations.get(third) ?? 0n
    if (kind === 'limit') target = caps.limit ?? 0n
    if (target === cap_target) return target
    if ((kind === 'line' || kind === 'limit') && history[kind].includes(cap_target)) return cap_target
    throw new Violation('I1', `the cap of ${id} is ${String(cap_target)}, but was set to ${String(target)}`)
  }

  /** Spending of all writers against the grants of the epoch. */
  checkSpent(row: DeviceAccountRow): void {
    const { device_id, epoch, account, granted, returned } = this.#shared.inTruth(row)
    this.#shared.look('I2')
    if (this.#isVague(account)) return
    const name = `${device_id} ${epoch} ${account}`
    const spent = this.#shared.spent.get(name)
    const exposed = this.#shared.exposure.get(name)
    const overspend = this.#shared.overspendCap(lineOf(account)) * (this.#shared.copies.get(device_id) ?? 1n)
    const unlimited = this.#shared.spentUnlimited.get(name)
    if (spent <= granted - returned + exposed + overspend + unlimited + this.#grantedToNamesake(row)) return
    throw new Violation(
      'I2',
      `${spent} were spent by ${name}, of ${granted - returned} granted, ${exposed} exposed and ${overspend} overspent`,
    )
  }

  /** A restored cloud can reuse an epoch number that a damaged ledger has forgotten too: two epochs, one name. */
  #grantedToNamesake(row: DeviceAccountRow): bigint {
    const before = this.#shared.heldBefore.get(nameOf(row))
    if (before === undefined || !this.#shared.damaged.has(row.device_id)) return 0n
    return before.granted < row.granted ? before.granted : row.granted
  }

  /** Tokens released without evidence may turn out to be spent. */
  expectReleased(row: DeviceAccountRow): void {
    const name = nameOf(row)
    const more = row.released - (this.#released.get(name) ?? 0n)
    if (more <= 0n) return
    this.#released.set(name, row.released)
    this.#shared.exposure.add(row.account, more)
  }

  readonly #released = new Map<string, bigint>()
}

/** Tokens of each account granted to devices, spent or not. */
function heldOrSpent(rows: readonly DeviceAccountRow[]): Books {
  const out = new Books()
  for (const { account, granted, returned, released, used, refunded, branch_used } of rows) {
    const spent = used - refunded + branch_used
    const given = granted - returned - released
    out.add(account, given > spent ? given : spent)
  }
  return out
}
