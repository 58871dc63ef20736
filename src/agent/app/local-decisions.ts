/**
 * Decides a request on the balances of the device: one-off requests, session requests and automatic charges of sessions all
 * come through here. Where the grant falls short and the cloud can be asked, a top-up is waited for; where the cloud cannot
 * be asked, the offline policy of essential line items counts as well.
 */
import type { AccountId, Posting } from '../../core/account.ts'
import type { Micro } from '../../core/amount.ts'
import { type Mode, decide } from '../../core/decide.ts'
import type { AccessRequest, ClockReading, Decision, RefusalReason, RoomOf } from '../../core/decision.ts'
import { type Want, sumPostings } from '../../core/grant.ts'
import type { Policy } from '../../core/policy.ts'
import { RoomsSeen } from './facts.ts'
import type { Ledger } from './ledger.ts'
import type { PolicyInForce } from './policy-board.ts'
import { type RulesParts, requireRules } from './require-rules.ts'

export interface LocalDecisionsParts extends RulesParts {
  readonly ledger: Pick<Ledger, 'standing' | 'roomAt' | 'roomAboveGrant' | 'allowancesOf' | 'aboveGrant'>
  readonly clock: { reading(): ClockReading; sinceBoot(): number }
  readonly topUps: RulesParts['topUps'] & {
    /** Never rejects; resolves at once when the cloud is out of reach. */
    requestGrant(wants: readonly Want[], deadlineMs: number): Promise<void>
  }
  /** How long a request may wait for a top-up, ms. */
  readonly topUpDeadlineMs: number
}

export interface Question {
  /** In lower case. */
  readonly instanceId: string
  readonly request: AccessRequest
  readonly mode: Mode
  /** By account, what is refunded together with the charge, so that the charge may spend it. Absent: nothing. */
  readonly refundAt?: (reading: ClockReading) => ReadonlyMap<AccountId, Micro>
}

/** One look at the rules and the balances; what it saw holds until something is awaited. */
export interface Attempt {
  readonly policy: PolicyInForce
  readonly reading: ClockReading
  readonly seen: RoomsSeen
  readonly decision: Decision
  /** By account, how much of its posting the grant does not hold. */
  readonly above: ReadonlyMap<AccountId, Micro>
  /** By account, how far it may be used above the grant for that. */
  readonly allowances: ReadonlyMap<AccountId, Micro>
}

/** Rounds with the cloud that one request may wait for: the second is for what only the first brought into sight. */
const TOP_UPS_MAX = 2

const NOTHING: ReadonlyMap<AccountId, Micro> = new Map()

export class LocalDecisions {
  readonly #parts: LocalDecisionsParts

  constructor(parts: LocalDecisionsParts) {
    this.#parts = parts
  }

  /**
   * Rejects or throws with the codes of {@link requireRules}, and as `take` does. Without a top-up nothing is awaited: an
   * async function would cost a good part of a decision.
   *
   * @param take records what was decided, in the same synchronous block: others charge the same accounts
   */
  decide<T>(question: Question, take: (attempt: Attempt) => Promise<T>): Promise<T> {
    const attempt = this.#attempt(question, false)
    const wants = wantsOf(attempt.decision)
    if (wants.length === 0) return take(this.#unlessOffline(question, attempt, false))
    return this.#topUpAndDecide(question, attempt, wants, take)
  }

  async #topUpAndDecide<T>(
    question: Question,
    first: Attempt,
    lacking: readonly Want[],
    take: (attempt: Attempt) => Promise<T>,
  ): Promise<T> {
    const { clock, topUps, topUpDeadlineMs } = this.#parts
    const until = clock.sinceBoot() + topUpDeadlineMs
    let attempt = first
    let wants = lacking
    for (let done = 0; done < TOP_UPS_MAX && wants.length > 0; done += 1) {
      const patienceMs = until - clock.sinceBoot()
      if (patienceMs <= 0) break
      await topUps.requestGrant(wants, patienceMs)
      attempt = this.#attempt(question, false)
      wants = wantsOf(attempt.decision)
    }
    const isUnanswered = clock.sinceBoot() >= until
    return take(this.#unlessOffline(question, attempt, isUnanswered))
  }

  /**
   * Where the cloud cannot be asked, the offline policy of essential line items has the last word on tokens that fall short.
   *
   * @param isUnanswered the cloud was asked, and has not answered in time
   */
  #unlessOffline(question: Question, attempt: Attempt, isUnanswered: boolean): Attempt {
    if (!isShort(attempt.decision) || !isAnyEssential(attempt.policy.compiled.policy)) return attempt
    if (!isUnanswered && this.#parts.topUps.status().connected) return attempt
    return this.#attempt(question, true)
  }

  #attempt({ instanceId, request, mode, refundAt }: Question, aboveGrant: boolean): Attempt {
    const { clock, ledger } = this.#parts
    const reading = clock.reading()
    const policy = requireRules(this.#parts, instanceId, reading)
    const rules = policy.compiled.policy
    const refund = refundAt === undefined ? NOTHING : refundAt(reading)
    const roomOf: RoomOf = aboveGrant ? ledger.roomAboveGrant(reading, rules, refund) : ledger.roomAt(reading, refund)
    const seen = new RoomsSeen(roomOf)
    const decision = decide(policy.compiled, request, reading, seen.of, mode)
    const above = decision.caveats.includes('ESSENTIAL_OFFLINE')
      ? aboveGrantOf(ledger, decision.postings, refund)
      : NOTHING
    const allowances = above.size === 0 ? NOTHING : ledger.allowancesOf(above.keys(), rules)
    return { policy, reading, seen, decision, above, allowances }
  }
}

/** What a decision charges, over all its items. */
export function tokensOf({ items }: Pick<Decision, 'items'>): Micro {
  return items.reduce((sum, item) => (item.outcome === 'GRANTED' ? sum + item.total : sum), 0n)
}

function aboveGrantOf(
  ledger: Pick<Ledger, 'aboveGrant'>,
  postings: readonly Posting[],
  refund: ReadonlyMap<AccountId, Micro>,
): ReadonlyMap<AccountId, Micro> {
  const above = postings.map((posting) => [posting.account, ledger.aboveGrant(posting, refund)] as const)
  return new Map(above.filter(([, amount]) => amount > 0n))
}

const SHORT: ReadonlySet<string> = new Set<RefusalReason>([
  'INSUFFICIENT_TOKENS',
  'ALLOCATION_EXHAUSTED',
  'CONSUMPTION_LIMIT_REACHED',
  'GRANT_EXHAUSTED',
  'GRANT_EXPIRED',
])

/** Something was refused because tokens were missing. */
function isShort({ items }: Decision): boolean {
  return items.some((item) => item.outcome === 'REFUSED' && SHORT.has(item.reason))
}

function isAnyEssential({ lineItems }: Policy): boolean {
  return lineItems.some(({ offline }) => offline?.policy === 'essential')
}

const NO_WANTS: readonly Want[] = []

/** What the accounts that fell short would have to hold for all of the request; empty where a top-up cannot help. */
function wantsOf({ items, postings }: Decision): readonly Want[] {
  let short: Map<string, bigint> | undefined
  for (const item of items) {
    if (item.outcome !== 'REFUSED' || (item.reason !== 'GRANT_EXHAUSTED' && item.reason !== 'GRANT_EXPIRED')) continue
    short ??= sumPostings(postings)
    for (const { account, needed } of item.obstacles) {
      if (account !== undefined && needed !== undefined) short.set(account, (short.get(account) ?? 0n) + needed)
    }
  }
  if (short === undefined) return NO_WANTS
  return [...short].map(([account, atLeast]) => ({ account, atLeast, wanted: atLeast }))
}
