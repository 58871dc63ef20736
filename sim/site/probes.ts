/**
 * At rest, clients on every device and at the cloud request again: with contact, no request may be refused that the
 * pool can pay. Judged by rows of the pools, not by responses.
 */
import { ITEM_STATUS } from '../../src/protocol/service/status.ts'
import { query } from '../audit/query.ts'
import {
  ACCOUNTS,
  type AccountRow,
  type DeviceAccountRow,
  ownerOf,
  sellsNothing,
  unfilledReserve,
} from '../audit/records.ts'
import { Violation } from '../audit/violation.ts'
import type { Machine } from '../device/machine.ts'
import { allowing } from '../actions.ts'
import { HOUR, type LineItemPlan, type PlannedRequest } from '../plan.ts'
import type { Devices } from './devices.ts'
import type { Load } from './load.ts'
import { MICRO } from './rule-calls.ts'
import type { Rules } from './rules.ts'
import type { Stage } from './stage.ts'

const ANSWER_MS = 5_000

const AGAIN_MS = 30_000

/** Beyond the sync interval, ms: returned tokens travel in two messages. */
const RETURN_MS = 2 * 60_000

/** Upper bound of a small request's cost, micro-tokens, at any rate. */
const SMALL = MICRO

const COUNT_MAX = 100

const RAISED = 100

type Asker = { readonly name: string; readonly ask: (request: PlannedRequest) => Promise<string | undefined> }

export class Probes {
  readonly #stage: Stage
  readonly #devices: Devices
  readonly #rules: Rules
  readonly #load: Load
  #asked = 0

  constructor(stage: Stage, devices: Devices, rules: Rules, load: Load) {
    this.#stage = stage
    this.#devices = devices
    this.#rules = rules
    this.#load = load
  }

  async run(): Promise<void> {
    const { twin } = this.#stage
    if (sellsNothing(twin.database)) return
    const machines = this.#devices.hands.flatMap(([machine]) =>
      machine !== undefined && this.#isServed(machine) ? [machine] : [],
    )
    const index = this.#rules.lineItems.findIndex((item) => this.#canProbe(item))
    const item = this.#rules.lineItems[index]
    if (item === undefined || machines.length === 0) return
    const client = this.#load.twinClient()
    const askers: readonly Asker[] = [client, ...machines.map((machine) => this.#load.clientOf(machine))]
    const patienceMs = this.#stage.plan.site.syncEveryMs + RETURN_MS
    await this.#allGranted('what the pool and the devices have', item, askers, () => patienceMs)
    await this.#rules.raise(index, RAISED)
    // Early requesters get tokens in advance that others must return.
    const afterOthersMs = () => (this.#free(item) < 2n * SMALL ? patienceMs : 0)
    await this.#allGranted('a raised quantity', item, askers, afterOthersMs)
    const [, greedy] = askers
    if (greedy !== undefined) await this.#ask(greedy, { ...this.#request(item), item: 'Copy', count: 1_000_000 })
    await this.#allGranted('what a refused request leaves', item, askers, () => patienceMs)
    await this.#noneStarves(item, askers, patienceMs)
  }

  /** All request their share of half the total at once, with retries: each is served in time. */
  async #noneStarves(item: LineItemPlan, askers: readonly Asker[], patienceMs: number): Promise<void> {
    const part = Number(this.#unspent(item) / (2n * SMALL * BigInt(askers.length)))
    const count = Math.min(part, item.limit ?? COUNT_MAX, COUNT_MAX)
    if (this.#hasFailed() || count < 1) return
    this.#stage.auditor.shared.look('REFUSAL')
    const end = this.#stage.time.now + patienceMs
    let short = askers
    for (;;) {
      const asked = short.map((asker) => {
        return { asker, outcome: this.#begin(asker, { ...this.#request(item), count }) }
      })
      await this.#answers()
      short = asked.filter(({ outcome }) => outcome() !== GRANTED).map(({ asker }) => asker)
      if (short.length === 0 || this.#hasFailed()) return
      if (this.#stage.time.now >= end) break
      await this.#stage.until(this.#stage.time.now + AGAIN_MS)
    }
    const state = `${this.#free(item)} free and ${this.#unspent(item)} unspent of ${item.id}`
    const names = short.map(({ name }) => name).join(', ')
    this.#stage.violate(new Violation('REFUSAL', `${names} of ${askers.length} starve, with ${state}`))
  }

  /** If the tokens suffice, every requester gets a small request granted in time. */
  async #allGranted(of: string, item: LineItemPlan, askers: readonly Asker[], patienceMs: () => number): Promise<void> {
    const { auditor, time } = this.#stage
    for (const asker of askers) {
      if (this.#hasFailed() || this.#unspent(item) < 4n * SMALL * BigInt(askers.length)) return
      auditor.shared.look('REFUSAL')
      const end = time.now + patienceMs()
      let outcome = await this.#ask(asker, this.#request(item))
      while (outcome !== GRANTED && time.now < end && !this.#hasFailed()) {
        await this.#stage.until(time.now + AGAIN_MS)
        outcome = await this.#ask(asker, this.#request(item))
      }
      this.#stage.outcome(`probe of ${of}: ${outcome}`)
      if (outcome === GRANTED) continue
      const state = `${this.#free(item)} free and ${this.#unspent(item)} unspent of ${item.id}`
      this.#stage.violate(new Violation('REFUSAL', `${asker.name} is refused ${of}: ${outcome}, with ${state}`))
    }
  }

  #hasFailed(): boolean {
    return this.#stage.violation !== null
  }

  async #ask(asker: Asker, request: PlannedRequest): Promise<string> {
    const outcome = this.#begin(asker, request)
    await this.#answers()
    return outcome()
  }

  /** Also where nothing else happens meanwhile: then there is no step whose end waits for the work of the cloud. */
  async #answers(): Promise<void> {
    await this.#stage.settle()
    await this.#stage.until(this.#stage.time.now + ANSWER_MS)
  }

  /** @returns the response so far */
  #begin(asker: Asker, request: PlannedRequest): () => string {
    let outcome = 'no answer'
    asker.ask(request).then(
      (said) => (outcome = said ?? 'no listener'),
      (error: unknown) => (outcome = String(error)),
    )
    return () => outcome
  }

  #request(item: LineItemPlan): PlannedRequest {
    this.#asked += 1
    const requester = `probe-${this.#asked}`
    return { instance: item.instance, item: 'Scan', count: 1, requester, gold: isForGold(item) }
  }

  /** Line items that serve any requester alone, during the whole probe. */
  #canProbe(item: LineItemPlan): boolean {
    const { id, state, limit, startsAt, endsAt, overdraft } = item
    const { now } = this.#stage.time
    if (state !== 'DEPLOYED' || overdraft === 'UNLIMITED' || startsAt > now || endsAt < now + 12 * HOUR) return false
    if (allowing(item, isForGold(item) ? { tier: 'gold' } : {})?.allocation !== null) return false
    if (limit !== null && BigInt(limit) * MICRO < SMALL) return false
    const { auditor } = this.#stage
    const period = auditor.published.periodAt(id, now)
    return period !== undefined && period === auditor.published.periodAt(id, now + 3 * HOUR)
  }

  #isServed({ agent, deps }: Machine): boolean {
    const { deviceId } = ownerOf(deps.disk.database)
    return agent !== null && deviceId !== null && this.#stage.auditor.shared.isServed(deviceId)
  }

  #account(item: LineItemPlan): string {
    const { published } = this.#stage.auditor
    const period = published.periodAt(item.id, this.#stage.time.now) ?? 0
    return `line/${this.#rules.instanceId(item.instance)}/${item.id}/${period}`
  }

  #free(item: LineItemPlan): bigint {
    const sql = `SELECT * FROM ${ACCOUNTS} WHERE id = ?`
    const { database } = this.#stage.twin
    const row = query(database, sql).get(this.#account(item)) as AccountRow | undefined
    if (row === undefined) return 0n
    return (row.cap_target ?? 0n) - row.withheld - row.charged - row.granted_out - unfilledReserve(database, row)
  }

  /** Free for all in the pool, or with reachable devices. */
  #unspent(item: LineItemPlan): bigint {
    const sql = `SELECT device_accounts.* FROM device_accounts JOIN epochs USING (device_id)
      WHERE number = epoch AND status = 'ACTIVE' AND account = ?`
    const rows = query(this.#stage.twin.database, sql).all(this.#account(item)) as DeviceAccountRow[]
    return rows
      .filter(({ device_id: id }) => this.#stage.auditor.shared.isServed(id))
      .map(({ granted, returned, used, refunded }) => granted - returned - used + refunded)
      .reduce((sum, held) => sum + (held > 0n ? held : 0n), this.#free(item))
  }
}

/** Others are not served, or not without an allocation. */
function isForGold(item: LineItemPlan): boolean {
  return allowing(item, {})?.allocation !== null
}

/** Nothing else is expected at rest: no error, no other refusal, and no silence. */
const GRANTED = ITEM_STATUS.GRANTED['v1.1']
