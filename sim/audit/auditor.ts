/**
 * The auditor: it keeps its own books of what applications were told and of what was written on the disks, reads the rows
 * of both databases as they are, and compares the two by arithmetic of its own. It uses nothing of the product that adds
 * up, grants or bills; what it learns of an owner's doings (copies, restores, wipes) it hears from whoever does them.
 */
import Sqlite from 'better-sqlite3'
import type { JournalAnswer, JournalCall } from '../../src/agent/adapters/sqlite/journal-calls.ts'
import type { Machine } from '../device/machine.ts'
import { Books } from './books.ts'
import { changesOf, query } from './query.ts'
import { type Invariant, Violation } from './violation.ts'

/** One entry that is on a disk, or was. */
interface Entry {
  readonly correlationId: string
  readonly machine: string
  readonly deviceId: string
  readonly incarnation: number
  readonly n: number
  readonly tokens: bigint
  /** Lines of the bill that it makes. */
  readonly lines: number
  billedTokens: bigint
  billedLines: number
  acknowledged: boolean
  /** It stands in the volatile log and not on the disk: a power cut may take it, and burns at least as much for it. */
  volatile: boolean
  readonly postings: readonly { readonly account: string; readonly amount: bigint }[]
  /** The twin has billed it, and has forgotten that. */
  isForgotten: boolean
  /** Its owner has lost it, or taken from the device the means to deliver it. */
  mayBeLost: boolean
}

interface Caps {
  /** Micro-tokens; null: metered only. */
  line: bigint | null
  /** Every cap that it ever had: periods that are over keep theirs. */
  readonly lineHistory: (bigint | null)[]
  allocations: ReadonlyMap<string, bigint>
  limit: bigint | null
}

/** What the auditor knows of the grant that a device holds. */
interface HeldGrant {
  readonly takenAtOn: number
  readonly lifetimeMs: number
  /** Time that the device was on and cannot know of: before a power cut up to a minute, and the sleep that it ended, ms. */
  hiddenMs: number
}

interface AccountRow {
  id: string
  charged: bigint
  granted_out: bigint
  billed_by_devices: bigint
  cap_target: bigint | null
  cap_in_force: bigint | null
}

interface DeviceAccountRow {
  device_id: string
  incarnation: bigint
  account: string
  granted: bigint
  used: bigint
  refunded: bigint
  returned: bigint
  branch_used: bigint
  presumed: bigint
  released: bigint
  unlimited: bigint
}

/** What the auditor knows of the rules at one moment. */
export interface RulesKnown {
  readonly caps: ReadonlyMap<string, Caps>
  readonly inForce: ReadonlyMap<string, bigint>
  readonly revoked: ReadonlySet<string>
  readonly terminated: ReadonlySet<string>
}

interface UsageRow {
  seq: bigint
  correlation_id: string
  activation_id: string | null
  tokens: bigint
  source: string
  operation: string
  device_id: string | null
  incarnation: bigint | null
}

interface EntryText {
  correlationId: string
  n: number
  kind: string
  at: number
  earliest: number
  latest: number | null
  items: { total: string; parts: unknown[]; metaData?: { key?: string } }[]
  postings: { account: string; amount: string }[]
}

/** Looks at the twin that only compare sums, between two whole ones. */
const LOOKS_SKIPPED_MAX = 20

/** How late an entry may be written after it was decided, ms, while its board is awake. */
const WRITE_MS = 10_000

/** Time that a power cut may hide from the age of a grant, ms. */
const HIDDEN_BY_A_CUT_MS = 90_000

export class Auditor {
  /** How often each promise was looked at. */
  readonly looks = new Map<Invariant, number>()
  readonly #now: () => number
  readonly #entries = new Map<string, Entry>()
  /** By application session and number: the charge that it led to. */
  readonly #charges = new Map<string, { readonly correlationId: string; readonly machine: string }>()
  /** Spent by device, incarnation and account, all writers together. */
  readonly #spent = new Books()
  /** How much more than granted can be spent, because of copies, restores and what the twin has forgotten. */
  readonly #exposure = new Books()
  #caps = new Map<string, Caps>()
  /** The cap in force of each account, by the auditor's own rule. */
  readonly #inForce = new Map<string, bigint>()
  readonly #everUnlimited = new Set<string>()
  /** Devices whose owner has copied or restored them. */
  readonly #suspects = new Set<string>()
  readonly #answered = new Set<string>()
  readonly #grants = new Map<string, HeldGrant | null>()
  /** Machines whose memory of an application's last answers was lost or put back. */
  readonly #forgetful = new Set<string>()
  readonly #direct = new Map<string, { readonly tokens: bigint; billed: bigint }>()
  #usageSeen = 0n
  /** What the twin had written at the last look. */
  #changes: bigint | null = null
  #fingerprint = ''
  #skipped = 0
  readonly #billedByLine = new Books()

  constructor(now: () => number) {
    this.#now = now
  }

  /** The administrator has changed what a line item may give. */
  setCaps(lineItemId: string, caps: Omit<Caps, 'lineHistory'>): void {
    const history = this.#caps.get(lineItemId)?.lineHistory ?? []
    this.#caps.set(lineItemId, { ...caps, lineHistory: [...history, caps.line] })
  }

  capsOf(lineItemId: string): Omit<Caps, 'lineHistory'> | undefined {
    return this.#caps.get(lineItemId)
  }

  /** What each device may spend above its grants while it cannot ask, micro-tokens: the highest that was ever allowed counts. */
  setArrearsCap(lineItemId: string, cap: bigint): void {
    if (cap > this.#arrearsCap(lineItemId)) this.#arrearsCaps.set(lineItemId, cap)
  }

  readonly #arrearsCaps = new Map<string, bigint>()

  #arrearsCap(lineItemId: string): bigint {
    return this.#arrearsCaps.get(lineItemId) ?? 0n
  }

  /** What the service of this device may owe, it must still deliver; it earns nothing more. */
  terminated(deviceId: string): void {
    this.#terminated.add(deviceId)
  }

  isTerminated(deviceId: string): boolean {
    return this.#terminated.has(deviceId)
  }

  readonly #terminated = new Set<string>()

  rulesKnown(): RulesKnown {
    return {
      caps: new Map(this.#caps),
      inForce: new Map(this.#inForce),
      revoked: new Set(this.#revoked),
      terminated: new Set(this.#terminated),
    }
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
    this.#wasRestored = true
    this.#caps = new Map(rules.caps)
    replace(this.#inForce, rules.inForce)
    for (const deviceId of this.#revoked) if (!rules.revoked.has(deviceId)) this.#revoked.delete(deviceId)
    for (const deviceId of this.#terminated) if (!rules.terminated.has(deviceId)) this.#terminated.delete(deviceId)
    this.#exposeForgotten(before, database, told)
    for (const entry of this.#entries.values()) {
      entry.isForgotten ||= entry.billedLines > 0
      entry.billedTokens = 0n
      entry.billedLines = 0
    }
    this.#billedByLine.clear()
    this.#presumptions.clear()
    this.#usageSeen = 0n
    this.#changes = null
    for (const direct of this.#direct.values()) direct.billed = 0n
    this.#early.clear()
    this.#readUsage(database)
    for (const [id, { tokens, billed }] of this.#direct) if (tokens !== billed) this.#direct.delete(id)
    const current = new Set(
      machines
        .map(({ parts }) => ownerOf(parts.disk.database))
        .map((owner) => `${owner.deviceId} ${owner.incarnation}`),
    )
    for (const entry of this.#entries.values()) {
      const isBilled = entry.billedTokens === entry.tokens && entry.billedLines === entry.lines
      entry.isForgotten &&= !isBilled
      if (!isBilled && !current.has(`${entry.deviceId} ${entry.incarnation}`)) entry.mayBeLost = true
    }
  }

  /** Granted, but not known to a restored twin until all who have drawn on the account before have been heard of. */
  readonly #forgotten = new Books()

  #exposeForgotten(before: Buffer, database: Sqlite.Database, told: boolean): void {
    const gone = new Sqlite(before)
    gone.defaultSafeIntegers(true)
    try {
      const rows = gone.prepare('SELECT * FROM device_accounts').all() as DeviceAccountRow[]
      // Restored twice, the twin that is gone may itself not have learned yet what an earlier one had granted.
      for (const row of rows) {
        const before = this.#grantedBefore.get(nameOf(row)) ?? 0n
        this.#grantedBefore.set(nameOf(row), row.granted > before ? row.granted : before)
      }
      this.#restoredAt = this.#now()
      this.#waited.clear()
      const kept = new Map(
        (query(database, 'SELECT * FROM device_accounts').all() as DeviceAccountRow[]).map((row) => [nameOf(row), row]),
      )
      for (const row of rows) {
        const known = kept.get(nameOf(row))
        if (told && known !== undefined) {
          const owners = this.#waited.get(row.account) ?? new Set()
          this.#waited.set(row.account, owners.add(`${row.device_id} ${row.incarnation}`))
        }
        const forgotten = outOf(row) - (known === undefined ? 0n : outOf(known))
        if (forgotten > 0n) this.#exposure.add(nameOf(row), forgotten)
        // Who has drawn on the account before is waited for; grants are known again before returns are.
        const granted = row.granted - (known?.granted ?? 0n)
        if (granted > 0n) {
          const waits = told ? this.#forgotten : this.#exposure
          waits.add(nameOf(row), granted)
          ;(known === undefined ? this.#exposure : waits).add(row.account, granted)
        }
      }
    } finally {
      gone.close()
    }
  }

  isRevoked(deviceId: string): boolean {
    return this.#revoked.has(deviceId)
  }

  /** A call of a device's journal had its effect. @param twin its database */
  taken(machine: Machine, call: JournalCall, answer: JournalAnswer, twin: Sqlite.Database): void {
    if (!answer.ok) return
    switch (call.call) {
      case 'append':
        this.#appended(machine, call.batch.bodies, twin)
        break
      case 'acknowledge':
        this.#acknowledgedBy(machine, call)
        break
      case 'attach':
        this.#grants.set(machine.name, null)
        // What an incarnation had delivered before it was closed nobody asks for once the next one has begun.
        for (const entry of this.#entries.values()) {
          if (entry.machine === machine.name && entry.isForgotten) entry.mayBeLost = true
        }
        break
      case 'storeSeal':
        break
      default:
        return
    }
    this.#look('I5')
    this.#checkOver(machine, true)
  }

  /** What a device has spent above its grants: of essential items, as far as they allow it, and never by a block. */
  #checkOver(machine: Machine, isNew: boolean): void {
    const { database } = machine.parts.disk
    const rows = query(
      database,
      `SELECT id, granted, used - refunded + returned AS spent, max(used, reserved) - used AS ahead FROM account
           WHERE metered = 0 AND max(used, reserved) - refunded + returned > granted`,
    ).all() as { id: string; granted: bigint; spent: bigint; ahead: bigint }[]
    const owner = ownerOf(database)
    const overBefore = this.#over.get(machine.name)
    const over = new Map<string, bigint>()
    const overOfLine = new Books()
    for (const { id, granted, spent, ahead } of rows) {
      const cap = this.#arrearsCap(lineOf(id))
      const above = spent - granted
      const sum = id.startsWith('line/') ? overOfLine.add(lineOf(id), above) : above
      if (ahead > 0n || sum > cap) {
        throw new Violation(
          'I5',
          `${machine.name} has spent ${spent} of ${id} and ${ahead} ahead, of ${granted} granted and ${cap} in arrears`,
        )
      }
      const name = `${owner.deviceId} ${owner.incarnation} ${id}`
      over.set(name, above)
      const more = above - (overBefore?.get(name) ?? 0n)
      // It is owed to the pool, which has to make room for it.
      if (isNew && more > 0n) this.#exposure.add(id, more)
    }
    this.#over.set(machine.name, over)
  }

  /** Above the grants, by machine, then by device, incarnation and account. */
  readonly #over = new Map<string, ReadonlyMap<string, bigint>>()

  /** An application was told. @param tokens what it was told that it was charged, micro-tokens */
  acknowledged(key: string | null, correlationId: string, tokens: bigint, machine: Machine): void {
    this.#look('I3')
    const entry = this.#entries.get(correlationId)
    if (entry === undefined) {
      throw new Violation('I3', `${machine.name} has acknowledged ${tokens} that are on no disk (${correlationId})`)
    }
    if (entry.tokens !== tokens) {
      throw new Violation('I3', `${machine.name} has acknowledged ${tokens}, but recorded ${entry.tokens}`)
    }
    entry.acknowledged = true
    if (key === null) return
    const charge = this.#charges.get(key)
    if (tokens > 0n && charge?.correlationId !== correlationId && charge?.machine === machine.name) {
      throw new Violation('I4', `${key} was charged as ${charge.correlationId} and acknowledged as ${correlationId}`)
    }
  }

  /** The disk of a machine is full. */
  diskFull(machine: Machine): void {
    this.#wereFull.add(machine.name)
  }

  readonly #wereFull = new Set<string>()

  /** The twin has answered a request of its own. */
  charged(correlationId: string, tokens: bigint): void {
    this.#direct.set(correlationId, { tokens, billed: 0n })
  }

  powerCut(machine: Machine): void {
    const grant = this.#grants.get(machine.name)
    if (grant) grant.hiddenMs += HIDDEN_BY_A_CUT_MS + machine.sleptWithin(0)
    for (const entry of this.#volatileOf(machine)) {
      // What nobody has heard of never happened; for the rest a burn must follow that is no less.
      for (const { account, amount } of entry.acknowledged ? entry.postings : []) {
        this.#takenByCuts.add(`${machine.name} ${entry.deviceId} ${entry.incarnation} ${account}`, amount)
      }
      this.#forget(entry)
    }
  }

  /** Entries in the volatile log of a device, from this number on, have never happened: nobody may have heard of them. */
  retracted(machine: Machine, from: number): void {
    this.#look('I3')
    for (const entry of this.#volatileOf(machine)) {
      if (entry.n < from) continue
      if (entry.acknowledged) {
        throw new Violation('I3', `entry ${entry.n} of ${machine.name} is taken back with ${entry.tokens} acknowledged`)
      }
      this.#forget(entry)
    }
  }

  #forget({ correlationId, deviceId, incarnation, postings }: Entry): void {
    for (const { account, amount } of postings) this.#spent.add(`${deviceId} ${incarnation} ${account}`, -amount)
    this.#entries.delete(correlationId)
    const key = [...this.#charges].find(([, charge]) => charge.correlationId === correlationId)?.[0]
    if (key !== undefined) this.#charges.delete(key)
  }

  /** What a power cut has taken, and nothing has been burned for yet, by machine, device, incarnation and account. */
  readonly #takenByCuts = new Books()

  #volatileOf(machine: Machine): readonly Entry[] {
    return [...this.#entries.values()].filter((entry) => entry.volatile && entry.machine === machine.name)
  }

  #forgetCuts(machine: Machine): void {
    for (const [name, amount] of this.#takenByCuts.entries()) {
      if (name.startsWith(`${machine.name} `)) this.#takenByCuts.add(name, -amount)
    }
  }

  /** The owner wipes the disk: what was not delivered is gone, and what it holds stays held. */
  wiped(machine: Machine): void {
    this.#lost(machine, () => true)
    this.#forgetCuts(machine)
    this.#grants.set(machine.name, null)
    this.#forgetful.add(machine.name)
  }

  revoked(deviceId: string): void {
    for (const entry of this.#entries.values()) if (entry.deviceId === deviceId) entry.mayBeLost = true
    this.#revoked.add(deviceId)
  }

  readonly #revoked = new Set<string>()

  /** A disk comes into a second pair of hands: as a copy, or as an old state of itself. Called when it has. */
  duplicated(machine: Machine, from: Machine): void {
    const { database } = machine.parts.disk
    const { deviceId, incarnation } = ownerOf(database)
    if (deviceId === null) {
      // A key in two hands: whoever enrolls with it is the same device.
      this.#nameless.add(machine).add(from)
      return
    }
    this.#suspects.add(deviceId)
    const rows = query(database, 'SELECT * FROM account').all() as DeviceAccountRow[]
    for (const row of rows as (DeviceAccountRow & { id: string })[]) {
      const room = row.granted - row.returned - row.used + row.refunded
      if (room > 0n) this.#expose(deviceId, incarnation, row.id, room)
    }
    this.#copies.set(deviceId, (this.#copies.get(deviceId) ?? 1n) + 1n)
    this.#checkOver(machine, false)
    this.#grants.set(machine.name, null)
    this.#forgetful.add(machine.name)
    if (machine !== from) return
    this.#forgetCuts(machine)
    const kept = new Set(query(database, 'SELECT body FROM entry').pluck().all() as string[])
    const ids = new Set([...kept].map((body) => (JSON.parse(body) as EntryText).correlationId))
    this.#lost(machine, (entry) => !ids.has(entry.correlationId))
  }

  /** Machines that were copied while they were nobody. */
  readonly #nameless = new Set<Machine>()

  #nameSuspects(): void {
    for (const { parts } of this.#nameless) {
      const { deviceId } = ownerOf(parts.disk.database)
      if (deviceId !== null) this.#suspects.add(deviceId)
    }
  }

  /** How many hands a device is in, each of which may have arrears of its own. */
  readonly #copies = new Map<string, bigint>()

  /** The owner throws a machine away. */
  discarded(machine: Machine): void {
    this.#lost(machine, () => true)
    this.#forgetCuts(machine)
  }

  /** What a restored twin asks for again a disk that was full has not kept: the rest comes as a remnant, and says so. */
  #hasLostSegments(deviceId: string): boolean {
    if (!this.#wasRestored) return false
    return [...this.#entries.values()].some((entry) => entry.deviceId === deviceId && this.#wereFull.has(entry.machine))
  }

  #wasRestored = false

  /** Reads what the twin has committed since the last look. */
  check(database: Sqlite.Database): void {
    const changes = changesOf(database)
    if (changes === this.#changes) return
    this.#changes = changes
    this.#readUsage(database)
    const fingerprint = fingerprintOf(database)
    this.#skipped += 1
    if (fingerprint === this.#fingerprint && this.#skipped < LOOKS_SKIPPED_MAX) return
    this.#fingerprint = fingerprint
    this.#skipped = 0
    this.#checkAll(database)
  }

  #checkAll(database: Sqlite.Database): void {
    this.#nameSuspects()
    const accounts = query(database, 'SELECT * FROM accounts').all() as AccountRow[]
    const held = query(database, 'SELECT * FROM device_accounts').all() as DeviceAccountRow[]
    const isLearning = learns(database)
    this.#checkAccounts(accounts, held, isLearning)
    this.#checkLearned(database, held)
    for (const row of held) {
      this.#checkSpent(row, isLearning)
      this.#expectReleased(row)
    }
    this.#checkPresumed(database, held)
    this.#checkAlarms(database)
  }

  /** When everything is at rest. */
  checkAtRest(database: Sqlite.Database, machines: readonly Machine[]): void {
    this.#readUsage(database)
    this.#checkAll(database)
    for (const entry of this.#entries.values()) {
      this.#look('I3')
      // What two writers of one chain have recorded is billed as far as it reaches the twin.
      if (this.#suspects.has(entry.deviceId)) continue
      if (entry.mayBeLost || (entry.billedTokens === entry.tokens && entry.billedLines === entry.lines)) continue
      // A disk that was full keeps nothing that is delivered.
      if (entry.isForgotten && this.#wereFull.has(entry.machine)) continue
      const told = entry.acknowledged ? 'acknowledged' : 'recorded'
      throw new Violation(
        'I3',
        `entry ${entry.n} of ${entry.machine} (incarnation ${entry.incarnation}) is ${told} with ${entry.tokens}, ` +
          `but billed with ${entry.billedTokens} in ${entry.billedLines} of ${entry.lines} lines`,
      )
    }
    for (const [name, amount] of this.#takenByCuts.entries()) {
      if (amount > 0n && !this.#revokedNames(name))
        throw new Violation('I3', `${amount} of ${name} were lost to a power cut`)
    }
    for (const [correlationId, { tokens, billed }] of this.#direct) {
      if (tokens !== billed) {
        throw new Violation('I3', `the twin has charged ${tokens} by ${correlationId}, but billed ${billed}`)
      }
    }
    this.#compareTotals(database)
    for (const machine of machines) this.#compareGrants(database, machine)
  }

  /** Entries are in the volatile log of a device: they may be answered. @param twin its database */
  logged(machine: Machine, bodies: readonly string[], twin: Sqlite.Database): void {
    const { database } = machine.parts.disk
    const { deviceId, incarnation } = ownerOf(database)
    if (deviceId === null) throw new Error('an entry belongs to a device')
    for (const text of bodies) this.#enter(machine, JSON.parse(text) as EntryText, deviceId, incarnation, true, twin)
  }

  #appended(machine: Machine, bodies: readonly string[], twin: Sqlite.Database): void {
    const { deviceId, incarnation } = ownerOf(machine.parts.disk.database)
    if (deviceId === null) throw new Error('an entry belongs to a device')
    for (const text of bodies) {
      const body = JSON.parse(text) as EntryText
      const known = this.#entries.get(body.correlationId)
      if (known === undefined) this.#enter(machine, body, deviceId, incarnation, false, twin)
      else known.volatile = false
      if (body.kind === 'burn') this.#burned(machine, body, deviceId, incarnation)
    }
  }

  #enter(
    machine: Machine,
    body: EntryText,
    deviceId: string,
    incarnation: number,
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
    if (!burn) this.#checkTime(machine, body)
    this.#entries.set(correlationId, {
      correlationId,
      machine: machine.name,
      deviceId,
      incarnation,
      n,
      tokens,
      lines: burn ? ofLines.length : items.reduce((sum, { parts }) => sum + Math.max(1, parts.length), 0),
      billedTokens: 0n,
      billedLines: 0,
      acknowledged: false,
      volatile,
      postings,
      isForgotten: false,
      mayBeLost: this.#revoked.has(deviceId),
    })
    for (const { account, amount } of postings) {
      this.#spent.add(`${deviceId} ${incarnation} ${account}`, amount)
      const sql = 'SELECT * FROM device_accounts WHERE device_id = ? AND incarnation = ? AND account = ?'
      const row = query(twin, sql).get(deviceId, incarnation, account) as DeviceAccountRow | undefined
      if (row !== undefined) this.#checkSpent(row, learns(twin))
      else if (
        !this.#everUnlimited.has(account) &&
        this.#arrearsCap(lineOf(account)) === 0n &&
        this.#exposure.get(`${deviceId} ${incarnation} ${account}`) === 0n
      )
        throw new Violation('I2', `${amount} of ${account} were spent, which nobody has granted`)
    }
    const key = items[0]?.metaData?.key
    if (key !== undefined && tokens > 0n) this.#chargeOnce(machine, key, correlationId)
  }

  /** A burn takes the place of what the power cut has taken out of the volatile log, and is never less. */
  #burned(machine: Machine, { postings }: EntryText, deviceId: string, incarnation: number): void {
    this.#look('I3')
    for (const { account, amount } of postings) {
      const name = `${machine.name} ${deviceId} ${incarnation} ${account}`
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

  /** A request of an application session leads to one charge, however often it is sent. */
  #chargeOnce(machine: Machine, key: string, correlationId: string): void {
    this.#look('I4')
    const before = this.#charges.get(key)
    this.#charges.set(key, { correlationId, machine: machine.name })
    if (before === undefined || this.#forgetful.has(machine.name)) return
    throw new Violation('I4', `${key} of ${machine.name} was charged twice: ${before.correlationId}, ${correlationId}`)
  }

  #checkTime(machine: Machine, { kind, earliest, latest, postings }: EntryText): void {
    this.#look('TIME')
    const now = this.#now()
    if (earliest > now) throw new Violation('TIME', `${machine.name} takes ${earliest} for past at ${now}`)
    const slept = machine.sleptWithin(WRITE_MS)
    if (latest !== null && latest < now - WRITE_MS - slept) {
      throw new Violation('TIME', `${machine.name} takes ${latest} for the latest possible time at ${now}`)
    }
    const grant = this.#grants.get(machine.name)
    // What goes back is not spent, and essential items outlive the grant.
    const spends = postings.some(({ account }) => this.#arrearsCap(lineOf(account)) === 0n)
    if (!grant || kind === 'refund' || !spends) return
    const age = machine.onFor - slept - grant.takenAtOn
    const most = grant.lifetimeMs * 1.001 + WRITE_MS + grant.hiddenMs
    if (age <= most) return
    throw new Violation('TIME', `${machine.name} spends by a grant of ${grant.lifetimeMs} ms that is ${age} ms old`)
  }

  #acknowledgedBy(machine: Machine, call: Extract<JournalCall, { call: 'acknowledge' }>): void {
    const { seq, grant } = call
    const { database } = machine.parts.disk
    const { deviceId, incarnation } = ownerOf(database)
    if (deviceId === null || grant === null) return
    this.#grants.set(machine.name, { takenAtOn: machine.onFor, lifetimeMs: grant.lifetimeMs, hiddenMs: 0 })
    const name = `${deviceId} ${incarnation} ${seq}`
    const again = this.#answered.has(name)
    this.#answered.add(name)
    if (!again || !this.#suspects.has(deviceId)) return
    // One answer that two copies have received: both hold what it granted.
    for (const { account, granted, unlimited } of grant.accounts) {
      if (!unlimited) this.#expose(deviceId, incarnation, account, granted)
    }
  }

  #expose(deviceId: string, incarnation: number, account: string, amount: bigint): void {
    this.#exposure.add(`${deviceId} ${incarnation} ${account}`, amount)
    this.#exposure.add(account, amount)
  }

  #lost(machine: Machine, which: (entry: Entry) => boolean): void {
    for (const entry of this.#entries.values()) {
      if (entry.machine === machine.name && which(entry)) entry.mayBeLost = true
    }
  }

  #readUsage(database: Sqlite.Database): void {
    const rows = query(database, 'SELECT * FROM usage WHERE seq > ? ORDER BY seq').all(this.#usageSeen) as UsageRow[]
    for (const row of rows) {
      const { seq, correlation_id: id, activation_id: line, tokens, source } = row
      this.#usageSeen = seq
      if (line !== null) this.#billedByLine.add(`${source === 'device' ? 'device' : 'twin'} ${line}`, tokens)
      if (source !== 'device') {
        const direct = this.#direct.get(id)
        if (direct !== undefined) direct.billed += tokens
        else if (source === 'one-off') this.#early.add(id, tokens)
        continue
      }
      if (row.operation === 'SETTLEMENT') {
        this.#presumptions.add(`${row.device_id} ${row.incarnation} ${line}`, tokens)
        continue
      }
      this.#look('I4')
      const entry = this.#entries.get(id)
      if (entry === undefined) throw new Violation('I3', `${tokens} are billed for ${id}, which no device has recorded`)
      entry.billedTokens += tokens
      entry.billedLines += 1
      if (entry.billedLines > entry.lines) {
        throw new Violation(
          'I4',
          `entry ${entry.n} of ${entry.machine} (incarnation ${entry.incarnation}, ${entry.tokens}) is billed again: ` +
            `${entry.billedTokens} in ${entry.billedLines} of ${entry.lines} lines`,
        )
      }
    }
  }

  /** Billed before the answer came back. */
  readonly #early = new Books()

  /** What of a request the bill already holds. */
  settleDirect(correlationId: string): void {
    const direct = this.#direct.get(correlationId)
    if (direct !== undefined) direct.billed += this.#early.get(correlationId)
  }

  #checkAccounts(accounts: readonly AccountRow[], held: readonly DeviceAccountRow[], isLearning: boolean): void {
    const out = new Books()
    const billed = new Books()
    for (const row of held) {
      const spent = row.used - row.refunded + row.branch_used
      const given = row.granted - row.returned - row.released
      out.add(row.account, given > spent ? given : spent)
      billed.add(row.account, spent + row.presumed)
    }
    for (const account of accounts) {
      this.#look('I1')
      const { id, charged } = account
      if (out.get(id) !== account.granted_out) {
        throw new Violation('I1', `${out.get(id)} of ${id} are on devices, but the pool says ${account.granted_out}`)
      }
      if (billed.get(id) !== account.billed_by_devices) {
        throw new Violation(
          'I1',
          `${billed.get(id)} of ${id} are billed, but the pool says ${account.billed_by_devices}`,
        )
      }
      const total = charged + out.get(id)
      const target = this.#target(account)
      if (target === null) {
        this.#everUnlimited.add(id)
        this.#inForce.delete(id)
        continue
      }
      const before = this.#inForce.get(id) ?? target
      const allowed = before > target ? before : target
      const exposed = this.#exposure.get(id) + (isLearning ? this.#forgotten.get(id) : 0n)
      if (total > allowed + exposed && !this.#everUnlimited.has(id)) {
        throw new Violation('I1', `${total} of ${id} are out, of ${allowed} in force and ${exposed} exposed`)
      }
      this.#inForce.set(id, target > total ? target : total)
    }
  }

  /**
   * A restored twin grants nothing that it may have granted to somebody already: nothing new of an account until everybody has
   * been heard of who could draw on it by the backup.
   */
  #checkLearned(database: Sqlite.Database, held: readonly DeviceAccountRow[]): void {
    if (this.#waited.size === 0 || this.#someCannotTell()) return
    const open = query(
      database,
      `SELECT device_id || ' ' || number FROM incarnations WHERE status <> 'CLOSED' AND settled_at IS NULL AND NOT EXISTS (
           SELECT 1 FROM segments WHERE segments.device_id = incarnations.device_id AND incarnation = number AND received_at >= ?)`,
    )
    const unheard = new Set(open.pluck().all(this.#restoredAt) as string[])
    for (const row of held) {
      const { device_id, incarnation, account, granted, unlimited } = row
      if (granted <= (this.#grantedBefore.get(nameOf(row)) ?? 0n) || unlimited === 1n) continue
      if (this.#everUnlimited.has(account) || this.#arrearsCap(lineOf(account)) > 0n) continue
      this.#look('I1')
      for (const owner of this.#waited.get(account) ?? []) {
        if (owner === `${device_id} ${incarnation}` || !unheard.has(owner)) continue
        throw new Violation(
          'I1',
          `${granted} of ${nameOf(row)} are granted, but ${owner} was not heard of since the restore`,
        )
      }
    }
  }

  /** Somebody was wiped, copied, set back or held back, or has not kept what was delivered. */
  #someCannotTell(): boolean {
    return (
      this.#forgetful.size + this.#suspects.size + this.#wereFull.size + this.#revoked.size + this.#terminated.size > 0
    )
  }

  /** Of a twin that knows that it was restored: who could draw on each account by the backup. */
  readonly #waited = new Map<string, Set<string>>()
  /** What was granted before a restore, whether the backup knows of it or not. */
  readonly #grantedBefore = new Map<string, bigint>()
  #restoredAt = 0

  /** The cap that the administrator has set. */
  #target({ id, cap_target }: AccountRow): bigint | null {
    const [kind, , line = '', third = ''] = id.split('/').map(decodeURIComponent)
    const caps = this.#caps.get(line)
    if (caps === undefined) throw new Violation('I1', `nobody has set up the line item of ${id}`)
    const { lineHistory } = caps
    let target: bigint | null = caps.line
    if (kind === 'action') target = caps.allocations.get(third) ?? 0n
    if (kind === 'limit') target = caps.limit ?? 0n
    if (target === cap_target) return target
    if (kind === 'line' && lineHistory.includes(cap_target)) return cap_target
    throw new Violation('I1', `the cap of ${id} is ${String(cap_target)}, but was set to ${String(target)}`)
  }

  /** By all writers together, of what the twin has granted to this incarnation. */
  #checkSpent(row: DeviceAccountRow, isLearning: boolean): void {
    const { device_id, incarnation, account, granted, returned, unlimited } = row
    this.#look('I2')
    if (unlimited === 1n || this.#everUnlimited.has(account)) return
    const name = `${device_id} ${incarnation} ${account}`
    const spent = this.#spent.get(name)
    const exposed = this.#exposure.get(name) + (isLearning ? this.#forgotten.get(name) : 0n)
    const arrears = this.#arrearsCap(lineOf(account)) * (this.#copies.get(device_id) ?? 1n)
    if (spent <= granted - returned + exposed + arrears) return
    throw new Violation(
      'I2',
      `${spent} were spent by ${name}, of ${granted - returned} granted, ${exposed} exposed and ${arrears} in arrears`,
    )
  }

  /** What was released without evidence may turn out to be spent. */
  #expectReleased(row: DeviceAccountRow): void {
    const name = nameOf(row)
    const more = row.released - (this.#released.get(name) ?? 0n)
    if (more <= 0n) return
    this.#released.set(name, row.released)
    this.#exposure.add(row.account, more)
  }

  readonly #released = new Map<string, bigint>()

  /** Presumptions are lines of the bill; once an incarnation is settled as used, no less than was used counts as used. */
  #checkPresumed(database: Sqlite.Database, held: readonly DeviceAccountRow[]): void {
    const settled = new Set(
      (
        query(
          database,
          "SELECT device_id || ' ' || number FROM incarnations WHERE settlement = 'CHARGED' AND settled_at IS NOT NULL",
        )
          .pluck()
          .all() as string[]
      ).filter((name) => !this.#suspects.has(name.split(' ')[0] ?? '')),
    )
    const presumed = new Books()
    for (const row of held) {
      const owner = `${row.device_id} ${row.incarnation}`
      if (row.account.startsWith('line/')) presumed.add(`${owner} ${lineOf(row.account)}`, row.presumed)
      if (!settled.has(owner) || row.unlimited === 1n || this.#everUnlimited.has(row.account)) continue
      this.#look('I3')
      const counts = row.used - row.refunded + row.branch_used + row.presumed
      const spent = this.#spent.get(nameOf(row))
      if (counts >= spent - this.#arrearsCap(lineOf(row.account)) - this.#exposure.get(nameOf(row))) continue
      throw new Violation(
        'I3',
        `${counts} of ${nameOf(row)} count as used after its settlement, but ${spent} were spent`,
      )
    }
    for (const [name, billed] of this.#presumptions.entries()) {
      this.#look('I3')
      const sum = presumed.get(name)
      if (billed !== sum) throw new Violation('I3', `${sum} of ${name} are presumed, but ${billed} billed as such`)
    }
  }

  /** Billed without evidence, by device, incarnation and line item. */
  readonly #presumptions = new Books()

  #checkAlarms(database: Sqlite.Database): void {
    this.#look('I6')
    const alarms = query(
      database,
      `SELECT device_id, incarnation, kind AS what, problem FROM evidence UNION ALL
           SELECT device_id, number, fence_reason, NULL FROM incarnations WHERE fence_reason IN ('FORKED', 'REJECTED')`,
    ).all() as { device_id: string; incarnation: bigint; what: string; problem: string | null }[]
    for (const { device_id, incarnation, what, problem } of alarms) {
      if (this.#suspects.has(device_id)) continue
      if (what === 'REMNANT' && problem === null && this.#hasLostSegments(device_id)) continue
      const why = problem === null ? '' : ` (${problem})`
      throw new Violation(
        'I6',
        `alarm ${what}${why} on incarnation ${incarnation} of ${device_id}, which nobody touched`,
      )
    }
    const twice = query(
      database,
      `SELECT device_id, count(*) AS active FROM incarnations WHERE status = 'ACTIVE' GROUP BY device_id HAVING count(*) > 1`,
    ).get() as { device_id: string; active: bigint } | undefined
    if (twice !== undefined) {
      throw new Violation('I1', `${twice.active} incarnations of ${twice.device_id} can earn grants, of 1`)
    }
    const late = query(
      database,
      `SELECT incarnations.device_id, number, devices.incarnation AS current FROM incarnations
           JOIN devices ON devices.id = device_id WHERE status = 'ACTIVE' AND number <> devices.incarnation`,
    ).get() as { device_id: string; number: bigint; current: bigint } | undefined
    if (late !== undefined) {
      throw new Violation(
        'I1',
        `incarnation ${late.number} of ${late.device_id} can earn grants, but ${late.current} is current`,
      )
    }
  }

  /** The sums of the pools are the sums of the bill. */
  #compareTotals(database: Sqlite.Database): void {
    const rows = query(database, "SELECT * FROM accounts WHERE id LIKE 'line/%'").all() as AccountRow[]
    const [byTwin, byDevices] = [new Books(), new Books()]
    for (const { id, charged, billed_by_devices } of rows) {
      const line = decodeURIComponent(id.split('/')[2] ?? '')
      byTwin.add(line, charged)
      byDevices.add(line, billed_by_devices)
    }
    for (const [side, totals] of [
      ['twin', byTwin],
      ['device', byDevices],
    ] as const) {
      for (const [line, total] of totals.entries()) {
        this.#look('I3')
        const billed = this.#billedByLine.get(`${side} ${line}`)
        if (billed !== total)
          throw new Violation('I3', `the bill of ${line} has ${billed} by the ${side}, the pool ${total}`)
      }
    }
  }

  /** What the twin has granted to a device has reached it. */
  #compareGrants(database: Sqlite.Database, machine: Machine): void {
    const journal = machine.parts.disk.database
    const { deviceId, incarnation } = ownerOf(journal)
    // One that is not served any more cannot ask.
    if (deviceId === null || this.#revoked.has(deviceId) || this.#terminated.has(deviceId)) return
    const here = new Map(
      (
        query(journal, 'SELECT id, granted, metered FROM account').all() as {
          id: string
          granted: bigint
          metered: bigint
        }[]
      ).map((row) => [row.id, row]),
    )
    const there = query(
      database,
      'SELECT account, granted FROM device_accounts WHERE device_id = ? AND incarnation = ?',
    ).all(deviceId, incarnation) as { account: string; granted: bigint }[]
    for (const { account, granted } of there) {
      this.#look('LIVENESS')
      const row = here.get(account)
      if (row?.metered === 1n || this.#everUnlimited.has(account)) continue
      if ((row?.granted ?? 0n) !== granted) {
        throw new Violation(
          'LIVENESS',
          `${granted} of ${account} were granted to ${machine.name}, which knows of ${row?.granted ?? 0n}`,
        )
      }
    }
  }

  #revokedNames(name: string): boolean {
    return this.#revoked.has(name.split(' ')[1] ?? '')
  }

  #look(invariant: Invariant): void {
    this.looks.set(invariant, (this.looks.get(invariant) ?? 0) + 1)
  }
}

/** Sums over what the promises are about: as long as they are the same, hardly anything can have become wrong. */
function fingerprintOf(database: Sqlite.Database): string {
  return query(
    database,
    `SELECT (SELECT count(*) || ' ' || total(charged) || ' ' || total(granted_out) || ' ' || total(billed_by_devices) || ' ' ||
         total(cap_target) FROM accounts) || ' ' ||
       (SELECT count(*) || ' ' || total(granted) || ' ' || total(used) || ' ' || total(refunded) || ' ' || total(returned) || ' ' ||
         total(branch_used) || ' ' || total(presumed) || ' ' || total(released) FROM device_accounts) || ' ' ||
       (SELECT count(*) FROM evidence) || ' ' || (SELECT count(*) || ' ' || count(fenced_at) FROM incarnations)`,
  )
    .pluck()
    .get() as string
}

/** A restored twin has not heard of everybody yet. */
function learns(database: Sqlite.Database): boolean {
  return query(database, 'SELECT 1 FROM learning').get() !== undefined
}

/** The line item of an account. */
function lineOf(account: string): string {
  const known = lines.get(account)
  if (known !== undefined) return known
  const line = decodeURIComponent(account.split('/')[2] ?? '')
  if (lines.size >= REMEMBERED_MAX) lines.clear()
  lines.set(account, line)
  return line
}

/** Names that are taken apart once. */
const lines = new Map<string, string>()
const deviceIds = new Map<string, string>()
const REMEMBERED_MAX = 1_000

function nameOf({ device_id, incarnation, account }: DeviceAccountRow): string {
  return `${device_id} ${incarnation} ${account}`
}

/** What a device may have of an account, spent or not. */
function outOf({ granted, returned }: DeviceAccountRow): bigint {
  return granted - returned
}

function replace<K, V>(map: Map<K, V>, by: ReadonlyMap<K, V>): void {
  map.clear()
  for (const [key, value] of by) map.set(key, value)
}

/** Who a disk belongs to. */
export function ownerOf(database: Sqlite.Database): { readonly deviceId: string | null; readonly incarnation: number } {
  const identity = query(database, 'SELECT document FROM identity').pluck().get() as string | undefined
  const incarnation = query(database, 'SELECT incarnation FROM state').pluck().get() as bigint
  return { deviceId: identity === undefined ? null : deviceIdOf(identity), incarnation: Number(incarnation) }
}

function deviceIdOf(identity: string): string {
  const known = deviceIds.get(identity)
  if (known !== undefined) return known
  const { deviceId } = JSON.parse(identity) as { deviceId: string }
  if (deviceIds.size >= REMEMBERED_MAX) deviceIds.clear()
  deviceIds.set(identity, deviceId)
  return deviceId
}
