/** Each entry is recorded once, in the volatile log or on disk, and acknowledged entries persist. */
import type Sqlite from 'better-sqlite3'
import type { Machine } from '../device/machine.ts'
import { Books } from './books.ts'
import type { SharedState } from './shared-state.ts'
import type { PoolAudit } from './pools.ts'
import type { PublishedAudit } from './published.ts'
import { query } from './query.ts'
import { type DeviceAccountRow, type Entry, type EntryText, lineOf, ownerOf } from './records.ts'
import type { Durability } from '../../src/agent/ledger/commits.ts'
import type { TimeAudit } from './time.ts'
import { Violation } from './violation.ts'

/** Time before a power cut that a grant's age may omit, ms. */
const HIDDEN_BY_A_CUT_MS = 90_000

/** What a response says. */
export interface Told {
  readonly correlationId: string
  /** Charged by it, micro-tokens. */
  readonly tokens: bigint
  readonly durability: Durability
}

export class EntryAudit {
  readonly #shared: SharedState
  readonly #pools: PoolAudit
  readonly #time: TimeAudit
  readonly #published: PublishedAudit

  constructor(shared: SharedState, pools: PoolAudit, time: TimeAudit, published: PublishedAudit) {
    this.#shared = shared
    this.#pools = pools
    this.#time = time
    this.#published = published
  }

  /** An application received a response. @param key of the request, if it is numbered */
  acknowledged(key: string | null, { correlationId, tokens, durability }: Told, machine: Machine): void {
    this.#shared.look('I3')
    if (durability === 'later') {
      if (tokens !== 0n) throw new Violation('I3', `${machine.name} has acknowledged ${tokens} before a commit`)
      return
    }
    const entry = this.#shared.entries.get(correlationId)
    if (entry === undefined) {
      throw new Violation('I3', `${machine.name} has acknowledged ${tokens} that are on no disk (${correlationId})`)
    }
    if (entry.tokens !== tokens) {
      throw new Violation('I3', `${machine.name} has acknowledged ${tokens}, but recorded ${entry.tokens}`)
    }
    entry.acknowledged = true
    if (key === null) return
    const charge = this.#shared.charges.get(key)
    if (tokens > 0n && charge?.correlationId !== correlationId && charge?.machine === machine.name) {
      throw new Violation('I4', `${key} was charged as ${charge.correlationId} and acknowledged as ${correlationId}`)
    }
  }

  /** Entries are in a device's volatile log and may be answered. @param twin the cloud's database */
  logged(machine: Machine, bodies: readonly string[], twin: Sqlite.Database): void {
    const { database } = machine.deps.disk
    const { deviceId, epoch } = ownerOf(database)
    if (deviceId === null) throw new Error('an entry belongs to a device')
    for (const text of bodies) this.#enter(machine, JSON.parse(text) as EntryText, deviceId, epoch, true, twin)
  }

  appended(machine: Machine, bodies: readonly string[], twin: Sqlite.Database): void {
    const { deviceId, epoch } = ownerOf(machine.deps.disk.database)
    if (deviceId === null) throw new Error('an entry belongs to a device')
    for (const text of bodies) {
      const body = JSON.parse(text) as EntryText
      const known = this.#shared.entries.get(body.correlationId)
      if (known === undefined) this.#enter(machine, body, deviceId, epoch, false, twin)
      else known.volatile = false
      if (body.kind === 'burn') this.#burned(machine, body, deviceId, epoch)
    }
  }

  #enter(
    machine: Machine,
    body: EntryText,
    deviceId: string,
    epoch: number,
    volatile: boolean,
    twin: Sqlite.Database,
  ): void {
    const { correlationId, kind, n, items } = body
    const sign = kind === 'refund' ? -1n : 1n
    const postings = body.postings.map(({ account, amount }) => ({ account, amount: sign * BigInt(amount) }))
    const ofLines = postings.filter(({ account }) => account.startsWith('line/'))
    const burn = kind === 'burn'
    const tokens = burn
      ? ofLines.reduce((sum, { amount }) => sum + amount, 0n)
      : sign * items.reduce((sum, { total }) => sum + BigInt(total), 0n)
    if (!burn) this.#time.checkTime(machine, body)
    if (body.engine !== machine.engine.version) {
      const by = `${machine.name} has engine ${machine.engine.version}`
      throw new Violation('ENGINE', `${by}, and records that engine ${body.engine} decided ${correlationId}`)
    }
    this.#shared.entries.set(correlationId, {
      correlationId,
      machine: machine.name,
      deviceId,
      epoch,
      n,
      tokens,
      lines: burn ? ofLines.length : items.reduce((sum, { parts }) => sum + Math.max(1, parts.length), 0),
      billedTokens: 0n,
      billedLines: 0,
      acknowledged: false,
      volatile,
      postings,
      isForgotten: false,
      mayBeLost: this.#shared.isShutOut(deviceId),
    })
    const isUnlimited = (account: string): boolean =>
      burn
        ? this.#shared.everUnlimited.has(account)
        : account.startsWith('line/') &&
          this.#published.isUnlimited(body.instanceId, body.policyRevision, lineOf(account))
    for (const { account, amount } of postings) {
      this.#shared.spent.add(`${deviceId} ${epoch} ${account}`, amount)
      // The disk learns of a refund later, and the cloud later still.
      if (amount > 0n && isUnlimited(account)) {
        this.#shared.spentUnlimited.add(account, amount)
        this.#shared.spentUnlimited.add(`${deviceId} ${epoch} ${account}`, amount)
      }
      const sql = 'SELECT * FROM device_accounts WHERE device_id = ? AND epoch = ? AND account = ?'
      const row = query(twin, sql).get(deviceId, epoch, account) as DeviceAccountRow | undefined
      if (row !== undefined) this.#pools.checkSpent(row)
      else if (
        !this.#shared.everUnlimited.has(account) &&
        this.#shared.overspendCap(lineOf(account)) === 0n &&
        this.#shared.exposure.get(`${deviceId} ${epoch} ${account}`) === 0n &&
        !this.#shared.heldBefore.has(`${deviceId} ${epoch} ${account}`)
      )
        throw new Violation('I2', `${amount} of ${account} were spent without a grant`)
    }
    const key = items[0]?.metaData?.key
    if (key !== undefined && tokens > 0n) this.#chargeOnce(machine, key, correlationId)
  }

  /** A burn entry covers at least what a power cut removed from the volatile log. */
  #burned(machine: Machine, { postings }: EntryText, deviceId: string, epoch: number): void {
    this.#shared.look('I3')
    for (const { account, amount } of postings) {
      const name = `${machine.name} ${deviceId} ${epoch} ${account}`
      const lost = this.#takenByCuts.get(name)
      if (BigInt(amount) < lost) {
        throw new Violation(
          'I3',
          `${machine.name} has burned ${amount} of ${account}, but has lost ${lost} to power cuts`,
        )
      }
      this.#takenByCuts.add(name, -lost)
    }
  }

  /** A request of an application session is charged once, however often it is sent. */
  #chargeOnce(machine: Machine, key: string, correlationId: string): void {
    this.#shared.look('I4')
    const before = this.#shared.charges.get(key)
    this.#shared.charges.set(key, { correlationId, machine: machine.name })
    if (before === undefined || this.#shared.forgetful.has(machine.name)) return
    throw new Violation('I4', `${key} of ${machine.name} was charged twice: ${before.correlationId}, ${correlationId}`)
  }

  powerCut(machine: Machine): void {
    const grant = this.#shared.grants.get(machine.name)
    if (grant) grant.hiddenMs += HIDDEN_BY_A_CUT_MS + machine.sleptWithin(0)
    for (const entry of this.#volatileOf(machine)) {
      // Unanswered entries may vanish; answered ones need a burn that covers them.
      for (const { account, amount } of entry.acknowledged ? entry.postings : []) {
        this.#takenByCuts.add(`${machine.name} ${entry.deviceId} ${entry.epoch} ${account}`, amount)
      }
      this.#forget(entry)
    }
  }

  /** Entries from this number on left a device's volatile log, and must not have been answered. */
  retracted(machine: Machine, from: number): void {
    this.#shared.look('I3')
    for (const entry of this.#volatileOf(machine)) {
      if (entry.n < from) continue
      if (entry.acknowledged) {
        throw new Violation('I3', `entry ${entry.n} of ${machine.name} is taken back with ${entry.tokens} acknowledged`)
      }
      this.#forget(entry)
    }
  }

  #forget({ correlationId, deviceId, epoch, postings }: Entry): void {
    for (const { account, amount } of postings) this.#shared.spent.add(`${deviceId} ${epoch} ${account}`, -amount)
    this.#shared.entries.delete(correlationId)
    const key = [...this.#shared.charges].find(([, charge]) => charge.correlationId === correlationId)?.[0]
    if (key !== undefined) this.#shared.charges.delete(key)
  }

  #volatileOf(machine: Machine): readonly Entry[] {
    return [...this.#shared.entries.values()].filter((entry) => entry.volatile && entry.machine === machine.name)
  }

  /** Lost in power cuts and not yet burned, by machine, device, epoch and account. */
  readonly #takenByCuts = new Books()

  forgetCuts(machine: Machine): void {
    for (const [name, amount] of this.#takenByCuts.entries()) {
      if (name.startsWith(`${machine.name} `)) this.#takenByCuts.add(name, -amount)
    }
  }

  checkAtRest(): void {
    for (const [name, amount] of this.#takenByCuts.entries()) {
      if (amount > 0n && !this.#shared.isShutOut(name.split(' ')[1] ?? ''))
        throw new Violation('I3', `${amount} of ${name} were lost to a power cut`)
    }
  }
}
