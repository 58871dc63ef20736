/** Each entry is recorded once, in the volatile log or on disk, and acknowledged entries persist. */
import type Sqlite from 'better-sqlite3'
import type { AccessResponse } from '../../src/protocol/service/access-request.ts'
import { ITEM_STATUS } from '../../src/protocol/service/status.ts'
import type { Machine } from '../device/machine.ts'
import { Books } from './books.ts'
import { DeviceSessionAudit } from './device-sessions.ts'
import type { SharedState } from './shared-state.ts'
import type { PoolAudit } from './pools.ts'
import type { PublishedAudit } from './published.ts'
import { query } from './query.ts'
import { type DeviceAccountRow, type Entry, type EntryText, lineOf, lineText, microOf, ownerOf } from './records.ts'
import type { Durability } from '../../src/agent/ledger/commits.ts'
import type { TimeAudit } from './time.ts'
import { decideAgain } from './reference.ts'
import { Violation } from './violation.ts'

/** Time before a power cut that a grant's age may omit, ms. */
const HIDDEN_BY_A_CUT_MS = 90_000

export class EntryAudit {
  readonly #shared: SharedState
  readonly #pools: PoolAudit
  readonly #time: TimeAudit
  readonly #published: PublishedAudit
  readonly sessions: DeviceSessionAudit

  constructor(shared: SharedState, pools: PoolAudit, time: TimeAudit, published: PublishedAudit) {
    this.#shared = shared
    this.#pools = pools
    this.#time = time
    this.#published = published
    this.sessions = new DeviceSessionAudit(shared, published)
  }

  /** Keys of requests that were answered with an error. */
  readonly #refused = new Set<string>()

  /** Responses before their entry, by correlation id. */
  readonly #denied = new Map<string, string>()

  /** An application received an error: the request is in no ledger, now or later. @param key of the request */
  refused(key: string, machine: Machine): void {
    this.#shared.look('I3')
    this.#refused.add(key)
    for (const entry of this.#shared.entries.values()) {
      if (entry.key === key && entry.machine === machine.name && !entry.volatile) this.checkRecorded(entry)
    }
  }

  /** Of an entry that is in a ledger. */
  checkRecorded({ key, n, machine, tokens, correlationId, answer }: Entry): void {
    const name = `entry ${n} of ${machine}`
    if (key !== undefined && this.#refused.has(key)) {
      throw new Violation('I3', `${name} (${tokens}) is of a request that was refused with an error: ${key}`)
    }
    const told = this.#denied.get(correlationId)
    if (told !== undefined && told !== answer) {
      throw new Violation('I3', `${name} is of a request that was answered ${told}, but records ${answer}`)
    }
  }

  /** An application received a response. @param key of the request, if it has one */
  acknowledged(
    key: string | null,
    { correlationId, requestedItems }: AccessResponse,
    durability: Durability,
    machine: Machine,
  ): void {
    this.#shared.look('I3')
    const told = requestedItems.map(toldOf).join(', ')
    if (durability === 'later') {
      const isCharged = requestedItems.some(({ totalTokensCharged }) => totalTokensCharged > 0)
      if (isCharged) throw new Violation('I3', `${machine.name} has acknowledged ${told} before a commit`)
      this.#denied.set(correlationId, told)
      return
    }
    const entry = this.#shared.entries.get(correlationId)
    if (entry === undefined) {
      throw new Violation('I3', `${machine.name} has acknowledged ${told}, on no disk (${correlationId})`)
    }
    if (entry.answer !== told) {
      throw new Violation('I3', `${machine.name} has acknowledged ${told}, but recorded ${entry.answer}`)
    }
    entry.acknowledged = true
    if (key === null) return
    const { tokens } = entry
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
      const entry = known ?? this.#enter(machine, body, deviceId, epoch, false, twin)
      entry.volatile = false
      this.checkRecorded(entry)
      this.sessions.appended(machine.name, `${deviceId} ${epoch}`, body)
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
  ): Entry {
    const { correlationId, kind, n, items, session } = body
    const sign = kind === 'refund' ? -1n : 1n
    const postings = body.postings.map(({ account, amount }) => ({ account, amount: sign * BigInt(amount) }))
    const ofLines = postings.filter(({ account }) => account.startsWith('line/'))
    const burn = kind === 'burn'
    const tokens = burn
      ? ofLines.reduce((sum, { amount }) => sum + amount, 0n)
      : sign * items.reduce((sum, { total }) => sum + BigInt(total), 0n)
    const lines = burn
      ? ofLines.map(({ account, amount }) => lineText({ activation_id: lineOf(account), item: '', tokens: amount }))
      : items.flatMap((each) => linesOf(each, sign))
    if (!burn) this.#time.checkTime(machine, body)
    if (kind === 'access') this.#decideAgain(machine, body)
    if (body.engine !== machine.engine.version) {
      const by = `${machine.name} has engine ${machine.engine.version}`
      throw new Violation('ENGINE', `${by}, and records that engine ${body.engine} decided ${correlationId}`)
    }
    const key = items[0]?.metaData?.key
    const entry: Entry = {
      correlationId,
      key,
      machine: machine.name,
      deviceId,
      epoch,
      n,
      tokens,
      lines,
      unbilled: [...lines],
      answer: items.map(recordedOf).join(', '),
      acknowledged: false,
      volatile,
      postings,
      isForgotten: false,
      mayBeLost: this.#shared.isShutOut(deviceId),
    }
    this.#shared.entries.set(correlationId, entry)
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
    // A session is charged for its request again and again.
    if (key !== undefined && tokens > 0n && session === undefined) this.#chargeOnce(machine, key, correlationId)
    return entry
  }

  #decideAgain(machine: Machine, body: EntryText): void {
    const { n, instanceId, policyRevision, session, requester, at, earliest, latest, items, postings } = body
    // Overspend is paid in a second round.
    if (postings.some(({ aboveGrant }) => aboveGrant !== undefined)) return
    this.#shared.look('DECISION')
    const recorded = {
      name: `entry ${n} of ${machine.name}`,
      requester,
      clock: { now: at, earliest, latest },
      mode: session === undefined ? ('BEST_EFFORT' as const) : ('ALL_OR_NOTHING' as const),
      items: items.map((item) => ({
        ...item,
        parts: item.parts.map((part) => ({ ...part, charged: BigInt(part.charged) })),
        metaData: item.metaData ?? { at: 0, dictionary: {} },
      })),
    }
    const rules = this.#published.rulesOf(instanceId, policyRevision)
    const expected = postingsText(decideAgain(recorded, rules))
    const charged = postingsText(postings)
    if (charged !== expected) {
      throw new Violation('DECISION', `${recorded.name} charges ${charged}, but its rules say ${expected}`)
    }
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

  /** Entries from this number on left a device's volatile log and are in no ledger: they must not have been answered. */
  retracted(machine: Machine, from: number): void {
    this.#shared.look('I3')
    for (const entry of this.#volatileOf(machine)) {
      if (entry.n < from) continue
      if (entry.acknowledged && !entry.mayBeLost) {
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

function postingsText(postings: readonly { readonly account: string; readonly amount: string | bigint }[]): string {
  return postings
    .map(({ account, amount }) => `${amount} of ${account}`)
    .toSorted()
    .join(', ')
}

type RecordedItem = EntryText['items'][number]

function linesOf({ item, parts }: RecordedItem, sign: bigint): readonly string[] {
  if (parts.length === 0) return [lineText({ activation_id: null, item, tokens: 0n })]
  return parts.map(({ lineItemId, charged }) => {
    return lineText({ activation_id: lineItemId, item, tokens: sign * BigInt(charged) })
  })
}

const STATUS = new Map(Object.entries(ITEM_STATUS))

/** What the response says of an item; see {@link recordedOf}. */
function toldOf({ item, status, lineItems }: AccessResponse['requestedItems'][number]): string {
  const parts = lineItems.map(({ activationId, tokensCharged }) => ` ${microOf(tokensCharged)} by ${activationId}`)
  return `${item} ${status.code}${parts.join()}`
}

function recordedOf({ item, outcome, parts }: RecordedItem): string {
  return `${item} ${STATUS.get(outcome)?.['v1.1']}${parts.map(({ lineItemId, charged }) => ` ${charged} by ${lineItemId}`).join()}`
}
