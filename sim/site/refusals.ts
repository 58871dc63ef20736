/**
 * During the run: a connected device may refuse a request for lack of tokens only if the pools cannot pay it now, and answers
 * none with an error. Judges only devices that nothing disturbs, and only requests that one line item can surely pay alone, by
 * the rows of the cloud and an upper bound of the price. Draws nothing, so that the plan stays as it is.
 */
import { query } from '../audit/query.ts'
import { ACCOUNTS, type AccountRow, ownerOf, unfilledReserve } from '../audit/records.ts'
import { Violation } from '../audit/violation.ts'
import type { AssembledAgent } from '../../src/agent/assemble.ts'
import type { Machine } from '../device/machine.ts'
import { allowing } from '../actions.ts'
import { HOUR, ITEMS, type LineItemPlan, type PlannedRequest, RATES } from '../plan.ts'
import { CALM } from '../world/network.ts'
import { dictionaryOf } from '../request-body.ts'
import { MICRO } from './rule-calls.ts'
import type { Rules } from './rules.ts'
import type { Stage } from './stage.ts'

/** Below the agent's deadline for a top-up: a later response may be the one of a cloud that is too slow. */
const IN_TIME_MS = 1_900

const AWAKE_FOR_MS = 60_000

/** Requests of a device at a time that surely fit the next segment. */
const TOGETHER_MAX = 20

/** Highest factor of a rate. */
const FACTOR_MAX = 3

const SHORT: ReadonlySet<string> = new Set(['2002', '2004', '2005', '2008', '2009'])

/** Called with the status codes or the error code of the response. */
type Watched = (codes: readonly string[]) => void

/** What must be the same before and after a request. */
interface Surroundings {
  readonly at: number
  readonly same: readonly unknown[]
  /** Tokens of the instance that were ever charged or granted. */
  readonly sold: bigint
}

export class Refusals {
  readonly #stage: Stage
  readonly #rules: Rules
  readonly #waiting = new WeakMap<AssembledAgent, number>()

  constructor(stage: Stage, rules: Rules) {
    this.#stage = stage
    this.#rules = rules
  }

  watch(machine: Machine, request: PlannedRequest): Watched {
    const { agent } = machine
    if (agent === null) return () => undefined
    const together = (this.#waiting.get(agent) ?? 0) + 1
    this.#waiting.set(agent, together)
    const before = together > TOGETHER_MAX ? null : this.#surroundings(machine, request)
    const needed = priceMax(request)
    const payers = before === null ? [] : this.#payers(request).filter((item) => this.#free(item, request) >= needed)
    return (codes) => {
      this.#waiting.set(agent, (this.#waiting.get(agent) ?? 1) - 1)
      if (before === null || payers.length === 0 || this.#stage.violation !== null) return
      const after = this.#surroundings(machine, request)
      if (after === null || after.at - before.at >= IN_TIME_MS) return
      if (!before.same.every((value, index) => value === after.same[index])) return
      this.#stage.auditor.shared.look('REFUSAL')
      const error = codes.find((code) => !isStatus(code))
      if (error !== undefined) {
        const violation = `${machine.name} answers a request for ${request.item} with ${error} while connected`
        this.#stage.violate(new Violation('REFUSAL', violation))
        return
      }
      if (!codes.some((code) => SHORT.has(code))) return
      // Other requests may have taken this many in between.
      const sold = after.sold - before.sold
      const payer = payers.find(
        (item) => this.#rules.lineItems.includes(item) && this.#free(item, request) >= needed + sold,
      )
      if (payer === undefined) return
      const state = `${this.#free(payer, request)} of ${payer.id} are free`
      const violation = `${machine.name} refuses ${request.count} ${request.item} with ${codes.join(' ')} while connected: ${state}`
      this.#stage.violate(new Violation('REFUSAL', violation))
    }
  }

  /** Null: something disturbs the device. */
  #surroundings(machine: Machine, { instance }: PlannedRequest): Surroundings | null {
    const { agent, deps } = machine
    const { twin, auditor, time } = this.#stage
    const { shared } = auditor
    const { network, disk } = deps
    if (agent === null || disk.full || machine.diskLatencyMax > 2 || machine.sleptWithin(AWAKE_FOR_MS) > 0) return null
    const isCut = network.cutUp || network.cutDown || network.refusesSegments || network.isTwinNewer
    if (isCut || network.weather !== CALM) return null
    if (!shared.clocks.areRight(machine.name) || this.#isRecovering()) return null
    const { deviceId } = ownerOf(disk.database)
    if (deviceId === null || !shared.isServed(deviceId) || shared.suspects.has(deviceId)) return null
    const { epoch, fenced, connected, suspension, policies, rounds } = agent.link.status()
    if (!connected || fenced || suspension !== null || this.#releases(deviceId)) return null
    const instanceId = this.#rules.instanceId(instance)
    const revision = query(twin.database, 'SELECT revision FROM policy_revisions WHERE instance_id = ?')
      .pluck()
      .get(instanceId) as bigint | undefined
    const policy = policies.find((each) => each.instanceId === instanceId)
    if (revision === undefined || policy?.applied !== Number(revision)) return null
    const sold = query(twin.database, 'SELECT CAST(sum(sold) AS INTEGER) FROM accounts WHERE instance_id = ?')
      .pluck()
      .get(instanceId) as bigint | null
    return { at: time.now, same: [agent, epoch, policy.applied, rounds.failed], sold: sold ?? 0n }
  }

  #isRecovering(): boolean {
    const sql = 'SELECT 1 FROM recoveries WHERE ended_at IS NULL'
    return query(this.#stage.twin.database, sql).get() !== undefined
  }

  #releases(deviceId: string): boolean {
    const sql = 'SELECT release_requested FROM devices WHERE id = ?'
    return query(this.#stage.twin.database, sql).pluck().get(deviceId) !== 0n
  }

  /** Line items that serve the request for an hour at least, whatever happens to the others. */
  #payers(request: PlannedRequest): readonly LineItemPlan[] {
    const { instance = 0 } = request
    const dictionary = dictionaryOf(request)
    const { now } = this.#stage.time
    const { published } = this.#stage.auditor
    return this.#rules.lineItems.filter((item) => {
      const { id, state, overdraft, startsAt, endsAt } = item
      if (item.instance !== instance || state !== 'DEPLOYED' || overdraft === 'UNLIMITED') return false
      if (allowing(item, dictionary)?.allocation !== null) return false
      if (startsAt > now - 12 * HOUR || endsAt < now + 12 * HOUR) return false
      const period = published.periodAt(id, now)
      return period !== undefined && [-HOUR, HOUR].every((ms) => published.periodAt(id, now + ms) === period)
    })
  }

  /** Free tokens of the line item's pool, within the requester's limit. A pool without a row counts as empty. */
  #free({ id, instance, limit }: LineItemPlan, { requester }: PlannedRequest): bigint {
    const { twin, auditor, time } = this.#stage
    const instanceId = this.#rules.instanceId(instance)
    const account = `line/${instanceId}/${id}/${auditor.published.periodAt(id, time.now) ?? 0}`
    const rows = query(twin.database, `SELECT * FROM ${ACCOUNTS} WHERE id = ?`).all(account) as AccountRow[]
    if (rows.length === 0) return 0n
    let least: bigint | null = null
    if (limit !== null) {
      const prefix = `limit/${instanceId}/${id}/user/${requester}/`
      const sql = `SELECT * FROM ${ACCOUNTS} WHERE substr(id, 1, length(?)) = ?`
      rows.push(...(query(twin.database, sql).all(prefix, prefix) as AccountRow[]))
      least = BigInt(limit) * MICRO
    }
    for (const row of rows) {
      const reserved = unfilledReserve(twin.database, row)
      const free = (row.cap_target ?? 0n) - row.withheld - row.charged - row.granted_out - reserved
      if (least === null || free < least) least = free
    }
    return least ?? 0n
  }
}

/** Of an item, or the code of an error. */
function isStatus(code: string): boolean {
  return /^\d/.test(code)
}

/** Micro-tokens. */
function priceMax({ item, count, more = [] }: PlannedRequest): bigint {
  const prices = [{ item, count }, ...more].map((each) => {
    const name = ITEMS.find((rated) => rated === each.item)
    return name === undefined ? 0 : Math.ceil(RATES[name] * FACTOR_MAX * each.count * 1_000)
  })
  return BigInt(prices.reduce((sum, price) => sum + price, 0)) * (MICRO / 1_000n)
}
