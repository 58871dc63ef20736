/** The device's time interval contains the true time, and no grant is spent after its expiry. */
import type { JournalOperations } from '../../src/agent/ledger/journal.ts'
import type { Machine } from '../device/machine.ts'
import type { SharedState } from './shared-state.ts'
import { type EntryText, lineOf, ownerOf } from './records.ts'
import type { SettledAudit } from './settled.ts'
import { Violation } from './violation.ts'

/** Delay from decision to written entry while the board is awake, ms, unless its disk takes longer. */
const WRITE_MS = 10_000

export class TimeAudit {
  readonly #shared: SharedState
  readonly #settled: SettledAudit

  constructor(shared: SharedState, settled: SettledAudit) {
    this.#shared = shared
    this.#settled = settled
  }

  checkTime(machine: Machine, { kind, earliest, latest, postings }: EntryText): void {
    this.#shared.look('TIME')
    const now = this.#shared.now()
    const writeMs = Math.max(WRITE_MS, machine.waitsForDiskMs)
    const slept = machine.sleptWithin(writeMs)
    const wrongByMs = this.#shared.clocks.wrongByMs(machine.name, writeMs + slept)
    if (earliest > now + wrongByMs) throw new Violation('TIME', `${machine.name} takes ${earliest} for past at ${now}`)
    if (latest !== null && latest < now - writeMs - slept - wrongByMs) {
      throw new Violation('TIME', `${machine.name} takes ${latest} for the latest possible time at ${now}`)
    }
    const grant = this.#shared.grants.get(machine.name)
    // Returns are not spending, and essential items outlive the grant.
    const spends = postings.some(({ account }) => this.#shared.overspendCap(lineOf(account)) === 0n)
    if (!grant || kind === 'refund' || !spends) return
    const age = machine.onFor - slept - grant.takenAtOn
    const most = grant.lifetimeMs * 1.001 + writeMs + grant.hiddenMs
    if (age <= most) return
    throw new Violation('TIME', `${machine.name} spends by a grant of ${grant.lifetimeMs} ms that is ${age} ms old`)
  }

  acknowledgedBy(machine: Machine, ...[seq, grant]: Parameters<JournalOperations['acknowledge']>): void {
    const { database } = machine.deps.disk
    const { deviceId, epoch } = ownerOf(database)
    if (deviceId !== null) this.#settled.heard(deviceId, epoch, seq)
    if (deviceId === null || grant === null) return
    this.#shared.grants.set(machine.name, { takenAtOn: machine.onFor, lifetimeMs: grant.lifetimeMs, hiddenMs: 0 })
    const name = `${deviceId} ${epoch} ${seq}`
    const again = this.#answered.has(name)
    this.#answered.add(name)
    if (!again || !this.#shared.suspects.has(deviceId)) return
    // Two copies may receive the same response: both have its grant.
    for (const { account, granted, unlimited } of grant.accounts) {
      if (!unlimited) this.#shared.expose(deviceId, epoch, account, granted)
    }
  }

  readonly #answered = new Set<string>()
}
