/** What the checks of the auditor share: the books that it keeps itself, and what it hears of the owner's and the administrator's doings. */
import { Books } from './books.ts'
import { type Caps, type DeviceAccountRow, type Entry, type KnownGrant, nameOf } from './records.ts'
import type { Invariant } from './violation.ts'

export class SharedState {
  readonly now: () => number
  /** How often each promise was looked at. */
  readonly looks = new Map<Invariant, number>()
  readonly entries = new Map<string, Entry>()
  /** By application session and number: the charge that it led to. */
  readonly charges = new Map<string, { readonly correlationId: string; readonly machine: string }>()
  /** Spent by device, epoch and account, all writers together. */
  readonly spent = new Books()
  /** How much more than granted can be spent, because of copies, restores and what the twin has forgotten. */
  readonly exposure = new Books()
  readonly caps = new Map<string, Caps>()
  /** The cap in force of each account, by the auditor's own rule. */
  readonly inForce = new Map<string, bigint>()
  readonly everUnlimited = new Set<string>()
  /** Spent while nothing limited it, refunds not subtracted, by account, and by device, epoch and account. */
  readonly spentUnlimited = new Books()
  /** The highest that was ever allowed, by line item, micro-tokens. */
  readonly overspendCaps = new Map<string, bigint>()
  readonly grants = new Map<string, KnownGrant | null>()
  /** Devices whose owner has copied or restored them. */
  readonly suspects = new Set<string>()
  /** How many hands a device is in, each of which may have overspend of its own. */
  readonly copies = new Map<string, bigint>()
  /** Machines whose memory of an application's last answers was lost or put back. */
  readonly forgetful = new Set<string>()
  /** Machines that cannot prove any more which key theirs has replaced: a twin from before that does not know them. */
  readonly unproven = new Set<string>()
  readonly wereFull = new Set<string>()
  /** Devices whose ledger was damaged. */
  readonly damaged = new Set<string>()
  /** Epochs that a device with all its entries has ended by itself or by order, and delivers. */
  readonly succeeded = new Set<string>()
  readonly revoked = new Set<string>()
  readonly terminated = new Set<string>()
  /** Devices whose key the twin that was put back does not know, and that cannot prove which one theirs has replaced. */
  readonly strangers = new Set<string>()
  /** The twin was put back to a backup. */
  wasRestored = false
  /** Devices learn the time from a twin whose clock was wrong. */
  twinClockWrong = false
  /** Devices keep what they have delivered for less than a run. */
  isRetentionShort = false
  /** What each epoch held when the twin was last put back, whatever the backup knows of it, by name. */
  readonly heldBefore = new Map<string, DeviceAccountRow>()
  /** What the twin has sold itself and every backup since has forgotten, by account. */
  readonly soldBefore = new Books()

  constructor(now: () => number) {
    this.now = now
  }

  /** The twin takes nothing from it any more. */
  isShutOut(deviceId: string): boolean {
    return this.revoked.has(deviceId) || this.strangers.has(deviceId)
  }

  /** The twin may grant it something. */
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

  /** What the row would say if the twin had never been put back. */
  inTruth(row: DeviceAccountRow): DeviceAccountRow {
    const before = this.heldBefore.get(nameOf(row))
    if (before === undefined) return row
    // Use comes again entry by entry: a charge is known before its refund.
    const { used, refunded, branch_used } = row.used + row.branch_used > before.used + before.branch_used ? row : before
    return {
      ...row,
      used,
      refunded,
      branch_used,
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
