/** Effects of a restored cloud database on grants, bill and rules. */
import Sqlite from 'better-sqlite3'
import type { Machine } from '../device/machine.ts'
import type { BillAudit } from './bill.ts'
import type { SharedState } from './shared-state.ts'
import type { PoolAudit } from './pools.ts'
import { query } from './query.ts'
import {
  ACCOUNTS,
  type AccountRow,
  type DeviceAccountRow,
  type RulesKnown,
  nameOf,
  ownerOf,
  replace,
} from './records.ts'

export class RestoreAudit {
  readonly #shared: SharedState
  readonly #bill: BillAudit
  readonly #pools: PoolAudit

  constructor(shared: SharedState, bill: BillAudit, pools: PoolAudit) {
    this.#shared = shared
    this.#bill = bill
    this.#pools = pools
  }

  /**
   * The cloud's database was replaced by a backup. Forgotten sales and grants must not be sold again; the forgotten
   * bill must return, except the cloud's own charges and epochs before the device's current one.
   * @param before image of the replaced database
   */
  twinRestored(before: Buffer, database: Sqlite.Database, rules: RulesKnown, machines: readonly Machine[]): void {
    this.#shared.wasRestored = true
    replace(this.#shared.caps, rules.caps)
    replace(this.#shared.inForce, rules.inForce)
    for (const deviceId of this.#shared.revoked) if (!rules.revoked.has(deviceId)) this.#shared.revoked.delete(deviceId)
    replace(this.#shared.terminated, rules.terminated)
    this.#rememberForgotten(before, database)
    for (const entry of this.#shared.entries.values()) {
      entry.isForgotten ||= entry.unbilled.length < entry.lines.length
      entry.unbilled = [...entry.lines]
    }
    this.#bill.readAgain(database)
    const current = new Set(
      machines.map(({ deps }) => ownerOf(deps.disk.database)).map((owner) => `${owner.deviceId} ${owner.epoch}`),
    )
    for (const entry of this.#shared.entries.values()) {
      const isBilled = entry.unbilled.length === 0
      entry.isForgotten &&= !isBilled
      const name = `${entry.deviceId} ${entry.epoch}`
      if (isBilled || current.has(name)) continue
      this.#shared.lostByCloud.add(name)
    }
  }

  #rememberForgotten(before: Buffer, database: Sqlite.Database): void {
    const gone = new Sqlite(before)
    gone.defaultSafeIntegers(true)
    try {
      // After two restores, the replaced cloud may itself have forgotten earlier grants.
      for (const row of gone.prepare('SELECT * FROM device_accounts').all() as DeviceAccountRow[]) {
        this.#shared.heldBefore.set(nameOf(row), this.#shared.inTruth(row))
      }
      const accounts = query(database, `SELECT * FROM ${ACCOUNTS}`).all() as AccountRow[]
      const charged = new Map(accounts.map((account) => [account.id, account.charged]))
      for (const account of gone.prepare('SELECT * FROM accounts').all() as AccountRow[]) {
        const lost = account.charged - (charged.get(account.id) ?? 0n)
        if (lost > 0n) this.#shared.soldBefore.add(account.id, lost)
      }
      this.#pools.keepInForce(accounts, query(database, 'SELECT * FROM device_accounts').all() as DeviceAccountRow[])
    } finally {
      gone.close()
    }
  }
}
