/** The device's interval of time holds the true time, and no grant is spent beyond its life. */
import type { JournalCall } from '../../src/agent/adapters/sqlite/journal-calls.ts'
import type { Machine } from '../device/machine.ts'
import type { Facts } from './facts.ts'
import { type EntryText, lineOf, ownerOf } from './records.ts'
import type { SettledAudit } from './settled.ts'
import { Violation } from './violation.ts'

/** How late an entry may be written after it was decided, ms, while its board is awake. */
const WRITE_MS = 10_000

export class TimeAudit {
  readonly #facts: Facts
  readonly #settled: SettledAudit

  constructor(facts: Facts, settled: SettledAudit) {
    this.#facts = facts
    this.#settled = settled
  }

  checkTime(machine: Machine, { kind, earliest, latest, postings }: EntryText): void {
    this.#facts.look('TIME')
    const now = this.#facts.now()
    const { twinClockWrong } = this.#facts
    if (earliest > now && !twinClockWrong)
      throw new Violation('TIME', `${machine.name} takes ${earliest} for past at ${now}`)
    const slept = machine.sleptWithin(WRITE_MS)
    if (latest !== null && !twinClockWrong && latest < now - WRITE_MS - slept) {
      throw new Violation('TIME', `${machine.name} takes ${latest} for the latest possible time at ${now}`)
    }
    const grant = this.#facts.grants.get(machine.name)
    // What goes back is not spent, and essential items outlive the grant.
    const spends = postings.some(({ account }) => this.#facts.arrearsCap(lineOf(account)) === 0n)
    if (!grant || kind === 'refund' || !spends) return
    const age = machine.onFor - slept - grant.takenAtOn
    const most = grant.lifetimeMs * 1.001 + WRITE_MS + grant.hiddenMs
    if (age <= most) return
    throw new Violation('TIME', `${machine.name} spends by a grant of ${grant.lifetimeMs} ms that is ${age} ms old`)
  }

  acknowledgedBy(machine: Machine, call: Extract<JournalCall, { call: 'acknowledge' }>): void {
    const { seq, grant } = call
    const { database } = machine.parts.disk
    const { deviceId, incarnation } = ownerOf(database)
    if (deviceId !== null) this.#settled.heard(deviceId, incarnation)
    if (deviceId === null || grant === null) return
    this.#facts.grants.set(machine.name, { takenAtOn: machine.onFor, lifetimeMs: grant.lifetimeMs, hiddenMs: 0 })
    const name = `${deviceId} ${incarnation} ${seq}`
    const again = this.#answered.has(name)
    this.#answered.add(name)
    if (!again || !this.#facts.suspects.has(deviceId)) return
    // One answer that two copies have received: both hold what it granted.
    for (const { account, granted, unlimited } of grant.accounts) {
      if (!unlimited) this.#facts.expose(deviceId, incarnation, account, granted)
    }
  }

  readonly #answered = new Set<string>()
}
