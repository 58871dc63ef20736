/** One record per charged or refunded share, per refused item, and per line item for tokens lost in a power cut. */
import { parseAccount } from '../../core/accounts/account.ts'
import { type Micro, parseDecimal } from '../../core/pricing/amount.ts'
import type { EntryBody } from '../../protocol/edge/sync.ts'
import type { DeliveryInputs, DeliverySums, UsageSum } from '../storage/device-records.ts'
import type { UsageRecord, UsageSource } from '../storage/records.ts'

export interface BilledEntry {
  readonly n: number
  readonly body: EntryBody
}

export interface UsageInputs extends DeliveryInputs {
  readonly deviceId: string
  readonly epoch: number
}

/** In the sequence of the entries; running totals continue from `used`. */
export function usageOfEntries(entries: readonly BilledEntry[], inputs: UsageInputs): readonly UsageRecord[] {
  const totals = new Map<string, Micro>()
  const advance = (account: string | undefined, tokens: Micro): Micro | null => {
    if (account === undefined) return null
    const total = (totals.get(account) ?? inputs.used.get(account) ?? 0n) + tokens
    totals.set(account, total)
    return total
  }
  const quantityOf = (instanceId: string, lineItemId: string): Micro | null =>
    inputs.quantities.get(`${instanceId}/${lineItemId}`) ?? null
  return entries.flatMap(({ n, body }) => {
    const { correlationId, at, requester, instanceId } = body
    const common = {
      correlationId,
      usageTime: at,
      writeTime: inputs.writeTime,
      requesterType: requester.type,
      requesterValue: requester.value,
      accountId: inputs.accountIds.get(instanceId) ?? '',
      instanceId,
      source: sourceOf(n, body, inputs),
    }
    if (body.kind === 'burn') {
      const nothing = { item: '', version: '', count: { digits: 0n, scale: 0 }, metaData: null }
      return body.postings.flatMap(({ account, amount }): UsageRecord[] => {
        const parsed = parseAccount(account)
        if (parsed?.kind !== 'line') return []
        const { lineItemId } = parsed
        const quantity = quantityOf(instanceId, lineItemId)
        const used = advance(account, amount)
        const burnt = { activationId: lineItemId, quantity, used, tokens: amount }
        return [{ ...common, ...nothing, ...burnt, operation: 'BURN', status: 'BURNED' }]
      })
    }
    const sign = body.kind === 'refund' ? -1n : 1n
    const accounts = lineAccounts(body.postings.map(({ account }) => account))
    return body.items.flatMap((item): UsageRecord[] => {
      const ofItem = {
        ...common,
        item: item.item,
        version: item.version,
        count: parseDecimal(item.count) ?? { digits: 0n, scale: 0 },
        operation: operationOf(body),
        status: body.kind === 'refund' ? 'REFUNDED' : item.outcome,
        metaData: item.metaData === undefined ? null : JSON.stringify(item.metaData),
      }
      if (item.parts.length === 0) return [{ ...ofItem, activationId: null, quantity: null, used: null, tokens: 0n }]
      return item.parts.map(({ lineItemId, charged, rate }) => ({
        ...ofItem,
        ...rateOf(rate),
        activationId: lineItemId,
        quantity: quantityOf(instanceId, lineItemId),
        used: advance(accounts.get(lineItemId), sign * charged),
        tokens: sign * charged,
      }))
    })
  })
}

/** The sums of the same records, without making them. Without entries all are 0. */
export function sumUsage(entries: readonly BilledEntry[]): DeliverySums {
  const lines = new Map<string, UsageSum>()
  const add = (operation: UsageRecord['operation'], status: string, records: number, tokens: Micro): void => {
    const key = `${operation} ${status}`
    const sum = lines.get(key)
    lines.set(key, {
      operation,
      status,
      records: (sum?.records ?? 0) + records,
      tokens: (sum?.tokens ?? 0n) + tokens,
    })
  }
  const automaticCharges = { charged: 0, refused: 0 }
  let refunds = 0
  let [from, to] = [Infinity, 0]
  for (const { body } of entries) {
    const { kind, at, items, postings } = body
    from = Math.min(from, at)
    to = Math.max(to, at)
    if (kind === 'burn') {
      for (const { account, amount } of postings) {
        if (parseAccount(account)?.kind === 'line') add('BURN', 'BURNED', 1, amount)
      }
      continue
    }
    const operation = operationOf(body)
    for (const { outcome, parts } of items) {
      const tokens = parts.reduce((sum, { charged }) => sum + charged, 0n)
      const records = Math.max(1, parts.length)
      if (kind === 'refund') add(operation, 'REFUNDED', records, -tokens)
      else add(operation, outcome, records, tokens)
    }
    if (operation === 'REFUND' && items.length > 0) refunds += 1
    if (operation === 'AUTOMATIC_CHARGE' && items.length > 0) {
      automaticCharges[items.every(({ outcome }) => outcome === 'GRANTED') ? 'charged' : 'refused'] += 1
    }
  }
  const instances = new Set(entries.map(({ body }) => body.instanceId))
  return {
    records: [...lines.values()].reduce((sum, { records }) => sum + records, 0),
    instanceId: instances.size === 1 ? (entries[0]?.body.instanceId ?? null) : null,
    from: Math.min(from, to),
    to,
    lines: [...lines.values()],
    refunds,
    automaticCharges,
  }
}

/** Absent for text that is not a rate: a device wrote it. */
function rateOf(text: string): Pick<UsageRecord, 'rate'> {
  const rate = parseDecimal(text)
  return rate === undefined || rate.digits < 0n ? {} : { rate }
}

function sourceOf(entry: number, { session }: EntryBody, { deviceId, epoch }: UsageInputs): UsageSource {
  const source = { kind: 'device', deviceId, epoch, entry } as const
  return session === undefined ? source : { ...source, sessionId: session.id }
}

/** The device renews sessions itself: there is no client request. */
function operationOf({ kind, session }: EntryBody): UsageRecord['operation'] {
  if (kind === 'refund') return 'REFUND'
  return session?.event === 'RENEWED' || session?.event === 'NOT_RENEWED' ? 'AUTOMATIC_CHARGE' : 'REQUEST'
}

/** The account of each charged line item; a decision charges one period of a line item only. */
function lineAccounts(accounts: readonly string[]): ReadonlyMap<string, string> {
  const found = new Map<string, string>()
  for (const account of accounts) {
    const parsed = parseAccount(account)
    if (parsed?.kind === 'line') found.set(parsed.lineItemId, account)
  }
  return found
}
