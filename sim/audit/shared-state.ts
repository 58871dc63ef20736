/** State shared by the auditor's checks: its books, and the actions of owners and administrators. */
import { Books } from './books.ts'
import { Clocks } from './clocks.ts'
import { type Caps, type DeviceAccountRow, type Entry, type KnownGrant, nameOf } from './records.ts'
import type { Invariant } from './violation.ts'

/** By name. */
export type ArchivedFiles = Map<string, Buffer>

export class SharedState {
  readonly now: () => number
  readonly clocks: Clocks
  readonly looks = new Map<Invariant, number>()
  readonly entries = new Map<string, Entry>()
  /** Charges by application session and request number. */
  readonly charges = new Map<string, { readonly correlationId: string; readonly machine: string }>()
  readonly spent = new Books()
  /** Archives of usage, by their place. */
  readonly archives = new Map<string, ArchivedFiles>()
  /** Spending above the grants that copies, restores and forgotten grants permit. */
  readonly exposure = new Books()
  readonly caps = new Map<string, Caps>()
  /** The auditor's own cap in force per account. */
  readonly inForce = new Map<string, bigint>()
  readonly everUnlimited = new Set<string>()
  /** Spent while unlimited, before refunds, by account, and by device, epoch and account. */
  readonly spentUnlimited = new Books()
  /** Highest ever allowed, by line item, micro-tokens. */
  readonly overspendCaps = new Map<string, bigint>()
  readonly grants = new Map<string, KnownGrant | null>()
  readonly suspects = new Set<string>()
  /** Copies of a device; each may overspend. */
  readonly copies = new Map<string, bigint>()
  /** Machines that lost their idempotency cache, or had it restored. */
  readonly forgetful = new Set<string>()
  readonly wereFull = new Set<string>()
  readonly damaged = new Set<string>()
  /** Epochs that a device with all entries has left and delivers. */
  readonly succeeded = new Set<string>()
  /** Epochs with entries that a restored cloud has lost, and that their devices had left by then. */
  readonly lostByCloud = new Set<string>()
  readonly revoked = new Set<string>()
  /** With the time. */
  readonly terminated = new Map<string, number>()
  /** Devices whose key a restored cloud does not know and that cannot prove its predecessor. */
  readonly strangers = new Set<string>()
  wasRestored = false
  /** Devices keep delivered entries for less than a run. */
  isRetentionShort = false
  /** Each epoch's account at the last restore, whether or not the backup knows it, by name. */
  readonly heldBefore = new Map<string, DeviceAccountRow>()
  /** Cloud sales forgotten in every restore since, by account. */
  readonly soldBefore = new Books()

  /** The use of the last import counts as what a restored cloud has forgotten, if it has forgotten any. */
  importsRepeat = false

  constructor(now: () => number) {
    this.now = now
    this.clocks = new Clocks(now)
  }

  isShutOut(deviceId: string): boolean {
    return this.revoked.has(deviceId) || this.strangers.has(deviceId)
  }

  isServed(deviceId: string): boolean {
    return !this.isShutOut(deviceId) && !this.terminated.has(deviceId)
  }

  overspendCap(lineItemId: string): bigint {
    return this.overspendCaps.get(lineItemId) ?? 0n
  }

  expose(deviceId: string, epoch: number, account: string, amount: bigint): void {
    this.exposure.add(`${deviceId} ${epoch} ${account}`, amount)
    this.exposure.add(account, amount)
  }

  /** The row as it would be without a restore. */
  inTruth(row: DeviceAccountRow): DeviceAccountRow {
    const before = this.heldBefore.get(nameOf(row))
    if (before === undefined) return row
    // Usage is delivered again entry by entry: charges before their refunds.
    const more = row.used + row.branch_used - before.used - before.branch_used
    const spent = more > 0n || (more === 0n && row.refunded > before.refunded) ? row : before
    return {
      ...row,
      used: spent.used,
      refunded: spent.refunded,
      branch_used: spent.branch_used,
      overspend: spent.overspend,
      branch_overspend: spent.branch_overspend,
      granted: most(row.granted, before.granted),
      returned: most(row.returned, before.returned),
      released: most(row.released, before.released),
    }
  }

  lost(machine: { readonly name: string }, which: (entry: Entry) => boolean): void {
    for (const entry of this.entries.values()) {
      if (entry.machine === machine.name && which(entry)) entry.mayBeLost = true
    }
  }

  look(invariant: Invariant): void {
    this.looks.set(invariant, (this.looks.get(invariant) ?? 0) + 1)
  }
}

function most(one: bigint, other: bigint): bigint {
  return one > other ? one : other
}
