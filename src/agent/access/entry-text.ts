/** The texts that record a decision, built by hand because each decision waits for them. */
import type { AccountId } from '../../core/accounts/account.ts'
import { formatDecimal, type Micro } from '../../core/pricing/amount.ts'
import { quoted } from '../../protocol/json-text.ts'
import { isJsonObject } from '../../protocol/parse-json.ts'
import type { EntryBodyWire } from '../../protocol/edge/sync.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'
import { type RequestedItemTexts, requestedTexts } from '../../protocol/service/requested-texts.ts'
import type {
  AccessRequest,
  AvailableBalance,
  ClockReading,
  Decision,
  ItemOutcome,
  ChargeShare,
  Requester,
} from '../../core/rules/decision.ts'

export interface AccessEntry {
  readonly n: number
  readonly reading: ClockReading
  readonly instanceId: string
  readonly policyRevision: number
  readonly engine: number
  readonly correlationId: string
  readonly request: AccessRequest
  /** Per requested item; undefined for none. */
  readonly metaData: readonly (Readonly<Record<string, unknown>> | undefined)[]
  readonly decision: Decision
  readonly session?: EntryBodyWire['session'] | undefined
}

/** This exact text is hashed, stored, sent and billed: the JSON of an `entryBody`. */
export function accessEntryText(entry: AccessEntry, aboveGrant: ReadonlyMap<AccountId, Micro> = NOTHING_ABOVE): string {
  const { reading, request, decision, metaData } = entry
  const requested = requestedTexts(request)
  let items = ''
  for (const [index, outcome] of decision.items.entries()) {
    items += `${index === 0 ? '' : ','}${itemText(requested.items[index], outcome, metaData[index])}`
  }
  let postings = ''
  for (const { account, amount } of decision.postings) {
    postings += `${postings === '' ? '' : ','}{"account":"${account}","amount":"${amount}"${aboveText(aboveGrant.get(account))}}`
  }
  // UUIDs and account ids need no JSON escaping.
  return (
    `{"n":${entry.n},"kind":"access",${timesText(reading)},` +
    `"instanceId":"${entry.instanceId}","policyRevision":${entry.policyRevision},"engine":${entry.engine},` +
    `"correlationId":"${entry.correlationId}",${sessionText(entry.session)}` +
    `"requester":${requested.requester},"items":[${items}],"postings":[${postings}]}`
  )
}

/** Of the last entry: those of a millisecond have the same. V8 makes the text of an instant slowly, and in its old space. */
let lastTimes: ClockReading & { readonly text: string } = { now: NaN, earliest: 0, latest: 0, text: '' }

function timesText({ now, earliest, latest }: ClockReading): string {
  if (now !== lastTimes.now || earliest !== lastTimes.earliest || latest !== lastTimes.latest) {
    lastTimes = { now, earliest, latest, text: `"at":${now},"earliest":${earliest},"latest":${latest}` }
  }
  return lastTimes.text
}

function sessionText(session: AccessEntry['session']): string {
  return session === undefined ? '' : `"session":{"id":"${session.id}","event":"${session.event}"},`
}

const NOTHING_ABOVE: ReadonlyMap<AccountId, Micro> = new Map()

function aboveText(amount: Micro | undefined): string {
  return amount === undefined ? '' : `,"aboveGrant":"${amount}"`
}

function itemText(
  texts: RequestedItemTexts | undefined,
  outcome: ItemOutcome,
  metaData: AccessEntry['metaData'][number],
): string {
  if (texts === undefined) throw new Error('invariant: one outcome per requested item')
  const more = metaData === undefined ? '' : `,"metaData":${JSON.stringify(metaData)}`
  return `${texts.entry},${outcomeText(outcome)}${more}}`
}

function outcomeText(outcome: ItemOutcome): string {
  if (outcome.outcome === 'REFUSED') return `"outcome":"${outcome.reason}","total":"0","parts":[]`
  if (outcome.outcome === 'NOT_CHARGED') return '"outcome":"NOT_CHARGED","total":"0","parts":[]'
  let parts = ''
  for (const share of outcome.shares) parts += `${parts === '' ? '' : ','}${partText(share)}`
  return `"outcome":"GRANTED","total":"${outcome.total}","parts":[${parts}]`
}

function partText({ lineItemId, rate, actionId, charged }: ChargeShare): string {
  const action = actionId === null ? 'null' : quoted(actionId)
  return `{"lineItemId":${quoted(lineItemId)},"rate":"${formatDecimal(rate)}","actionId":${action},"charged":"${charged}"}`
}

/** What the entry and the rules of its revision lack to reproduce the decision. Stays on the device. */
export interface DecisionInputs {
  /** Null: an automatic charge of a session, without a caller. */
  readonly apiVersion: ApiVersion | null
  readonly balances: readonly AvailableBalance[]
  readonly dictionary: Requester['dictionary']
}

const VERSION_MARK = { 'v1.0': '0', 'v1.1': '1' } as const
const SHORTAGE_MARK = {
  POOL: 'P',
  GRANT: 'G',
  GRANT_EXPIRED: 'X',
  DEVICE_REFUSED: 'D',
  RECOVERY: 'R',
  COUNTER: 'C',
} as const
const SHORTAGES = {
  P: 'POOL',
  G: 'GRANT',
  X: 'GRANT_EXPIRED',
  D: 'DEVICE_REFUSED',
  R: 'RECOVERY',
  C: 'COUNTER',
} as const
const NO_CLIENT = '-'
const UNLIMITED = '*'

/**
 * `version;balance,balance...;dictionary`, each balance with a letter for its shortage, and overspend if any. Accounts
 * are left out: a replay requests them in the same sequence.
 */
export function decisionInputsText(
  apiVersion: ApiVersion | null,
  balances: Iterable<AvailableBalance>,
  dictionary: Requester['dictionary'],
): string {
  let balancesText = ''
  for (const { left, shortage, overspend } of balances) {
    if (balancesText !== '') balancesText += ','
    balancesText += `${left === 'UNLIMITED' ? UNLIMITED : left}${SHORTAGE_MARK[shortage]}`
    if (overspend !== undefined) balancesText += `+${overspend}`
  }
  const keys = Object.keys(dictionary).length === 0 ? '' : JSON.stringify(dictionary)
  return `${apiVersion === null ? NO_CLIENT : VERSION_MARK[apiVersion]};${balancesText};${keys}`
}

const TEXT = /^([01-]);([^;]*);(.*)$/s
const BALANCE = /^(\*|\d{1,19})([PGXDRC])(?:\+(\d{1,19}))?$/

export function parseDecisionInputs(text: string): DecisionInputs | undefined {
  const match = TEXT.exec(text)
  if (match === null) return undefined
  const [, mark = '', balancesText = '', keys = ''] = match
  const balances: AvailableBalance[] = []
  for (const each of balancesText === '' ? [] : balancesText.split(',')) {
    const parts = BALANCE.exec(each)
    if (parts === null) return undefined
    const [, left = '', letter, overspend] = parts
    balances.push({
      left: left === UNLIMITED ? 'UNLIMITED' : BigInt(left),
      shortage: SHORTAGES[letter as keyof typeof SHORTAGES],
      ...(overspend === undefined ? {} : { overspend: BigInt(overspend) }),
    })
  }
  let dictionary: unknown
  try {
    dictionary = keys === '' ? {} : JSON.parse(keys)
  } catch {
    return undefined
  }
  if (!isJsonObject(dictionary)) return undefined
  return {
    apiVersion: mark === NO_CLIENT ? null : mark === '0' ? 'v1.0' : 'v1.1',
    balances,
    dictionary,
  }
}
