// The cloud's use cases over a store, as the API calls them.
import { randomUUID } from 'node:crypto'
import { renewDuePolicy } from '../../../src/cloud/policy/bump-policy-revision.ts'
import { type LoadedPolicy, Policies } from '../../../src/cloud/policy/load-policy.ts'
import { replaceActions } from '../../../src/cloud/service-api/change-actions.ts'
import { createConditions } from '../../../src/cloud/service-api/change-conditions.ts'
import { chargeIntervalMs } from '../../../src/cloud/policy/configuration.ts'
import { changeConfiguration } from '../../../src/cloud/service-api/change-configuration.ts'
import { createRateTable } from '../../../src/cloud/service-api/change-rate-tables.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import { mapLineItem } from '../../../src/cloud/service-api/map-line-item.ts'
import { AccessBatcher } from '../../../src/cloud/service-api/request-access.ts'
import { setConsumptionLimit } from '../../../src/cloud/service-api/set-consumption-limit.ts'
import { commandSession } from '../../../src/cloud/sessions/command-session.ts'
import {
  type SessionDeps,
  closeSession,
  heartbeat,
  openSession,
  requestInSession,
  sweepNextSession,
} from '../../../src/cloud/sessions/session-life.ts'
import type { UsageRecord } from '../../../src/cloud/storage/records.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { type Session, nextDue } from '../../../src/core/sessions/session.ts'
import { decimal, toMicro } from '../../../src/core/pricing/amount.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { accessRequestBody, requestOf, sessionAccessRequestBody } from '../../../src/protocol/service/access-request.ts'
import { accessResponseText } from '../../../src/protocol/service/access-response-text.ts'
import { actionsProblem } from '../../../src/protocol/service/actions.ts'
import { conditionsBody } from '../../../src/protocol/service/conditions.ts'
import { parseLineItem } from '../../../src/protocol/service/line-items.ts'
import { rateTableBody } from '../../../src/protocol/service/rate-tables.ts'
import type { ApiVersion } from '../../../src/protocol/service/status.ts'
import { cloudShortages } from '../../cloud/sync/grants/shortages.ts'
import { listUsage } from '../../cloud/usage/list-usage.ts'
import {
  type ActionDraw,
  LINE_ITEMS,
  type LimitDraw,
  type LineDraw,
  type LineItemId,
  type Operation,
  type SiteDraw,
  type TableDraw,
} from './random-site.ts'

const DAY = 86_400_000
const TOKENS_MAX = 9_223_372_036_854
const MICRO = 1_000_000n

export type Command = Extract<Operation, { kind: 'command' }>['command']

export class CloudSide {
  readonly instanceId = randomUUID()
  readonly #store: Store
  readonly #now: () => number
  readonly #begin: number
  readonly #policies = new Policies({ max: 10, undecidedClock: 'refuse' })
  readonly #sessions: SessionDeps
  readonly #access: AccessBatcher
  #conditionIds: readonly string[] = []
  #made = 0

  constructor(store: Store, now: () => number) {
    this.#store = store
    this.#now = now
    this.#begin = now()
    const policies = this.#policies
    const parts = { store, policies, shortages: cloudShortages() }
    this.#sessions = { ...parts, newId: randomUUID, sessionIntervalMs: null, trustsClock: () => true }
    this.#access = new AccessBatcher({ ...parts, defer: setImmediate })
  }

  async setUp({ tables, lines, conditions, actions, limits }: SiteDraw): Promise<void> {
    const now = this.#now()
    const deps = { store: this.#store, newId: randomUUID }
    await createInstance(this.#store, { id: this.instanceId, shortName: 's', accountId: 'customer' }, now)
    const created = await createConditions(deps, this.instanceId, conditionsBody.parse(conditions), now)
    this.#conditionIds = created.map(({ id }) => id)
    const usual = [['Print', '', { rate: 1 }] as const, ['Scan', '', { rate: 0.3 }] as const]
    await this.createTable({ series: '', inMs: -3 * DAY, items: usual })
    for (const each of tables) await this.createTable(each)
    for (const [index, id] of LINE_ITEMS.entries()) {
      const [line, own, limit] = [lines[index], actions[index], limits[index]]
      if (line !== undefined) await this.map(id, line)
      if (own !== undefined) await this.setActions(id, own)
      if (limit !== undefined && limit !== null) await this.setLimit(id, limit)
    }
  }

  async createTable({ series, inMs, items }: TableDraw): Promise<void> {
    const body = rateTableBody['v1.1'].parse({
      series,
      version: String((this.#made += 1)),
      effectiveFrom: this.#now() + inMs,
      items: items.map(([name, version, price]) => ({ name, version, ...price })),
    })
    await createRateTable(this.#store, body, this.#now())
  }

  /** Never lowers a cap: a device keeps the tokens that it has, and would decide otherwise. */
  async map(activationId: LineItemId, line: LineDraw): Promise<void> {
    const known = await this.#store.read((reader) => reader.lineItems.get(this.instanceId, activationId))
    const wholeOf = (amount: bigint | null | undefined): number => Number((amount ?? 0n) / MICRO)
    const quantity = Math.max(line.quantity, wholeOf(known?.quantity))
    const isUnlimited = known === undefined ? line.overdraft === 'Unlimited' : known.overdraftType === 'Unlimited'
    const wanted = typeof line.overdraft === 'number' ? line.overdraft : 0
    const overdraftLimit = Math.min(Math.max(wanted, wholeOf(known?.overdraftLimit)), TOKENS_MAX - quantity)
    const start = this.#begin + line.startsIn
    const parsed = parseLineItem('v1.1', this.instanceId, {
      activationId,
      state: known === undefined ? 'DEPLOYED' : line.state,
      quantity,
      start,
      end: start + line.lasts,
      attributes: {
        elastic: line.elastic,
        rateTableSeries: line.series,
        resetFrequency: line.reset,
        ...(isUnlimited ? { overdraftType: 'Unlimited' } : { overdraftType: 'Number', overdraftLimit }),
      },
    })
    if (!parsed.ok) throw new Error(parsed.problems.map(({ text }) => text).join())
    await mapLineItem(this.#store, this.instanceId, parsed.body, this.#now())
  }

  async setActions(lineItemId: LineItemId, draws: readonly ActionDraw[]): Promise<void> {
    const wanted = draws.map(({ condition, effect, allocation }) => {
      const conditionId = condition === null ? undefined : this.#conditionIds[condition]
      return {
        action: effect,
        ...(conditionId === undefined ? {} : { conditionId }),
        ...(allocation === null ? {} : { allocation: toMicro(decimal(allocation)) }),
      }
    })
    if (actionsProblem(wanted, new Set(this.#conditionIds)) !== undefined) return
    const place = { instanceId: this.instanceId, lineItemId }
    await replaceActions({ store: this.#store, newId: randomUUID }, place, wanted, this.#now())
  }

  /** With another reset each time, so that the counts begin anew and no cap falls. */
  async setLimit(lineItemId: LineItemId, { tokens, frequency, resetInMs }: LimitDraw): Promise<void> {
    const now = this.#now()
    const nextReset = now + resetInMs + (this.#made += 1)
    const terms = { limit: toMicro(decimal(tokens)), frequency, nextReset }
    await setConsumptionLimit(this.#store, { instanceId: this.instanceId, lineItemId }, terms, now)
  }

  async configure({ name, value }: Extract<Operation, { kind: 'configuration' }>): Promise<void> {
    await changeConfiguration(this.#store, [{ name, value }], 'administrator', this.#now())
  }

  async rules(at = this.#now()): Promise<{ readonly loaded: LoadedPolicy; readonly sessionIntervalMs: number }> {
    while (await this.#store.transaction((tx) => renewDuePolicy(tx, at))) continue
    return this.#store.read(async (reader) => {
      const loaded = await this.#policies.of(reader, this.instanceId)
      if (loaded === undefined) throw new Error('the instance has rules')
      return { loaded, sessionIntervalMs: await chargeIntervalMs(reader) }
    })
  }

  async access(version: ApiVersion, text: string): Promise<string> {
    const body = accessRequestBody[version].parse(JSON.parse(text))
    const order = { instanceId: this.instanceId, ...chargeOf(body) }
    const decision = await this.#access.request(order, this.#now())
    return accessResponseText(version, order.correlationId, order.request, decision)
  }

  async open(): Promise<string> {
    const order = { instanceId: this.instanceId, deviceId: null, opening: null }
    return (await openSession(this.#sessions, order, this.#now())).id
  }

  async request(sessionId: string, text: string): Promise<string> {
    const body = sessionAccessRequestBody['v1.1'].parse(JSON.parse(text))
    const order = { sessionId, rollbackOnDeny: body.rollbackOnDeny, ...chargeOf(body) }
    const answer = await requestInSession(this.#sessions, order, anybody, this.#now())
    if (!answer.operable) return answer.session.state
    const { correlationId, request } = order
    return `${answer.granted ? 200 : 403} ${accessResponseText('v1.1', correlationId, request, answer.decision)}`
  }

  async heartbeat(id: string): Promise<string> {
    const { operable, session } = await heartbeat(this.#sessions, id, anybody, this.#now())
    return operable ? '204' : session.state
  }

  async close(id: string): Promise<string> {
    const { operable, session } = await closeSession(this.#sessions, id, anybody, this.#now())
    return operable ? '204' : session.state
  }

  /** A device ignores a command for a session that has ended. */
  async command(id: string, command: Command): Promise<void> {
    await commandSession(this.#sessions, { id, command }, this.#now()).catch((error: unknown) => {
      if (!(error instanceof CodedError)) throw error
    })
  }

  async sweep(): Promise<void> {
    while (await sweepNextSession(this.#sessions, this.#now())) continue
  }

  session(id: string): Promise<Session | undefined> {
    return this.#store.read((reader) => reader.sessions.get(id))
  }

  async nextDue(ids: readonly string[]): Promise<number> {
    const sessions = await Promise.all(ids.map((id) => this.session(id)))
    return Math.min(...sessions.map((session) => (session === undefined ? Infinity : nextDue(session))))
  }

  async charged(): Promise<readonly (readonly [account: string, amount: bigint])[]> {
    return this.#store.read(async ({ accounts }) => {
      const pools = await Promise.all(LINE_ITEMS.map((id) => accounts.ofLineItem(this.instanceId, id)))
      return pools.flat().flatMap(({ account, charged }) => (charged > 0n ? [[account, charged] as const] : []))
    })
  }

  async usage(): Promise<readonly UsageRecord[]> {
    const { instanceId } = this
    return (await this.#store.read((reader) => listUsage(reader, { instanceId, limit: 1_000_000 }))).records
  }
}

const anybody = (): void => undefined

function chargeOf(body: Parameters<typeof requestOf>[0]) {
  const metaData = body.requestedItems.map(({ metaData: own }) => (own === undefined ? null : JSON.stringify(own)))
  return { correlationId: randomUUID(), request: requestOf(body), metaData }
}
