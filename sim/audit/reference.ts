/**
 * A second opinion on recorded decisions: what a plain evaluator, which shares no code with the engine, would have decided
 * by the same rules. Line items are assumed to have had exactly what they paid.
 */
import type { Posting } from '../../src/core/accounts/account.ts'
import { decimal, formatDecimal } from '../../src/core/pricing/amount.ts'
import type { Mode } from '../../src/core/rules/decide.ts'
import type { AvailableBalance, ClockReading } from '../../src/core/rules/decision.ts'
import type { Policy } from '../../src/core/rules/policy.ts'
import { type NaiveOutcome, naiveDecide } from '../../test/core/rules/naive-evaluator.ts'
import type { MetaData } from '../request-body.ts'
import { Books } from './books.ts'
import { lineOf } from './records.ts'
import { Violation } from './violation.ts'

export interface RecordedItem {
  readonly item: string
  readonly version: string
  /** Decimal text. */
  readonly count: string
  readonly outcome: string
  readonly parts: readonly { readonly lineItemId: string; readonly rate: string; readonly charged: bigint }[]
  readonly metaData: MetaData
}

export interface RecordedDecision {
  /** In messages. */
  readonly name: string
  readonly requester: { readonly type: string; readonly value: string }
  readonly clock: ClockReading
  readonly mode: Mode
  readonly items: readonly RecordedItem[]
}

/** Refusals that depend on balances, which the auditor does not know. */
export const SHORT: ReadonlySet<string> = new Set([
  'INSUFFICIENT_TOKENS',
  'ALLOCATION_EXHAUSTED',
  'CONSUMPTION_LIMIT_REACHED',
  'GRANT_EXHAUSTED',
  'GRANT_EXPIRED',
  'DEVICE_REFUSED',
  'POOL_IN_RECOVERY',
  'COUNTER_FULL',
  // In a session, because of another item.
  'NOT_CHARGED',
])

/**
 * The accounts that the decision charges.
 * @param rules that can have been in force
 * @throws Violation if it follows from none of them
 */
export function decideAgain(recorded: RecordedDecision, rules: readonly Policy[]): readonly Posting[] {
  const { name, requester, clock, mode, items } = recorded
  const [first] = items
  const paid = new Books()
  for (const { lineItemId, charged } of items.flatMap(({ parts }) => parts)) paid.add(lineItemId, charged)
  const availableOf = (account: string): AvailableBalance => {
    const left = account.startsWith('line/') ? paid.get(lineOf(account)) : 'UNLIMITED'
    return { left, shortage: 'POOL' }
  }
  const request = {
    requester: { ...requester, dictionary: first?.metaData.dictionary ?? {} },
    items: items.map((each) => ({ name: each.item, version: each.version, count: decimal(each.count) })),
  }
  const said = items.map(wordsOfRecorded).join(', ')
  const others: string[] = []
  for (const policy of rules) {
    const decision = naiveDecide(policy, request, clock, availableOf, mode)
    const words = decision.items.map(wordsOfOutcome).join(', ')
    if (words === said) return decision.postings
    others.push(words)
  }
  throw new Violation(
    'DECISION',
    `${name} is decided as ${said}, but its rules say ${others.join(' or ') || 'nothing'}`,
  )
}

function wordsOfRecorded({ outcome, parts }: RecordedItem): string {
  if (outcome === 'GRANTED')
    return parts.map((part) => `${part.charged} by ${part.lineItemId} at ${part.rate}`).join(' + ')
  return SHORT.has(outcome) ? 'SHORT' : outcome
}

function wordsOfOutcome(outcome: NaiveOutcome): string {
  if (outcome.outcome === 'GRANTED') {
    return outcome.shares
      .map(({ lineItemId, charged, rate }) => `${charged} by ${lineItemId} at ${formatDecimal(rate)}`)
      .join(' + ')
  }
  const words = outcome.outcome === 'REFUSED' ? outcome.reason : outcome.outcome
  return SHORT.has(words) ? 'SHORT' : words
}
