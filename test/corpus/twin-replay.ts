/**
 * Sets a corpus case up in a twin over the service's API, sends its request, and returns the response in the form of the
 * case. Only the use so far is written to the store, because requests cannot make it.
 */
import { join } from 'node:path'
import { type AccountId, actionAccount, limitAccount, lineAccount } from '../../src/core/accounts/account.ts'
import { type Micro, decimal, formatMicro, toMicro, wholeTokens } from '../../src/core/pricing/amount.ts'
import { openSqliteStore } from '../../src/cloud/storage/sqlite/store.ts'
import { newPool, retarget } from '../../src/cloud/accounts/pool.ts'
import { ITEM_STATUS } from '../../src/protocol/service/status.ts'
import { type Reply, type Twin, pick, text } from '../cloud/harness.ts'
import type { AccountName, CorpusCase, LineItemFact } from './case-format.ts'

const VERSION = 'v1.1'

/** The parts of a decision that the API shows: status codes and numbers. Only the accounts show which action allowed it. */
export interface WireAnswer {
  readonly items: readonly {
    readonly code: string
    readonly total: number
    readonly parts: readonly { readonly lineItem: string; readonly rate: number; readonly charged: number }[]
  }[]
  /** Tokens by account, with the names of the case. */
  readonly taken: Readonly<Record<string, string>>
}

export function wantedOnTheWire({ want }: CorpusCase): WireAnswer {
  const taken = want.postings.map(({ amount, ...name }) => [wordsOf(name), amount] as const)
  return {
    items: want.items.map((item) => ({
      code: ITEM_STATUS[item.status][VERSION],
      total: item.status === 'GRANTED' ? Number(item.total) : 0,
      parts:
        item.status === 'GRANTED'
          ? item.parts.map(({ lineItem, rate, charged }) => ({
              lineItem,
              rate: Number(rate),
              charged: Number(charged),
            }))
          : [],
    })),
    taken: Object.fromEntries(taken),
  }
}

/** The twin must be a new one: rate tables and configuration are shared by all instances of it. */
export async function replay(twin: Twin, corpusCase: CorpusCase): Promise<WireAnswer> {
  const { facts, clock, mode } = corpusCase
  twin.now = setUpAt(corpusCase)
  if (facts.timezoneTolerant) {
    const body = { name: 'timezone.tolerant', value: 'true' }
    await accepted(twin.call('PATCH', `/provisioning/api/${VERSION}/configuration`, { body }))
  }
  for (const table of facts.rateTables) {
    const items = table.items.map(({ name, version, ...price }) => ({
      name,
      ...given({ version }),
      ...('rate' in price ? { rate: exact(price.rate) } : price),
    }))
    const body = {
      ...given({ series: table.series }),
      version: table.version,
      effectiveFrom: table.effectiveFrom,
      items,
    }
    await accepted(twin.call('POST', `/provisioning/api/${VERSION}/rate-tables`, { body }))
  }
  const instance = await twin.instance()
  const conditions = await saveConditions(twin, instance, facts.conditions)
  const accounts = new Map<AccountId, string>()
  const pools: { account: AccountId; cap: Micro | null; used: Micro }[] = []
  for (const item of facts.lineItems) {
    const actions = await saveLineItem(twin, instance, item, conditions)
    const cap = item.overdraft === 'Unlimited' ? null : wholeTokens(item.quantity + item.overdraft)
    for (const { index, used = '0' } of item.reset?.periods ?? [{ index: 0, used: item.used }]) {
      const account = lineAccount(instance, item.id, index)
      accounts.set(account, wordsOf({ line: item.id, period: index }))
      pools.push({ account, cap, used: micro(used) })
    }
    for (const [position, action] of item.actions.entries()) {
      if (action.allocation === undefined) continue
      const account = actionAccount(instance, item.id, actions[position] ?? '')
      accounts.set(account, wordsOf({ action: `${item.id}: ${action.name}` }))
      pools.push({ account, cap: micro(action.allocation), used: micro(action.used) })
    }
    const limit = item.consumptionLimit
    if (limit === undefined) continue
    const { type, value } = corpusCase.request.requester
    for (const { index } of limit.periods) {
      const account = limitAccount(instance, item.id, { type, value }, index)
      accounts.set(account, wordsOf({ limit: item.id, requester: { type, value }, period: index }))
    }
    for (const { requester, period, used } of limit.used) {
      const account = limitAccount(instance, item.id, requester, period)
      pools.push({ account, cap: micro(limit.limit), used: micro(used) })
    }
  }
  await saveUse(twin, pools)

  twin.now = clock.now
  const reply =
    mode === 'BEST_EFFORT' ? await oneOff(twin, instance, corpusCase) : await inSession(twin, instance, corpusCase)
  const used = new Map(pools.map((pool) => [pool.account, pool.used]))
  return { items: itemsOf(reply), taken: await takenSince(twin, instance, corpusCase, accounts, used) }
}

/** Resets and limits are counted from when they are set up: before the first of their instants. */
function setUpAt({ facts, clock }: CorpusCase): number {
  const firsts = facts.lineItems.flatMap(({ reset, consumptionLimit }) => [
    reset?.periods[0]?.until ?? clock.now,
    consumptionLimit?.periods[0]?.until ?? clock.now,
  ])
  return Math.min(clock.now, ...firsts.map((first) => first - 1))
}

async function saveConditions(
  twin: Twin,
  instance: string,
  facts: CorpusCase['facts']['conditions'],
): Promise<ReadonlyMap<string, string>> {
  if (facts.length === 0) return new Map()
  const path = `/api/${VERSION}/instances/${instance}/conditions`
  const { body } = await accepted(twin.call('POST', path, { body: facts }))
  return new Map(facts.map(({ name }, index) => [name, text(body, index, 'id')]))
}

/** Returns the ids of the actions in their order. */
async function saveLineItem(
  twin: Twin,
  instance: string,
  item: LineItemFact,
  conditions: ReadonlyMap<string, string>,
): Promise<readonly string[]> {
  const { overdraft } = item
  const attributes = {
    elastic: item.elastic,
    rateTableSeries: item.rateTableSeries,
    ...(overdraft === 'Unlimited' ? { overdraftType: 'Unlimited' } : {}),
    ...(typeof overdraft === 'number' && overdraft > 0 ? { overdraftType: 'Number', overdraftLimit: overdraft } : {}),
    ...(item.reset === undefined ? {} : { resetFrequency: item.reset.frequency }),
  }
  const { id: activationId, start, end, quantity } = item
  const change = { activationId, start, end, quantity, attributes }
  await accepted(twin.lineItem(instance, change))
  if (item.state !== 'DEPLOYED') await accepted(twin.lineItem(instance, { ...change, state: item.state }))
  const path = `/api/${VERSION}/instances/${instance}/line-items/${encodeURIComponent(item.id)}`
  if (item.consumptionLimit !== undefined) {
    const { limit, frequency, periods } = item.consumptionLimit
    const body = { limit: exact(limit), frequency, nextReset: periods[0]?.until }
    await accepted(twin.call('PUT', `${path}/consumption-limit`, { body }))
  }
  if (item.actions.length === 0) return []
  const actions = item.actions.map(({ name, condition, action, allocation }) => ({
    name,
    ...(condition === undefined ? {} : { conditionId: conditions.get(condition) }),
    action,
    ...(allocation === undefined ? {} : { allocation: exact(allocation) }),
  }))
  const { body } = await accepted(twin.call('POST', `${path}/actions`, { body: actions }))
  return actions.map((_, index) => text(body, index, 'id'))
}

async function saveUse(
  twin: Twin,
  pools: readonly { account: AccountId; cap: Micro | null; used: Micro }[],
): Promise<void> {
  const store = openSqliteStore({
    path: join(twin.settings.store.path, 'twin.db'),
    check: false,
    onBroken: (error) => {
      throw error instanceof Error ? error : new Error(String(error))
    },
  })
  try {
    await store.transaction(async (tx) => {
      for (const { account, cap, used } of pools) {
        if (used === 0n) continue
        await tx.accounts.open([{ account, cap }])
        // Retargeting is what cuts a quantity below its use.
        await tx.accounts.save([retarget({ ...newPool(account, used), charged: used }, cap)])
      }
    })
  } finally {
    await store.close()
  }
}

function bodyOf({ request }: CorpusCase) {
  const { type, value, dictionary } = request.requester
  return {
    requester: { type, value, ...(dictionary === undefined ? {} : { dictionary }) },
    requestedItems: request.items.map(({ item, version, count, variables }) => ({
      item,
      ...(version === undefined ? {} : { version }),
      count: exact(count),
      ...(variables === undefined
        ? {}
        : { variables: Object.fromEntries(Object.entries(variables).map(([name, number]) => [name, exact(number)])) }),
    })),
  }
}

async function oneOff(twin: Twin, instance: string, corpusCase: CorpusCase): Promise<Reply> {
  const path = `/elastic/api/${VERSION}/instances/${instance}/access-request`
  return accepted(twin.call('POST', path, { body: bodyOf(corpusCase) }))
}

/** A refused request in a session has the status 403 and the body of a granted one. */
async function inSession(twin: Twin, instance: string, corpusCase: CorpusCase): Promise<Reply> {
  const path = `/api/${VERSION}/sessions`
  const { body: session } = await accepted(twin.call('POST', path, { body: { instanceId: instance } }))
  const body = { ...bodyOf(corpusCase), rollbackOnDeny: true }
  return accepted(twin.call('PUT', `${path}/${text(session, 'sessionId')}`, { body }), [200, 403])
}

function itemsOf({ body }: Reply): WireAnswer['items'] {
  return listAt(body, 'requestedItems').map((item) => ({
    code: text(item, 'status', 'code'),
    total: Number(pick(item, 'totalTokensCharged')),
    parts: listAt(item, 'lineItems').map((part) => ({
      lineItem: text(part, 'activationId'),
      rate: Number(pick(part, 'rate')),
      charged: Number(pick(part, 'tokensCharged')),
    })),
  }))
}

function listAt(value: unknown, key: string): readonly unknown[] {
  const list = pick(value, key)
  if (!Array.isArray(list)) throw new Error(`there is no list at ${key} of ${JSON.stringify(value)}`)
  return list as readonly unknown[]
}

async function takenSince(
  twin: Twin,
  instance: string,
  { facts }: CorpusCase,
  names: ReadonlyMap<AccountId, string>,
  used: ReadonlyMap<AccountId, Micro>,
): Promise<Readonly<Record<string, string>>> {
  const taken: [string, string][] = []
  for (const { id } of facts.lineItems) {
    for (const { account, charged } of await twin.read((reader) => reader.accounts.ofLineItem(instance, id))) {
      const amount = charged - (used.get(account) ?? 0n)
      if (amount !== 0n) taken.push([names.get(account) ?? account, formatMicro(amount)])
    }
  }
  return Object.fromEntries(taken)
}

/** The same text for a wanted posting and for the pool of its account. */
function wordsOf({ line, action, limit, requester, period = 0 }: AccountName): string {
  if (line !== undefined) return `line ${line} ${period}`
  if (action !== undefined) return `action ${action}`
  return `limit ${limit ?? ''} ${requester?.type ?? ''} ${requester?.value ?? ''} ${period}`
}

async function accepted(call: Promise<Reply>, statuses: readonly number[] = [200, 201]): Promise<Reply> {
  const reply = await call
  if (!statuses.includes(reply.status)) throw new Error(`the twin answered ${reply.status}: ${reply.text}`)
  return reply
}

/** Omits empty fields: an empty version or series is a missing one. */
function given<T extends Readonly<Record<string, string>>>(fields: T): Partial<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== '')) as Partial<T>
}

/** A JSON number of exactly this text. */
function exact(value: string): number {
  const { rawJSON } = JSON as unknown as { rawJSON: (source: string) => number }
  return rawJSON(value)
}

function micro(value: string): Micro {
  return toMicro(decimal(value))
}
