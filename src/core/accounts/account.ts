/**
 * Accounts: the counters of tokens that can run out. One decision touches one or more of them, all or none. The id is
 * the same text on the device, on the wire and in the cloud, so that every layer means the same counter.
 */
import type { Micro } from '../pricing/amount.ts'

/** `<kind>/<part>/...`, each part percent-encoded. Made only by the functions below. */
export type AccountId = string

/** The pool of a line item in one period: its cap is quantity plus allowed overdraft. */
export function lineAccount(instanceId: string, lineItemId: string, period: number): AccountId {
  return join('line', instanceId, lineItemId, String(period))
}

/** The allocation of one action. It does not start again when the line item is reset. */
export function actionAccount(instanceId: string, lineItemId: string, actionId: string): AccountId {
  return join('action', instanceId, lineItemId, actionId)
}

/** What one requester may take from a line item in one period of its consumption limit. */
export function limitAccount(
  instanceId: string,
  lineItemId: string,
  requester: { readonly type: string; readonly value: string },
  period: number,
): AccountId {
  return join('limit', instanceId, lineItemId, requester.type, requester.value, String(period))
}

/** Whether an id is that of one requester's limit: there may be any number of those. */
export function isLimitAccount(id: AccountId): boolean {
  return id.startsWith('limit/')
}

/**
 * Most characters of an id: what the wire takes, and well below the 2,704 bytes that PostgreSQL takes of a row in an index.
 * The bounds of the parts below keep every id within it.
 */
export const ACCOUNT_ID_MAX = 2_048
/** Most characters of a line item's id as it stands in an account id. */
export const LINE_ITEM_ENCODED_MAX = 768
/** Most characters of a requester's type and value together, as they stand in an account id. */
export const REQUESTER_ENCODED_MAX = 1_200

/** One UTF-16 unit becomes at most so many characters: three bytes in percent-encoding. */
const ENCODED_UNIT_MAX = 9

/** Whether texts take at most so many characters in an account id. False for text that is not well-formed Unicode. */
export function fitsEncoded(max: number, ...texts: readonly string[]): boolean {
  let units = 0
  for (const text of texts) units += text.length
  if (units * ENCODED_UNIT_MAX <= max) return true
  if (units > max || !texts.every((text) => text.isWellFormed())) return false
  let length = 0
  for (const text of texts) length += encodeURIComponent(text).length
  return length <= max
}

export type ParsedAccount =
  | { readonly kind: 'line'; readonly instanceId: string; readonly lineItemId: string; readonly period: number }
  | { readonly kind: 'action'; readonly instanceId: string; readonly lineItemId: string; readonly actionId: string }
  | {
      readonly kind: 'limit'
      readonly instanceId: string
      readonly lineItemId: string
      readonly requester: { readonly type: string; readonly value: string }
      readonly period: number
    }

/** The parts of an id; undefined for a text that none of the functions above could have made. */
export function parseAccount(id: AccountId): ParsedAccount | undefined {
  const [kind, ...encoded] = id.split('/')
  const parts: string[] = []
  for (const part of encoded) {
    try {
      parts.push(decodeURIComponent(part))
    } catch {
      return undefined
    }
  }
  const [instanceId = '', lineItemId = '', third = '', fourth = '', fifth = ''] = parts
  const made = (): ParsedAccount | undefined => {
    if (kind === 'line' && parts.length === 3 && isPeriod(third)) {
      return { kind, instanceId, lineItemId, period: Number(third) }
    }
    if (kind === 'action' && parts.length === 3) return { kind, instanceId, lineItemId, actionId: third }
    if (kind === 'limit' && parts.length === 5 && isPeriod(fifth)) {
      return { kind, instanceId, lineItemId, requester: { type: third, value: fourth }, period: Number(fifth) }
    }
    return undefined
  }
  const parsed = made()
  return parsed !== undefined && id === join(kind ?? '', ...parts) ? parsed : undefined
}

/** One movement of a ledger entry: what a charge took from, or a refund gave back to, one account. `amount > 0n`. */
export interface Posting {
  readonly account: AccountId
  readonly amount: Micro
}

function join(kind: string, ...parts: readonly string[]): AccountId {
  return [kind, ...parts.map(encodeURIComponent)].join('/')
}

function isPeriod(text: string): boolean {
  return /^(0|[1-9]\d{0,8})$/.test(text)
}
