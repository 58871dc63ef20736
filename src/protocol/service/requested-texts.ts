/** JSON of requester and items, as in the answer and in the ledger entry of a decision. */
import { formatDecimal } from '../../core/pricing/amount.ts'
import type { AccessRequest, RequestedItem } from '../../core/rules/decision.ts'
import { variableTexts } from '../../core/pricing/formula-rate.ts'
import { quoted } from '../json-text.ts'

export interface RequestedTexts {
  readonly requester: string
  readonly items: readonly RequestedItemTexts[]
}

/** JSON of an unclosed object; more fields follow after a comma. */
export interface RequestedItemTexts {
  readonly entry: string
  readonly answer: string
}

/** Answer and entry of a decision follow each other. A map of all requests would cost more garbage collection than it saves. */
let last: { readonly request: AccessRequest; readonly texts: RequestedTexts } | undefined

export function requestedTexts(request: AccessRequest): RequestedTexts {
  if (last?.request !== request) {
    const { type, value } = request.requester
    const texts = {
      requester: `{"type":${quoted(type)},"value":${quoted(value)}}`,
      items: request.items.map(itemTexts),
    }
    last = { request, texts }
  }
  return last.texts
}

function itemTexts({ name, version, count, variables }: RequestedItem): RequestedItemTexts {
  const item = `{"item":${quoted(name)}`
  const versioned = `${item},"version":${quoted(version)}`
  const amount = formatDecimal(count)
  const more = variables === undefined ? '' : `,"variables":${JSON.stringify(variableTexts(variables))}`
  return {
    entry: `${versioned},"count":"${amount}"${more}`,
    answer: `${version === '' ? item : versioned},"count":${amount}`,
  }
}
