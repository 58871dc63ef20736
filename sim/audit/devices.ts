/** Spending on each disk is covered by grants; tracks what owners do to disks. */
import type Sqlite from 'better-sqlite3'
import type { Damage, Effect } from '../device/disk.ts'
import { entriesIn, accountsFolded } from '../device/entry-table.ts'
import type { Machine } from '../device/machine.ts'
import { Books } from './books.ts'
import type { EntryAudit } from './entries.ts'
import type { SharedState } from './shared-state.ts'
import { query } from './query.ts'
import { type DeviceAccountRow, type EntryText, lineOf, ownerOf } from './records.ts'
import type { TimeAudit } from './time.ts'
import { Violation } from './violation.ts'

export class DeviceAudit {
  readonly #shared: SharedState
  readonly #entries: EntryAudit
  readonly #time: TimeAudit

  constructor(shared: SharedState, entries: EntryAudit, time: TimeAudit) {
    this.#shared = shared
    this.#entries = entries
    this.#time = time
  }

  revoked(deviceId: string): void {
    for (const entry of this.#shared.entries.values()) if (entry.deviceId === deviceId) entry.mayBeLost = true
    this.#shared.revoked.add(deviceId)
  }

  /** A call of a device's journal took effect. @param twin the cloud's database */
  taken(machine: Machine, effect: Effect, twin: Sqlite.Database): void {
    switch (effect.name) {
      case 'append':
        this.#entries.appended(
          machine,
          effect.entries.map(({ body }) => body),
          twin,
        )
        break
      case 'acknowledge':
        this.#time.acknowledgedBy(machine, ...effect.args)
        break
      case 'attach':
        this.#shared.grants.set(machine.name, null)
        this.#succeeded(machine)
        // The cloud does not ask again for entries delivered before an epoch was closed.
        for (const entry of this.#shared.entries.values()) {
          if (entry.machine === machine.name && entry.isForgotten) entry.mayBeLost = true
        }
        break
      case 'storeSeal':
        break
    }
    this.#shared.look('I5')
    this.#checkOver(machine, true)
  }

  readonly #current = new Map<string, { readonly deviceId: string | null; readonly epoch: number }>()

  #succeeded(machine: Machine): void {
    const before = this.#current.get(machine.name)
    const owner = ownerOf(machine.deps.disk.database)
    this.#current.set(machine.name, owner)
    if (before === undefined || before.deviceId !== owner.deviceId || owner.deviceId === null) return
    this.#shared.succeeded.add(`${before.deviceId} ${before.epoch}`)
  }

  /** A disk may have lost that an epoch without undelivered entries was still to be closed. */
  #forgetSucceeded(machine: Machine): void {
    const before = this.#current.get(machine.name)
    this.#current.delete(machine.name)
    for (const name of this.#shared.succeeded) {
      if (name.split(' ')[0] === before?.deviceId) this.#shared.succeeded.delete(name)
    }
  }

  /** Checks overspend: essential items only, within their cap, and never by a reservation. */
  #checkOver(machine: Machine, isNew: boolean): void {
    const { database } = machine.deps.disk
    const sql = `SELECT id, unlimited, granted, used - refunded + returned AS spent, max(used, reserved) - used AS ahead
      FROM account WHERE max(used, reserved) - refunded + returned > granted`
    const rows = accountsFolded(database, () => query(database, sql).all()) as {
      id: string
      unlimited: bigint
      granted: bigint
      spent: bigint
      ahead: bigint
    }[]
    const owner = ownerOf(database)
    const overBefore = this.#over.get(machine.name)
    const over = new Map<string, bigint>()
    const overOfLine = new Books()
    for (const { id, unlimited: isUnlimited, granted, spent, ahead } of rows) {
      const cap = this.#shared.overspendCap(lineOf(id))
      const name = `${owner.deviceId} ${owner.epoch} ${id}`
      const unlimited = this.#shared.spentUnlimited.get(name)
      if (isUnlimited === 1n || unlimited > 0n) {
        if (spent > granted + unlimited + cap) {
          throw new Violation(
            'I5',
            `${machine.name} has spent ${spent} of ${id}, of ${granted} granted and ${unlimited} while nothing limited it`,
          )
        }
        // Once it is limited again, the rest is overspend.
        if (isUnlimited === 1n || spent <= granted) continue
      }
      const above = spent - granted
      const sum = unlimited === 0n && id.startsWith('line/') ? overOfLine.add(lineOf(id), above) : above
      if (unlimited === 0n && (ahead > 0n || sum > cap)) {
        throw new Violation(
          'I5',
          `${machine.name} has spent ${spent} of ${id} and ${ahead} ahead, of ${granted} granted and ${cap} overspent`,
        )
      }
      const overspent = above < cap ? above : cap
      over.set(name, overspent)
      const more = overspent - (overBefore?.get(name) ?? 0n)
      // The pool must cover it.
      if (isNew && more > 0n) this.#shared.exposure.add(id, more)
    }
    this.#over.set(machine.name, over)
  }

  readonly #over = new Map<string, ReadonlyMap<string, bigint>>()

  /** The owner wipes the disk: undelivered entries are lost, and the tokens stay reserved. */
  wiped(machine: Machine): void {
    this.#shared.lost(machine, () => true)
    this.#forgetSucceeded(machine)
    this.#entries.forgetCuts(machine)
    this.#entries.sessions.forget(machine.name)
    this.#shared.grants.set(machine.name, null)
    this.#shared.forgetful.add(machine.name)
  }

  duplicated(machine: Machine, from: Machine): void {
    const { database } = machine.deps.disk
    const { deviceId, epoch } = ownerOf(database)
    this.#shared.clocks.copied(from.name, machine.name)
    if (deviceId === null) {
      // Both have the same key: enrolling with either is the same device.
      this.#nameless.add(machine).add(from)
      return
    }
    this.#shared.suspects.add(deviceId)
    const rows = accountsFolded(database, () => query(database, 'SELECT * FROM account').all()) as DeviceAccountRow[]
    for (const row of rows as (DeviceAccountRow & { id: string })[]) {
      const available = row.granted - row.returned - row.used + row.refunded
      if (available > 0n) this.#shared.expose(deviceId, epoch, row.id, available)
    }
    this.#shared.copies.set(deviceId, (this.#shared.copies.get(deviceId) ?? 1n) + 1n)
    this.#checkOver(machine, false)
    this.#shared.grants.set(machine.name, null)
    this.#shared.forgetful.add(machine.name)
    if (machine !== from) return
    this.#entries.forgetCuts(machine)
    this.#entries.sessions.forget(machine.name)
    const ids = new Set(entriesIn(database).map(({ body }) => (JSON.parse(body) as EntryText).correlationId))
    this.#shared.lost(machine, (entry) => !ids.has(entry.correlationId))
  }

  /** Machines copied before enrollment. */
  readonly #nameless = new Set<Machine>()

  nameSuspects(): void {
    for (const { deps } of this.#nameless) {
      const { deviceId } = ownerOf(deps.disk.database)
      if (deviceId !== null) this.#shared.suspects.add(deviceId)
    }
  }

  damaged(machine: Machine, damage: Damage): void {
    const { database } = machine.deps.disk
    this.#forgetSucceeded(machine)
    // The cloud settles the tokens of the damaged ledger, its reservations included.
    this.#entries.forgetCuts(machine)
    this.#entries.sessions.forget(machine.name)
    for (const { deviceId, machine: name } of this.#shared.entries.values()) {
      if (name === machine.name) this.#shared.damaged.add(deviceId)
    }
    const kept = new Set(entriesIn(database).map(({ body }) => (JSON.parse(body) as EntryText).correlationId))
    for (const entry of this.#shared.entries.values()) {
      if (entry.machine !== machine.name || !entry.volatile) continue
      this.#shared.look('I3')
      if (kept.has(entry.correlationId)) {
        entry.volatile = false
        this.#entries.checkRecorded(entry)
      } else if (damage === 'COUNTERS' && entry.acknowledged) {
        throw new Violation('I3', `entry ${entry.n} of ${machine.name} was in the volatile log, and is not salvaged`)
      }
    }
    this.#shared.lost(machine, ({ correlationId }) => !kept.has(correlationId))
    this.#shared.grants.set(machine.name, null)
    this.#shared.forgetful.add(machine.name)
  }

  discarded(machine: Machine): void {
    this.#shared.lost(machine, () => true)
    this.#entries.forgetCuts(machine)
  }

  compareGrants(database: Sqlite.Database, machine: Machine): void {
    const journal = machine.deps.disk.database
    const { deviceId, epoch } = ownerOf(journal)
    // A device that is not served cannot sync.
    if (deviceId === null || !this.#shared.isServed(deviceId)) return
    const here = new Map(
      (query(journal, 'SELECT id, granted FROM account').all() as { id: string; granted: bigint }[]).map(
        ({ id, granted }) => [id, granted],
      ),
    )
    const there = query(database, 'SELECT account, granted FROM device_accounts WHERE device_id = ? AND epoch = ?').all(
      deviceId,
      epoch,
    ) as { account: string; granted: bigint }[]
    for (const { account, granted } of there) {
      this.#shared.look('LIVENESS')
      const known = here.get(account) ?? 0n
      if (known !== granted) {
        throw new Violation(
          'LIVENESS',
          `${granted} of ${account} were granted to ${machine.name}, which knows of ${known}`,
        )
      }
    }
  }
}
