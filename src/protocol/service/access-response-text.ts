/**
 * The answer to an access request as text: to the letter what JSON.stringify makes of `accessResponse`, put together by hand
 * because each decision on a device waits for it.
 */
import { formatDecimal, formatMicro } from '../../core/amount.ts'
import type { AccessRequest, Decision, ItemOutcome, RequestedItem } from '../../core/decision.ts'
import { quoted } from '../json-text.ts'
import { type ApiVersion, ITEM_STATUS } from './status.ts'

export function accessResponseText(
  apiVersion: ApiVersion,
  correlationId: string,
  { requester, items }: AccessRequest,
  decision: Pick<Decision, 'items'>,
): string {
  let texts = ''
  for (const [index, outcome] of decision.items.entries()) {
    const asked = items[index]
    if (asked === undefined) throw new Error('invariant: one outcome per requested item')
    texts += `${index === 0 ? '' : ','}${itemText(apiVersion, asked, outcome)}`
  }
  return (
    `{"correlationId":${quoted(correlationId)},"requester":{"type":${quoted(requester.type)},"value":${quoted(requester.value)}},` +
    `"requestedItems":[${texts}]}`
  )
}

function itemText(apiVersion: ApiVersion, asked: RequestedItem, outcome: ItemOutcome): string {
  const status = STATUS_TEXTS[apiVersion].get(outcome.outcome === 'REFUSED' ? outcome.reason : outcome.outcome)
  if (status === undefined) throw new Error('invariant: each outcome has a status')
  const version = asked.version === '' ? '' : `"version":${quoted(asked.version)},`
  const head = `{"item":${quoted(asked.name)},${version}"count":${formatDecimal(asked.count)},"status":${status},`
  if (outcome.outcome !== 'GRANTED') return `${head}"totalTokensCharged":0,"lineItems":[]}`
  let parts = ''
  for (const { lineItemId, rate, charged } of outcome.parts) {
    parts += `${parts === '' ? '' : ','}{"activationId":${quoted(lineItemId)},"rate":${formatDecimal(rate)},"tokensCharged":${formatMicro(charged)}}`
  }
  return `${head}"totalTokensCharged":${formatMicro(outcome.total)},"lineItems":[${parts}]}`
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
