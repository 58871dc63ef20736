import { formatDecimal, formatMicro } from '../../core/pricing/amount.ts'
import type { AccessRequest, Decision, ItemOutcome } from '../../core/rules/decision.ts'
import { quoted } from '../json-text.ts'
import { type RequestedItemTexts, requestedTexts } from './requested-texts.ts'
import { type ApiVersion, ITEM_STATUS } from './status.ts'

/** The same text as JSON.stringify of `accessResponse`, by hand because every decision needs it. */
export function accessResponseText(
  apiVersion: ApiVersion,
  correlationId: string,
  request: AccessRequest,
  decision: Pick<Decision, 'items'>,
): string {
  const texts = requestedTexts(request)
  let items = ''
  for (const [index, outcome] of decision.items.entries()) {
    items += `${index === 0 ? '' : ','}${itemText(apiVersion, texts.items[index], outcome)}`
  }
  return `{"correlationId":"${correlationId}","requester":${texts.requester},"requestedItems":[${items}]}`
}

function itemText(apiVersion: ApiVersion, requested: RequestedItemTexts | undefined, outcome: ItemOutcome): string {
  if (requested === undefined) throw new Error('invariant: one outcome per requested item')
  const status = STATUS_TEXTS[apiVersion].get(outcome.outcome === 'REFUSED' ? outcome.reason : outcome.outcome)
  if (status === undefined) throw new Error('invariant: each outcome has a status')
  if (outcome.outcome !== 'GRANTED')
    return `${requested.answer},"status":${status},"totalTokensCharged":0,"lineItems":[]}`
  let parts = ''
  for (const { lineItemId, rate, charged } of outcome.shares) {
    parts += `${parts === '' ? '' : ','}{"activationId":${quoted(lineItemId)},"rate":${formatDecimal(rate)},"tokensCharged":${formatMicro(charged)}}`
  }
  return `${requested.answer},"status":${status},"totalTokensCharged":${formatMicro(outcome.total)},"lineItems":[${parts}]}`
}

const statusTexts = (version: ApiVersion): ReadonlyMap<string, string> =>
  new Map(
    Object.entries(ITEM_STATUS).map(([outcome, { description, ...codes }]) => [
      outcome,
      JSON.stringify({ code: codes[version], description }),
    ]),
  )

const STATUS_TEXTS: Readonly<Record<ApiVersion, ReadonlyMap<string, string>>> = {
  'v1.0': statusTexts('v1.0'),
  'v1.1': statusTexts('v1.1'),
}
