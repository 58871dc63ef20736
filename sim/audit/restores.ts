/** What follows from a backup in the place of the twin's database: what it has forgotten of grants, of the bill and of the rules. */
import Sqlite from 'better-sqlite3'
import type { Machine } from '../device/machine.ts'
import type { BillAudit } from './bill.ts'
import type { Facts } from './facts.ts'
import { query } from './query.ts'
import { type DeviceAccountRow, type RulesKnown, nameOf, outOf, ownerOf, replace } from './records.ts'

export class RestoreAudit {
  readonly #facts: Facts
  readonly #bill: BillAudit

  constructor(facts: Facts, bill: BillAudit) {
    this.#facts = facts
    this.#bill = bill
  }

  /**
   * Somebody has put a backup in the place of the twin's database. What it has forgotten of grants can be granted again,
   * as far as nobody shows them; what it has forgotten of the bill has to come again, but for its own charges, and for
   * incarnations that ended before the device's current one.
   *
   * @param before image of the database that is gone
   * @param told the twin learns from the start; otherwise what it has forgotten can be granted again before a device has shown it
   */
  twinRestored(
    before: Buffer,
    database: Sqlite.Database,
    rules: RulesKnown,
    machines: readonly Machine[],
    told: boolean,
  ): void {
    this.#facts.wasRestored = true
    replace(this.#facts.caps, rules.caps)
    replace(this.#facts.inForce, rules.inForce)
    for (const deviceId of this.#facts.revoked) if (!rules.revoked.has(deviceId)) this.#facts.revoked.delete(deviceId)
    for (const deviceId of this.#facts.terminated)
      if (!rules.terminated.has(deviceId)) this.#facts.terminated.delete(deviceId)
    this.#exposeForgotten(before, database, told)
    for (const entry of this.#facts.entries.values()) {
      entry.isForgotten ||= entry.billedLines > 0
      entry.billedTokens = 0n
      entry.billedLines = 0
    }
    this.#bill.readAgain(database)
    const current = new Set(
      machines
        .map(({ parts }) => ownerOf(parts.disk.database))
        .map((owner) => `${owner.deviceId} ${owner.incarnation}`),
    )
    for (const entry of this.#facts.entries.values()) {
      const isBilled = entry.billedTokens === entry.tokens && entry.billedLines === entry.lines
      entry.isForgotten &&= !isBilled
      if (!isBilled && !current.has(`${entry.deviceId} ${entry.incarnation}`)) entry.mayBeLost = true
    }
  }

  #exposeForgotten(before: Buffer, database: Sqlite.Database, told: boolean): void {
    const gone = new Sqlite(before)
    gone.defaultSafeIntegers(true)
    try {
      const rows = gone.prepare('SELECT * FROM device_accounts').all() as DeviceAccountRow[]
      // Restored twice, the twin that is gone may itself not have learned yet what an earlier one had granted.
      for (const row of rows) {
        const before = this.#facts.grantedBefore.get(nameOf(row)) ?? 0n
        this.#facts.grantedBefore.set(nameOf(row), row.granted > before ? row.granted : before)
      }
      this.#facts.restoredAt = this.#facts.now()
      this.#facts.waited.clear()
      const kept = new Map(
        (query(database, 'SELECT * FROM device_accounts').all() as DeviceAccountRow[]).map((row) => [nameOf(row), row]),
      )
      for (const row of rows) {
        const known = kept.get(nameOf(row))
        if (told && known !== undefined) {
          const owners = this.#facts.waited.get(row.account) ?? new Set()
          this.#facts.waited.set(row.account, owners.add(`${row.device_id} ${row.incarnation}`))
        }
        const forgotten = outOf(row) - (known === undefined ? 0n : outOf(known))
        if (forgotten > 0n) this.#facts.exposure.add(nameOf(row), forgotten)
        // Who has drawn on the account before is waited for; grants are known again before returns are.
        const granted = row.granted - (known?.granted ?? 0n)
        if (granted > 0n) {
          const waits = told ? this.#facts.forgotten : this.#facts.exposure
          waits.add(nameOf(row), granted)
          ;(known === undefined ? this.#facts.exposure : waits).add(row.account, granted)
        }
      }
    } finally {
      gone.close()
    }
  }
}
