/**
 * One access request on the device. It never waits for the network, except for a top-up when the device is connected and
 * its own grant is what falls short, and then not longer than the deadline. Whatever is decided, a refusal too, stands in
 * the ledger before anybody hears of it; what cannot be recorded is not granted.
 *
 * The ladder, in order; the first rung that fails names the code:
 *
 *   1 BAD_REQUEST                  the body has the form of an access request
 *     CALLER_NOT_ALLOWED, CALLER_LIMITED   ... of a requester, and at a pace, that the caller is held to
 *   2 REPEAT_MISMATCH, CONFLICT    an application session counts up; a repetition gets the answer that it had
 *   3 NOT_ENROLLED                 the device belongs to a cloud
 *   4 INSTANCE_UNKNOWN             ... and serves this instance
 *   5 POLICY_MISSING               the rules of the instance have arrived
 *   6 POLICY_STALE                 ... and may still be used
 *   7 NOT_ATTACHED                 the device has an incarnation that is not fenced
 *   8                              the ladder of core, whose refusals are answers, item by item; where tokens fall short and
 *                                  the cloud cannot be asked, the offline policy of essential line items counts as well
 *   9 CALLER_LIMITED               the caller's budget holds what is charged
 *  10 NOT_RECORDED                 the ledger has taken the entry
 */
import { decide } from '../../core/decide.ts'
import type { AccountId, Posting } from '../../core/account.ts'
import type { Micro } from '../../core/amount.ts'
import type { AccessRequest, Caveat, ClockReading, Decision, RefusalReason, RoomOf } from '../../core/decision.ts'
import type { Policy } from '../../core/policy.ts'
import { type Want, sumPostings } from '../../core/grant.ts'
import type { AccessRequestBody } from '../../protocol/service/access-request.ts'
import { accessResponseText } from '../../protocol/service/access-response-text.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'
import { sha256 } from '../../protocol/signing.ts'
import type { Durability } from './commits.ts'
import type { Hold } from './callers/callers.ts'
import { accessEntryText } from './entry-text.ts'
import { RoomsSeen, factsText } from './facts.ts'
import type { LastAnswer } from './journal.ts'
import type { Claim, LastAnswers } from './last-answers.ts'
import type { Ledger } from './ledger.ts'
import type { PolicyBoard, PolicyInForce } from './policy-board.ts'
import { type ReadBody, RequestBodies } from './request-bodies.ts'
import { type RulesParts, requireRules } from './require-rules.ts'

export interface AccessCall {
  readonly apiVersion: ApiVersion
  /** In lower case. */
  readonly instanceId: string
  /** The body as text, and what JSON makes of it. */
  readonly text: string
  readonly body: unknown
  /** Which request of which application session it is, where the application says so. */
  readonly repeat: { readonly session: string; readonly n: number } | null
  /** What the caller is held to, if anything. */
  readonly hold?: Hold
}

export interface AccessAnswer {
  /** JSON text of the response body. */
  readonly body: string
  readonly policyRevision: number
  readonly caveats: readonly Caveat[]
  /** What stood between the decision and the answer: a commit, or a block that is reserved ahead. */
  readonly durability: Durability
}

/** What a request needs of the link to the cloud. */
type TopUps = RulesParts['topUps'] & {
  /** Never rejects; resolves at once when the cloud is out of reach. */
  requestGrant(wants: readonly Want[], deadlineMs: number): Promise<void>
}

export interface AccessParts {
  readonly ledger: Pick<
    Ledger,
    'standing' | 'roomAt' | 'roomAboveGrant' | 'allowancesOf' | 'aboveGrant' | 'lastEntry' | 'record' | 'durability'
  >
  readonly policies: Pick<PolicyBoard, 'get' | 'hold' | 'isStale'>
  readonly lastAnswers: LastAnswers
  readonly clock: { reading(): ClockReading; sinceBoot(): number }
  readonly topUps: TopUps
  /** How long a request may wait for a top-up, ms. */
  readonly topUpDeadlineMs: number
  /** Whether what decisions are made by is kept, so that they can be explained. */
  readonly keepsFacts: boolean
  /** A fresh UUID. */
  readonly newId: () => string
}

/** Rounds with the cloud that one request may wait for: the second is for what only the first brought into sight. */
export const TOP_UPS_MAX = 2

const NO_CAVEATS: readonly Caveat[] = []

export class Access {
  readonly #parts: AccessParts
  readonly #bodies = new RequestBodies()

  constructor(parts: AccessParts) {
    this.#parts = parts
  }

  /**
   * Rejects with a CodedError of the ladder above; anything else means that the process must end. What it does at once it
   * does without an async function in between: each of them would cost a good part of a decision.
   */
  request(call: AccessCall): Promise<AccessAnswer> {
    try {
      const read = this.#bodies.read(call.apiVersion, call.body)
      call.hold?.request(read.body.requester)
      if (call.repeat === null) return this.#decide(call, read, null)
      return this.#once(call, read, call.repeat)
    } catch (error) {
      return Promise.reject(error instanceof Error ? error : new Error(String(error)))
    }
  }

  /** Decides a request of an application session, unless it was decided before. */
  async #once(call: AccessCall, read: ReadBody, repeat: NonNullable<AccessCall['repeat']>): Promise<AccessAnswer> {
    const requestHash = sha256(`${call.apiVersion}\n${call.instanceId}\n${call.text}`)
    const { lastAnswers } = this.#parts
    const begun = lastAnswers.begin({ ...repeat, requestHash })
    if (begun.kind === 'REPEAT') {
      const { answer, policyRevision } = await begun.answer
      // It may stand in the volatile log still.
      return { body: answer, policyRevision, caveats: NO_CAVEATS, durability: this.#parts.ledger.durability }
    }
    try {
      return await this.#decide(call, read, begun.claim)
    } catch (error) {
      lastAnswers.fail(begun.claim, error)
      throw error
    }
  }

  /** Decides, and where a top-up can help waits for it and decides again. */
  #decide(call: AccessCall, { body, request }: ReadBody, claim: Claim | null): Promise<AccessAnswer> {
    const attempt = this.#attempt(call, request)
    const wants = wantsOf(attempt.decision)
    if (wants.length === 0) return this.#record(call, body, this.#unlessOffline(call, attempt, false), claim)
    return this.#topUpAndDecide(call, body, attempt, wants, claim)
  }

  async #topUpAndDecide(
    call: AccessCall,
    body: AccessRequestBody,
    first: Attempt,
    lacking: readonly Want[],
    claim: Claim | null,
  ): Promise<AccessAnswer> {
    const { clock, topUps, topUpDeadlineMs } = this.#parts
    const until = clock.sinceBoot() + topUpDeadlineMs
    let attempt = first
    let wants = lacking
    for (let done = 0; done < TOP_UPS_MAX && wants.length > 0; done += 1) {
      const patienceMs = until - clock.sinceBoot()
      if (patienceMs <= 0) break
      await topUps.requestGrant(wants, patienceMs)
      attempt = this.#attempt(call, attempt.request)
      wants = wantsOf(attempt.decision)
    }
    const isUnanswered = clock.sinceBoot() >= until
    return this.#record(call, body, this.#unlessOffline(call, attempt, isUnanswered), claim)
  }

  /**
   * Where the cloud cannot be asked, the offline policy of essential line items has the last word on tokens that fall short.
   *
   * @param isUnanswered the cloud was asked, and has not answered in time
   */
  #unlessOffline(call: AccessCall, attempt: Attempt, isUnanswered: boolean): Attempt {
    const { ledger, topUps } = this.#parts
    const { policy } = attempt.policy.compiled
    if (!isShort(attempt.decision) || !isAnyEssential(policy)) return attempt
    if (!isUnanswered && topUps.status().connected) return attempt
    return this.#attempt(call, attempt.request, (reading) => ledger.roomAboveGrant(reading, policy))
  }

  #attempt(
    call: AccessCall,
    request: AccessRequest,
    roomAt: (reading: ClockReading) => RoomOf = (reading) => this.#parts.ledger.roomAt(reading),
  ): Attempt {
    const { clock } = this.#parts
    const reading = clock.reading()
    const policy = requireRules(this.#parts, call.instanceId, reading)
    const seen = new RoomsSeen(roomAt(reading))
    const decision = decide(policy.compiled, request, reading, seen.of, 'BEST_EFFORT')
    return { request, policy, reading, seen, decision }
  }

  /** Entry, charge and answer in one synchronous block; the answer leaves when the entry is durable. */
  #record(
    call: AccessCall,
    body: AccessRequestBody,
    { request, policy, reading, seen, decision }: Attempt,
    claim: Claim | null,
  ): Promise<AccessAnswer> {
    const { ledger, lastAnswers, keepsFacts, newId } = this.#parts
    const correlationId = newId()
    const { instanceId, revision: policyRevision } = policy.document
    const answer = accessResponseText(call.apiVersion, correlationId, request, decision)
    const lastAnswer = claim === null ? null : lastAnswerOf(claim, answer, policyRevision)
    const n = ledger.lastEntry() + 1
    const metaData = body.requestedItems.map((item) => item.metaData)
    const entry = { n, reading, instanceId, policyRevision, correlationId, request, metaData, decision }
    const { postings } = decision
    const above = decision.caveats.includes('ESSENTIAL_OFFLINE') ? aboveGrantOf(ledger, postings) : NOTHING
    const allowances = above.size === 0 ? NOTHING : allowancesOf(ledger, postings, above, policy)
    const text = accessEntryText(entry, above)
    const facts = keepsFacts ? factsText(call.apiVersion, seen, request.requester.dictionary) : null
    const { hold } = call
    const tokens = hold === undefined ? 0n : tokensOf(decision)
    hold?.spend(tokens)
    const recorded = ledger
      .record({ n, body: text, moves: 'used', postings, allowances, lastAnswer, facts })
      .then((durability) => {
        if (lastAnswer !== null) lastAnswers.settle(lastAnswer)
        return { body: answer, policyRevision, caveats: decision.caveats, durability }
      })
    if (hold === undefined) return recorded
    return recorded.catch((error: unknown) => {
      hold.unspend(tokens)
      throw error
    })
  }
}

/** What a decision charges, over all its items. */
export function tokensOf({ items }: Pick<Decision, 'items'>): Micro {
  return items.reduce((sum, item) => (item.outcome === 'GRANTED' ? sum + item.total : sum), 0n)
}

const NOTHING: ReadonlyMap<AccountId, Micro> = new Map()

function aboveGrantOf(ledger: Pick<Ledger, 'aboveGrant'>, postings: readonly Posting[]): ReadonlyMap<AccountId, Micro> {
  const above = postings.map((posting) => [posting.account, ledger.aboveGrant(posting)] as const)
  return new Map(above.filter(([, amount]) => amount > 0n))
}

function allowancesOf(
  ledger: Pick<Ledger, 'allowancesOf'>,
  postings: readonly Posting[],
  above: ReadonlyMap<AccountId, Micro>,
  { compiled }: PolicyInForce,
): ReadonlyMap<AccountId, Micro> {
  const borrowing = postings.filter(({ account }) => above.has(account))
  return ledger.allowancesOf(borrowing, compiled.policy)
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

/** One look at the rules and the balances; what it saw holds until something is awaited. */
interface Attempt {
  readonly request: AccessRequest
  readonly policy: PolicyInForce
  readonly reading: ClockReading
  readonly seen: RoomsSeen
  readonly decision: Decision
}

function lastAnswerOf({ session, n, requestHash }: Claim, answer: string, policyRevision: number): LastAnswer {
  return { session, n, requestHash, answer, policyRevision }
}

const NO_WANTS: readonly Want[] = []

/** What the accounts that fell short would have to hold for all of the request; empty where a top-up cannot help. */
export function wantsOf({ items, postings }: Decision): readonly Want[] {
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
