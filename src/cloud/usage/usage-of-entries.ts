/**
 * Usage records of device entries: one per charged or refunded share, per refused item, and per line item for tokens
 * lost in a power cut.
 */
import { parseAccount } from '../../core/accounts/account.ts'
import { type Micro, parseDecimal } from '../../core/pricing/amount.ts'
import type { UsageRecord, UsageSource } from '../storage/records.ts'
import type { OpenedEntry } from '../sync/open-segment.ts'

export interface UsageInputs {
  readonly deviceId: string
  readonly epoch: number
  readonly writeTime: number
  readonly accountIdOf: (instanceId: string) => string
  /** Null for an unknown line item. */
  readonly quantityOf: (instanceId: string, lineItemId: string) => Micro | null
  /** An account's usage before the first entry. */
  readonly usedBefore: (account: string) => Micro
}

/** In the sequence of the entries; running totals continue from `usedBefore`. */
export function usageOfEntries(entries: readonly OpenedEntry[], inputs: UsageInputs): readonly UsageRecord[] {
  const totals = new Map<string, Micro>()
  const advance = (account: string | undefined, tokens: Micro): Micro | null => {
    if (account === undefined) return null
    const total = (totals.get(account) ?? inputs.usedBefore(account)) + tokens
    totals.set(account, total)
    return total
  }
  return entries.flatMap(({ n, body }) => {
    const { correlationId, at, requester, instanceId } = body
    const common = {
      correlationId,
      usageTime: at,
      writeTime: inputs.writeTime,
      requesterType: requester.type,
      requesterValue: requester.value,
      accountId: inputs.accountIdOf(instanceId),
      instanceId,
      source: sourceOf(n, body, inputs),
    }
    if (body.kind === 'burn') {
      const nothing = { item: '', version: '', count: { digits: 0n, scale: 0 }, metaData: null }
      return body.postings.flatMap(({ account, amount }): UsageRecord[] => {
        const parsed = parseAccount(account)
        if (parsed?.kind !== 'line') return []
        const { lineItemId } = parsed
        const quantity = inputs.quantityOf(instanceId, lineItemId)
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
        quantity: inputs.quantityOf(instanceId, lineItemId),
        used: advance(accounts.get(lineItemId), sign * charged),
        tokens: sign * charged,
      }))
    })
  })
}

/** Absent for text that is not a decimal: a device wrote it. */
function rateOf(text: string): Pick<UsageRecord, 'rate'> {
  const rate = parseDecimal(text)
  return rate === undefined ? {} : { rate }
}

function sourceOf(entry: number, { session }: OpenedEntry['body'], { deviceId, epoch }: UsageInputs): UsageSource {
  const source = { kind: 'device', deviceId, epoch, entry } as const
  return session === undefined ? source : { ...source, sessionId: session.id }
}

/** The device renews sessions itself: there is no client request. */
function operationOf({ kind, session }: OpenedEntry['body']): UsageRecord['operation'] {
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
