/**
 * This exact text is hashed, stored, sent and billed. It is the JSON of an `entryBody` of the edge protocol, built by
 * hand because each decision waits for it.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import { formatDecimal, type Micro } from '../../core/pricing/amount.ts'
import { quoted } from '../../protocol/json-text.ts'
import type { EntryBodyWire } from '../../protocol/edge/sync.ts'
import { type RequestedItemTexts, requestedTexts } from '../../protocol/service/requested-texts.ts'
import type { AccessRequest, ClockReading, Decision, ItemOutcome, ChargeShare } from '../../core/rules/decision.ts'

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
  readonly session?: EntryBodyWire['session']
}

/** @param aboveGrant by account, the part of its posting above the grant */
export function accessEntryText(entry: AccessEntry, aboveGrant: ReadonlyMap<AccountId, Micro> = NOTHING_ABOVE): string {
  const { reading, request, decision, metaData } = entry
  const asked = requestedTexts(request)
  let items = ''
  for (const [index, outcome] of decision.items.entries()) {
    items += `${index === 0 ? '' : ','}${itemText(asked.items[index], outcome, metaData[index])}`
  }
  let postings = ''
  for (const { account, amount } of decision.postings) {
    postings += `${postings === '' ? '' : ','}{"account":"${account}","amount":"${amount}"${aboveText(aboveGrant.get(account))}}`
  }
  // UUIDs and account ids need no JSON escaping.
  return (
    `{"n":${entry.n},"kind":"access","at":${reading.now},"earliest":${reading.earliest},"latest":${reading.latest},` +
    `"instanceId":"${entry.instanceId}","policyRevision":${entry.policyRevision},` +
    `"correlationId":"${entry.correlationId}",${sessionText(entry.session)}` +
    `"requester":${asked.requester},"items":[${items}],"postings":[${postings}]}`
  )
}

function sessionText(session: AccessEntry['session']): string {
  return session === undefined ? '' : `"session":{"id":"${session.id}","event":"${session.event}"},`
}

const NOTHING_ABOVE: ReadonlyMap<AccountId, Micro> = new Map()

function aboveText(amount: Micro | undefined): string {
  return amount === undefined ? '' : `,"aboveGrant":"${amount}"`
}

function itemText(
  asked: RequestedItemTexts | undefined,
  outcome: ItemOutcome,
  metaData: AccessEntry['metaData'][number],
): string {
  if (asked === undefined) throw new Error('invariant: one outcome per requested item')
  const more = metaData === undefined ? '' : `,"metaData":${JSON.stringify(metaData)}`
  return `${asked.entry},${outcomeText(outcome)}${more}}`
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
