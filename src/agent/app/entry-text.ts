/**
 * The text of a ledger entry for an access request: what is hashed, kept, sent and billed, so every entry is written by
 * this one function. It is JSON of an `entryBody` of the edge protocol, put together by hand because each decision waits
 * for it.
 */
import type { AccountId } from '../../core/account.ts'
import { type Decimal, formatDecimal, type Micro } from '../../core/amount.ts'
import { quoted } from '../../protocol/json-text.ts'
import type { EntryBodyWire } from '../../protocol/edge/sync.ts'
import type { Variables } from '../../core/formula-rate.ts'
import type { AccessRequest, ClockReading, Decision, ItemOutcome, Part } from '../../core/decision.ts'

export interface AccessEntry {
  readonly n: number
  readonly reading: ClockReading
  readonly instanceId: string
  readonly policyRevision: number
  readonly correlationId: string
  readonly request: AccessRequest
  /** Per requested item; undefined for none. */
  readonly metaData: readonly (Readonly<Record<string, unknown>> | undefined)[]
  readonly decision: Decision
  /** The session that it belongs to, and what happens to it. */
  readonly session?: NonNullable<EntryBodyWire['session']>
}

/** @param aboveGrant by account, how much of its posting the grant does not hold */
export function accessEntryText(entry: AccessEntry, aboveGrant: ReadonlyMap<AccountId, Micro> = NOTHING_ABOVE): string {
  const { reading, request, decision } = entry
  let items = ''
  for (let index = 0; index < decision.items.length; index += 1) {
    items += `${index === 0 ? '' : ','}${itemText(entry, index)}`
  }
  let postings = ''
  for (const { account, amount } of decision.postings) {
    postings += `${postings === '' ? '' : ','}{"account":${quoted(account)},"amount":"${amount}"${aboveText(aboveGrant.get(account))}}`
  }
  return (
    `{"n":${entry.n},"kind":"access","at":${reading.now},"earliest":${reading.earliest},"latest":${reading.latest},` +
    `"instanceId":${quoted(entry.instanceId)},"policyRevision":${entry.policyRevision},` +
    `"correlationId":${quoted(entry.correlationId)},${sessionText(entry.session)}` +
    `"requester":{"type":${quoted(request.requester.type)},"value":${quoted(request.requester.value)}},` +
    `"items":[${items}],"postings":[${postings}]}`
  )
}

function sessionText(session: AccessEntry['session']): string {
  return session === undefined ? '' : `"session":{"id":"${session.id}","event":"${session.event}"},`
}

const NOTHING_ABOVE: ReadonlyMap<AccountId, Micro> = new Map()

function aboveText(amount: Micro | undefined): string {
  return amount === undefined ? '' : `,"aboveGrant":"${amount}"`
}

function itemText({ request, decision, metaData }: AccessEntry, index: number): string {
  const asked = request.items[index]
  const outcome = decision.items[index]
  if (asked === undefined || outcome === undefined) throw new Error('invariant: one outcome per requested item')
  const more = metaData[index]
  return (
    `{"item":${quoted(asked.name)},"version":${quoted(asked.version)},"count":"${formatDecimal(asked.count)}",` +
    `${variablesText(asked.variables)}${outcomeText(outcome)}${more === undefined ? '' : `,"metaData":${JSON.stringify(more)}`}}`
  )
}

function variablesText(variables: Variables | undefined): string {
  if (variables === undefined) return ''
  const texts = Object.fromEntries([...variables].map(([name, value]) => [name, formatDecimal(value)]))
  return `"variables":${JSON.stringify(texts)},`
}

function outcomeText(outcome: ItemOutcome): string {
  if (outcome.outcome === 'REFUSED') return `"outcome":"${outcome.reason}","total":"0","parts":[]`
  if (outcome.outcome === 'NOT_CHARGED') return '"outcome":"NOT_CHARGED","total":"0","parts":[]'
  let parts = ''
  for (const part of outcome.parts) parts += `${parts === '' ? '' : ','}${partText(part)}`
  return `"outcome":"GRANTED","total":"${outcome.total}","parts":[${parts}]`
}

function partText({ lineItemId, rate, actionId, charged }: Part): string {
  const action = actionId === null ? 'null' : quoted(actionId)
  return `{"lineItemId":${quoted(lineItemId)},"rate":"${rateText(rate)}","actionId":${action},"charged":"${charged}"}`
}

/** Rates are those of a policy in force: few, and used over and over. */
const rateTexts = new WeakMap<Decimal, string>()

function rateText(rate: Decimal): string {
  let text = rateTexts.get(rate)
  if (text === undefined) {
    text = formatDecimal(rate)
    rateTexts.set(rate, text)
  }
  return text
}
