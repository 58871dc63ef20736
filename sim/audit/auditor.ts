/**
 * Keeps its own books of responses, disks and owners' actions, and compares them with both databases. Uses no
 * accounting code of the product. Schedules the checks of the invariants.
 */
import type Sqlite from 'better-sqlite3'
import type { Machine } from '../device/machine.ts'
import { AlarmAudit } from './alarms.ts'
import { BillAudit } from './bill.ts'
import { CloudRefusalAudit } from './cloud-refusals.ts'
import { DeviceAudit } from './devices.ts'
import { EnrollmentAudit } from './enrollments.ts'
import { EntryAudit } from './entries.ts'
import { SharedState } from './shared-state.ts'
import { PoolAudit } from './pools.ts'
import { PublishedAudit } from './published.ts'
import { changesOf, query } from './query.ts'
import { ACCOUNTS, type AccountRow, type DeviceAccountRow, type RulesKnown, fingerprintOf } from './records.ts'
import { ReserveAudit } from './reserves.ts'
import { RestoreAudit } from './restores.ts'
import { SettledAudit } from './settled.ts'
import { TimeAudit } from './time.ts'

/** Between two full checks, sum comparisons only. */
const LOOKS_SKIPPED_MAX = 20

export class Auditor {
  readonly shared: SharedState
  readonly pools: PoolAudit
  readonly bill: BillAudit
  readonly refusals: CloudRefusalAudit
  readonly entries: EntryAudit
  readonly devices: DeviceAudit
  readonly enrollments: EnrollmentAudit
  readonly published: PublishedAudit
  readonly settled: SettledAudit
  readonly #restores: RestoreAudit
  readonly #alarms: AlarmAudit
  readonly #reserves: ReserveAudit
  #changes: bigint | null = null
  #fingerprint = ''
  #skipped = 0

  constructor(now: () => number, settleAfterMs: number) {
    this.shared = new SharedState(now)
    this.published = new PublishedAudit(this.shared)
    this.settled = new SettledAudit(this.shared, settleAfterMs)
    const time = new TimeAudit(this.shared, this.settled)
    this.pools = new PoolAudit(this.shared)
    this.bill = new BillAudit(this.shared)
    this.refusals = new CloudRefusalAudit(this.shared)
    this.entries = new EntryAudit(this.shared, this.pools, time, this.published)
    this.devices = new DeviceAudit(this.shared, this.entries, time)
    this.enrollments = new EnrollmentAudit(this.shared)
    this.#restores = new RestoreAudit(this.shared, this.bill, this.pools)
    this.#alarms = new AlarmAudit(this.shared)
    this.#reserves = new ReserveAudit(this.shared)
  }

  /** The cloud's database was replaced by a backup. @param before image of the replaced database */
  twinRestored(...args: Parameters<RestoreAudit['twinRestored']>): void {
    this.#changes = null
    this.published.forget()
    this.#restores.twinRestored(...args)
  }

  recoveryOverridden(atRisk: ReadonlyMap<string, bigint>): void {
    for (const [account, amount] of atRisk) this.shared.exposure.add(account, amount)
  }

  rulesKnown(): RulesKnown {
    const { caps, inForce, revoked, terminated } = this.shared
    return {
      caps: new Map(caps),
      inForce: new Map(inForce),
      revoked: new Set(revoked),
      terminated: new Map(terminated),
    }
  }

  check(database: Sqlite.Database): void {
    const changes = changesOf(database)
    const isChanged = changes !== this.#changes
    this.#changes = changes
    if (isChanged) this.bill.readUsage(database)
    this.bill.checkExports()
    if (!isChanged) return
    const fingerprint = fingerprintOf(database)
    this.#skipped += 1
    if (fingerprint === this.#fingerprint && this.#skipped < LOOKS_SKIPPED_MAX) return
    this.#fingerprint = fingerprint
    this.#skipped = 0
    this.#checkAll(database)
  }

  #checkAll(database: Sqlite.Database): void {
    this.devices.nameSuspects()
    const accounts = query(database, `SELECT * FROM ${ACCOUNTS}`).all() as AccountRow[]
    const held = query(database, 'SELECT * FROM device_accounts').all() as DeviceAccountRow[]
    this.pools.checkAccounts(accounts, held)
    this.bill.cloud.check(accounts)
    this.#reserves.check(database, accounts, held)
    for (const row of held) {
      this.pools.checkSpent(row)
      this.pools.expectReleased(row)
    }
    this.bill.checkPresumed(database, held)
    this.#alarms.checkAlarms(database)
    this.settled.check(database)
  }

  checkAtRest(database: Sqlite.Database, machines: readonly Machine[]): void {
    this.bill.readUsage(database)
    this.#checkAll(database)
    this.bill.checkAtRest(database)
    this.entries.checkAtRest()
    this.settled.checkAtRest(database)
    for (const machine of machines) this.devices.compareGrants(database, machine)
  }
}
