/** Accounts: counters of tokens that can run out. Device, wire and cloud use the same ids. */
import type { Micro } from '../pricing/amount.ts'

/** `<kind>/<part>/...`, percent-encoded. Made only by the functions below. */
export type AccountId = string

/** The pool of a line item in one period; its cap is quantity plus allowed overdraft. */
export function lineAccount(instanceId: string, lineItemId: string, period: number): AccountId {
  return join('line', instanceId, lineItemId, String(period))
}

/** The allocation of one action. It is not reset with the line item. */
export function actionAccount(instanceId: string, lineItemId: string, actionId: string): AccountId {
  return join('action', instanceId, lineItemId, actionId)
}

export function limitAccount(
  instanceId: string,
  lineItemId: string,
  requester: { readonly type: string; readonly value: string },
  period: number,
): AccountId {
  return join('limit', instanceId, lineItemId, requester.type, requester.value, String(period))
}

export function isLineAccount(id: AccountId): boolean {
  return id.startsWith('line/')
}

export function isLimitAccount(id: AccountId): boolean {
  return id.startsWith('limit/')
}

/** The wire's limit, well below the 2,704 bytes of a PostgreSQL index row. The bounds below keep every id within it. */
export const ACCOUNT_ID_MAX = 2_048
export const LINE_ITEM_ENCODED_MAX = 768
export const REQUESTER_ENCODED_MAX = 1_200

/** A UTF-16 unit has at most three bytes, each percent-encoded as three characters. */
const ENCODED_UNIT_MAX = 9

/** Whether the texts together fit, encoded. False for text that is not well-formed Unicode. */
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

const parsedAccounts = new Map<AccountId, ParsedAccount | undefined>()
const PARSED_ACCOUNTS_MAX = 1_000

/** Undefined for a text that is not an account id. Remembers the last results: entries name few accounts, many times. */
export function parseAccount(id: AccountId): ParsedAccount | undefined {
  const known = parsedAccounts.get(id)
  if (known !== undefined || parsedAccounts.has(id)) return known
  const parsed = parseParts(id)
  if (parsedAccounts.size >= PARSED_ACCOUNTS_MAX) parsedAccounts.clear()
  parsedAccounts.set(id, parsed)
  return parsed
}

/** Empty for a text that is not an account id. */
export function instanceIdOf(id: AccountId): string {
  return parseAccount(id)?.instanceId ?? ''
}

/** The same for all accounts of a line item, in all its periods. */
export function lineItemKey(id: AccountId): string {
  const parsed = parseAccount(id)
  return `${parsed?.instanceId}/${parsed?.lineItemId}`
}

/** The encoding changes no character of such a text. */
const PLAIN = /^[\w.!~*'()/-]*$/

function parseParts(id: AccountId): ParsedAccount | undefined {
  const [kind, ...encoded] = id.split('/')
  const isPlain = PLAIN.test(id)
  let parts: string[]
  try {
    parts = isPlain ? encoded : encoded.map(decodeURIComponent)
  } catch {
    return undefined
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
  return isPlain || (parsed !== undefined && id === join(kind ?? '', ...parts)) ? parsed : undefined
}

/** What a charge took from one account, or a refund returned to it. `amount > 0n`. */
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
