/**
 * Explains a decision by making it again with the same engine, from the rules and decision inputs of that moment. The
 * result must equal the ledger entry byte for byte.
 */
import { type AccountId, type Posting, parseAccount } from '../../core/accounts/account.ts'
import { type Micro, decimal, formatDecimal, formatMicro } from '../../core/pricing/amount.ts'
import { ENGINE } from '../../core/engine.ts'
import { type PolicyView, compilePolicy } from '../../core/rules/compile.ts'
import { type Mode, decide } from '../../core/rules/decide.ts'
import type {
  AccessRequest,
  ClockReading,
  Decision,
  ItemOutcome,
  RejectionDetail,
  RequestedItem,
  Requester,
  AvailableBalance,
} from '../../core/rules/decision.ts'
import { ITEM_CHECKS, type ItemCheck, REFUSAL_REASONS } from '../../core/rules/refusal-reasons.ts'
import { formulaRate } from '../../core/pricing/formula-rate.ts'
import { rulingsFor } from '../../core/rules/rules.ts'
import { policyDocument, policyOf } from '../../protocol/edge/policy-document.ts'
import { type EntryBodyWire, entryBody } from '../../protocol/edge/sync.ts'
import { CodedError, type ErrorCode, ERRORS, firstProblem, isErrorCode } from '../../protocol/errors.ts'
import type { KeptDecision, KeptRefusal } from '../../protocol/local/decision.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { unverifiedText } from '../../protocol/signing.ts'
import { accessResponse } from '../../protocol/service/access-request.ts'
import { type DecisionInputs, accessEntryText, parseDecisionInputs } from '../access/entry-text.ts'
import { BalancesSeen } from '../access/local-decisions.ts'
import { Trust } from '../keys/trust.ts'

/** `passed` null: not reached. */
export interface Check {
  readonly code: string
  readonly asks: string
  readonly passed: boolean | null
  readonly evidence: readonly string[]
}

export interface ExplainedItem {
  readonly item: string
  readonly version: string
  readonly count: string
  readonly outcome: string
  readonly tokens: string
  readonly checkOrder: readonly Check[]
}

export interface Explanation {
  readonly correlationId: string
  /** `change`: an entry without a decision, such as a refund. `refusal`: nothing was decided or recorded. */
  readonly kind: 'decision' | 'change' | 'refusal'
  readonly clock: { readonly now: number; readonly earliest: number | null; readonly latest: number | null }
  readonly instanceId: string | null
  readonly instanceName: string | null
  readonly policyRevision: number | null
  readonly engine: number | null
  readonly requester: { readonly type: string; readonly value: string; readonly dictionary: unknown } | null
  readonly entry: number | null
  readonly session: { readonly id: string; readonly event: string } | null
  readonly checkOrder: readonly Check[]
  readonly items: readonly ExplainedItem[]
  readonly accounts: readonly {
    readonly account: AccountId
    readonly left: string
    /** The device may have more, but its grant had expired. */
    readonly expired: boolean
    readonly beyondGrant: string | null
  }[]
  readonly replay: {
    /** `other-engine`: not compared, because another version of the engine decided. `none`: no decision to reproduce. */
    readonly result: 'same' | 'different' | 'other-engine' | 'impossible' | 'none'
    readonly says: string
  }
  readonly answer: string | null
}

/** @throws CodedError DATABASE_CORRUPT for an invalid entry */
export async function explain(kept: KeptDecision, engine = ENGINE.version): Promise<Explanation> {
  if (kept.kind === 'refusal') return refusalExplained(kept.refusal)
  const { raw, reading } = readEntry(kept.body)
  const recorded = recordedExplanation(raw, reading)
  const asRecorded = (result: Explanation['replay']['result'], says: string): Explanation => ({
    ...recorded,
    replay: { result, says },
  })
  if (raw.kind !== 'access') {
    const says = `A ${raw.kind} entry: no rules decided on it.`
    return { ...asRecorded('none', says), checkOrder: [], kind: 'change' }
  }
  const impossible = (says: string): Explanation => asRecorded('impossible', says)
  if (raw.engine !== engine) {
    const says = `Decided by engine ${raw.engine}, this is engine ${engine}: the decision is not compared.`
    return asRecorded('other-engine', says)
  }
  const inputs = kept.inputs === null ? undefined : parseDecisionInputs(kept.inputs)
  if (inputs === undefined) return impossible('The inputs of this decision are not stored on this device.')
  if (kept.rules === null)
    return impossible(`Revision ${raw.policyRevision} of the rules is not stored on this device.`)
  const opened = await (await trustOf(kept.trustedKeys)).open('policy', kept.rules)
  const parsed = policyDocument.safeParse(parseJson(unverifiedText(kept.rules) ?? ''))
  if (!parsed.success) return impossible(`The stored rules cannot be read: ${firstProblem(parsed.error, 'policy')}.`)

  const policy = compilePolicy(policyOf(parsed.data)).at(reading)
  const request = requestFrom(raw, inputs)
  const replayed = replay(policy, request, inputs, raw.session === undefined ? 'BEST_EFFORT' : 'ALL_OR_NOTHING')
  const { decision, balancesUsed } = replayed
  const isSame = replayed.isExact && entryFrom(raw, reading, request, decision) === kept.body
  const signed = opened === undefined ? ' The key that signed those rules is no longer one of the pinned keys.' : ''
  const balances = new Map(balancesUsed)
  return {
    ...recorded,
    instanceName: parsed.data.instanceName,
    requester: { ...raw.requester, dictionary: inputs.dictionary },
    items: decision.items.map((outcome, index) => explainedItem(policy, request, outcome, { index, balances })),
    accounts: balancesUsed.map(([account, balance]) => explainedAccount(account, balance)),
    replay: isSame
      ? {
          result: 'same',
          says: `A replay from the stored rules and inputs gives the same entry, byte for byte.${signed}`,
        }
      : { result: 'different', says: `A replay from the stored rules and inputs gives a different entry.${signed}` },
    answer:
      inputs.apiVersion === null
        ? null
        : JSON.stringify(accessResponse(inputs.apiVersion, raw.correlationId, request, decision)),
  }
}

/** All that the entry tells without its inputs and rules. */
function recordedExplanation(raw: EntryBodyWire, reading: ClockReading): Omit<Explanation, 'replay'> {
  return {
    correlationId: raw.correlationId,
    kind: 'decision',
    clock: reading,
    instanceId: raw.instanceId,
    instanceName: null,
    policyRevision: raw.policyRevision,
    engine: raw.engine,
    requester: raw.kind === 'burn' ? null : { ...raw.requester, dictionary: null },
    entry: raw.n,
    session: raw.session ?? null,
    checkOrder: deviceChecks(null, {
      NOT_FOUND: [`instance ${raw.instanceId}`],
      POLICY_MISSING: [`revision ${raw.policyRevision}`],
      NOT_RECORDED: [`entry ${raw.n} of the ledger`],
    }),
    items: raw.items.map(recordedItem),
    accounts: [],
    answer: null,
  }
}

/** Ignores unreadable keys: they signed nothing. */
async function trustOf(jwks: readonly string[]): Promise<Trust> {
  try {
    return await Trust.of(jwks)
  } catch {
    return Trust.of([])
  }
}

/** Returns the raw entry, because the schema drops keys that a JavaScript object cannot have. */
function readEntry(body: string): { readonly raw: EntryBodyWire; readonly reading: ClockReading } {
  const corrupt = (why: string): CodedError =>
    new CodedError('DATABASE_CORRUPT', `the entry of this decision cannot be read: ${why}`)
  let json: unknown
  try {
    json = JSON.parse(body)
  } catch {
    throw corrupt('it is not JSON')
  }
  const parsed = entryBody.safeParse(json)
  if (!parsed.success) throw corrupt(firstProblem(parsed.error, 'entry'))
  const raw = json as EntryBodyWire
  return { raw, reading: { now: raw.at, earliest: raw.earliest, latest: raw.latest } }
}

function requestFrom({ requester, items }: EntryBodyWire, { dictionary }: DecisionInputs): AccessRequest {
  return {
    requester: { type: requester.type, value: requester.value, dictionary },
    items: items.map(({ item, version, count, variables }): RequestedItem => {
      const named = Object.entries(variables ?? {}).map(([name, value]) => [name, decimal(value)] as const)
      return {
        name: item,
        version,
        count: decimal(count),
        ...(variables === undefined ? {} : { variables: new Map(named) }),
      }
    }),
  }
}

interface Replayed {
  readonly decision: Decision
  readonly balancesUsed: readonly (readonly [AccountId, AvailableBalance])[]
  readonly isExact: boolean
}

const NO_BALANCE: AvailableBalance = { left: 0n, shortage: 'GRANT' }

function replay(policy: PolicyView, request: AccessRequest, { balances }: DecisionInputs, mode: Mode): Replayed {
  const recorded = balances.values()
  const seen = new BalancesSeen(() => recorded.next().value ?? NO_BALANCE)
  const decision = decide(policy, request, seen.of, mode)
  const balancesUsed = [...seen.entries()]
  return { decision, balancesUsed, isExact: balancesUsed.length === balances.length }
}

/** The overspend of a posting is also an input; it is read from the entry. */
function entryFrom(raw: EntryBodyWire, reading: ClockReading, request: AccessRequest, decision: Decision): string {
  const { n, instanceId, policyRevision, engine, correlationId, session } = raw
  const above = raw.postings.flatMap(({ account, aboveGrant }): [AccountId, Micro][] =>
    aboveGrant === undefined ? [] : [[account, BigInt(aboveGrant)]],
  )
  const metaData = raw.items.map((item) => item.metaData)
  const entry = { n, reading, instanceId, policyRevision, engine, correlationId, request, metaData, decision }
  return accessEntryText(session === undefined ? entry : { ...entry, session }, new Map(above))
}

function recordedItem({ item, version, count, outcome, total }: EntryBodyWire['items'][number]): ExplainedItem {
  return { item, version, count, outcome, tokens: formatMicro(BigInt(total)), checkOrder: [] }
}

/** The checks before the items, in the sequence of `access.ts`. */
const DEVICE_CHECKS: readonly (readonly [code: ErrorCode, asks: string])[] = [
  ['BAD_REQUEST', 'the body has the form of an access request'],
  ['CALLER_NOT_ALLOWED', 'the calling user may ask at all'],
  ['CALLER_LIMITED', 'the calling user is within its rate and token quotas'],
  ['IDEMPOTENCY_CONFLICT', 'a repeated number repeats the same request'],
  ['CONFLICT', 'requests of an application session count up'],
  ['DEVICE_LOCKED', 'no administrator has locked the device'],
  ['DEVICE_TERMINATED', 'no administrator has ended the service of the device'],
  ['NOT_ENROLLED', 'the device belongs to a cloud'],
  ['NOT_FOUND', 'the device has the instance or session that the request names'],
  ['POLICY_MISSING', 'the rules of the instance have arrived'],
  ['POLICY_STALE', 'the rules may still be used'],
  ['NOT_ATTACHED', 'the device has an epoch that is not fenced'],
  ['NOT_RECORDED', 'the ledger has taken the entry'],
]

function deviceChecks(
  failed: string | null,
  evidence: Readonly<Partial<Record<ErrorCode, readonly string[]>>>,
): readonly Check[] {
  const failedAt = DEVICE_CHECKS.findIndex(([code]) => code === failed)
  return DEVICE_CHECKS.map(([code, asks], index): Check => {
    const passed = hasPassed(index, failedAt)
    return { code, asks, passed, evidence: passed === null ? [] : (evidence[code] ?? []) }
  })
}

/** Null for a check after the failed one: it was not made. @param failedAt -1: no check failed */
function hasPassed(index: number, failedAt: number): boolean | null {
  if (failedAt < 0 || index < failedAt) return true
  return index === failedAt ? false : null
}

function refusalExplained({ correlationId, at, request, caller, code, message }: KeptRefusal): Explanation {
  const isCheck = DEVICE_CHECKS.some(([each]) => each === code)
  const asks = isErrorCode(code) ? ERRORS[code].meaning : code
  const evidence = [message, request, ...(caller === null ? [] : [`called by ${caller}`])]
  return {
    correlationId,
    kind: 'refusal',
    clock: { now: at, earliest: null, latest: null },
    instanceId: null,
    instanceName: null,
    policyRevision: null,
    engine: null,
    requester: null,
    entry: null,
    session: null,
    checkOrder: isCheck ? deviceChecks(code, { [code]: evidence }) : [{ code, asks, passed: false, evidence }],
    items: [],
    accounts: [],
    replay: { result: 'none', says: 'The request was refused before a decision was made or recorded.' },
    answer: null,
  }
}

const CHECK_NAMES = Object.keys(ITEM_CHECKS) as ItemCheck[]

/** A check that did not fail is shown with the first reason that it can give. */
const REASON_OF_CHECK: ReadonlyMap<ItemCheck, string> = new Map(
  Object.entries(REFUSAL_REASONS)
    .map(([reason, { check }]) => [check, reason] as const)
    .reverse(),
)

function explainedAccount(account: AccountId, balance: AvailableBalance): Explanation['accounts'][number] {
  const { left, overspend } = balance
  return {
    account,
    left: left === 'UNLIMITED' ? 'unlimited' : formatMicro(left),
    expired: hasExpired(balance),
    beyondGrant: overspend === undefined ? null : formatMicro(overspend),
  }
}

function hasExpired({ shortage }: AvailableBalance): boolean {
  return shortage === 'GRANT_EXPIRED'
}

type Balances = ReadonlyMap<AccountId, AvailableBalance>

function explainedItem(
  policy: PolicyView,
  request: AccessRequest,
  outcome: ItemOutcome,
  { index, balances }: { readonly index: number; readonly balances: Balances },
): ExplainedItem {
  const requested = request.items[index]
  if (requested === undefined) throw new Error('invariant: one outcome per requested item')
  const { name: item, version } = requested
  const reason = outcome.outcome === 'REFUSED' ? outcome.reason : null
  const failedAt = reason === null ? -1 : CHECK_NAMES.indexOf(REFUSAL_REASONS[reason].check)
  const evidence = itemEvidence(policy, request.requester, requested, { outcome, balances })
  const checkOrder = CHECK_NAMES.map((name, at): Check => {
    const passed = hasPassed(at, failedAt)
    return {
      code: passed === false ? (reason ?? name) : (REASON_OF_CHECK.get(name) ?? name),
      asks: ITEM_CHECKS[name],
      passed,
      evidence: passed === null ? [] : evidence[name],
    }
  })
  return {
    item,
    version,
    count: formatDecimal(requested.count),
    outcome: reason ?? outcome.outcome,
    tokens: outcome.outcome === 'GRANTED' ? formatMicro(outcome.total) : '0',
    checkOrder,
  }
}

function itemEvidence(
  policy: PolicyView,
  { dictionary }: Requester,
  requested: RequestedItem,
  { outcome, balances }: { readonly outcome: ItemOutcome; readonly balances: Balances },
): Readonly<Record<ItemCheck, readonly string[]>> {
  const view = policy.item(requested.name, requested.version)
  const unusable = view.rejectionDetails.map(({ lineItemId, why }) => `${lineItemId}: ${why}`)
  if (!view.rated)
    return { ...NO_EVIDENCE, RATED: unusable.length === 0 ? ['no rate table in effect has it'] : unusable }
  const usable = view.candidates.map(({ lineItem, undecided }) =>
    undecided
      ? `${lineItem.id}: usable, though the clock cannot tell whether its window is open`
      : `${lineItem.id}: usable`,
  )
  const rates: string[] = []
  const rulings: string[] = []
  const rulingOf = rulingsFor(dictionary)
  for (const { lineItem, rate, rules } of view.candidates) {
    const value = rate.kind === 'FIXED' ? rate.rate : formulaRate(rate.expression, requested.variables)
    rates.push(`${lineItem.id}: ${typeof value === 'string' ? value : `${formatDecimal(value)} tokens each`}`)
    if (typeof value === 'string') continue
    const ruling = rulingOf(rules)
    const { action } = ruling
    const by = action === null ? '' : ` by ${action.name ?? `action ${action.id}`}`
    if (ruling.ruling === 'REFUSE') rulings.push(`${lineItem.id}: ${ruling.why}${by}`)
    else rulings.push(`${lineItem.id}: ${action === null ? 'open to everybody' : `allowed${by}`}`)
  }
  const series = view.candidates.map(({ lineItem: { rateTableSeries } }) =>
    rateTableSeries === '' ? 'series (none)' : `series ${rateTableSeries}`,
  )
  const evidence = { RATED: [...new Set(series)], USABLE: [...usable, ...unusable], PRICED: rates, ALLOWED: rulings }
  if (outcome.outcome !== 'REFUSED') return { ...NO_EVIDENCE, ...evidence, TOKENS: chargesOf(outcome) }
  // A detail names its account, so it explains each of these checks.
  const short = outcome.rejectionDetails.flatMap((detail) => shortOf(detail, balances))
  return { ...evidence, TOKENS: short, ALLOCATION: short, LIMIT: short }
}

const NO_EVIDENCE = { RATED: [], USABLE: [], PRICED: [], ALLOWED: [], TOKENS: [], ALLOCATION: [], LIMIT: [] }

function shortOf({ lineItemId, why, account, needed, left }: RejectionDetail, balances: Balances): readonly string[] {
  if (account === undefined || needed === undefined || left === undefined) return []
  const balance = balances.get(account)
  const isExpired = left === 0n && balance !== undefined && hasExpired(balance)
  const has = isExpired ? 'the grant of the device has expired' : `${kindOf(account)} has ${formatMicro(left)}`
  return [`${lineItemId}: ${why}: needs ${formatMicro(needed)}, ${has}`]
}

function chargesOf(outcome: ItemOutcome): readonly string[] {
  if (outcome.outcome !== 'GRANTED') return []
  return outcome.shares.map(({ lineItemId, charged }) => `${lineItemId}: pays ${formatMicro(charged)}`)
}

function kindOf(account: Posting['account']): string {
  switch (parseAccount(account)?.kind) {
    case 'action':
      return 'the allocation'
    case 'limit':
      return 'the limit of the requester'
    default:
      return 'the device'
  }
}
