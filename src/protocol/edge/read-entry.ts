/**
 * Reads ledger entries as agents write them, 20 times as fast as the schema: a segment has up to a thousand. Anything else
 * goes to the schema, which decides and names the problem.
 */
import { ACCOUNT_ID_MAX } from '../../core/accounts/account.ts'
import { INSTANT_MAX } from '../wire.ts'
import { ENGINE_MAX } from './engines.ts'
import type { EntryBody } from './sync.ts'
import { SESSION_EVENTS } from './sessions.ts'

type Json = Readonly<Record<string, unknown>>

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/
/** All of them fit 64 bits. */
const MICRO = /^(0|[1-9]\d{0,17})$/
const KINDS: ReadonlySet<unknown> = new Set(['access', 'refund', 'session', 'burn'])
const EVENTS: ReadonlySet<unknown> = new Set(SESSION_EVENTS)

/**
 * @param value as JSON.parse made it; becomes part of the result
 * @returns what `entryBody.parse` returns, or undefined: ask the schema
 */
export function readEntry(value: unknown): EntryBody | undefined {
  if (!isObject(value)) return undefined
  const { n, kind, at, earliest, latest, instanceId, policyRevision, engine, correlationId, session } = value
  const { requester, items, postings } = value
  const isRead =
    hasKeys(value, session === undefined ? 12 : 13) &&
    isWhole(n, 1, Number.MAX_SAFE_INTEGER) &&
    KINDS.has(kind) &&
    isWhole(at, 0, INSTANT_MAX) &&
    isWhole(earliest, 0, INSTANT_MAX) &&
    (latest === null || isWhole(latest, 0, INSTANT_MAX)) &&
    isUuid(instanceId) &&
    isWhole(policyRevision, 1, Number.MAX_SAFE_INTEGER) &&
    isWhole(engine, 1, ENGINE_MAX) &&
    isUuid(correlationId) &&
    (session === undefined || isSession(session)) &&
    isRequester(requester) &&
    Array.isArray(items) &&
    items.every(readItem) &&
    Array.isArray(postings) &&
    postings.every(readPosting)
  return isRead ? (value as unknown as EntryBody) : undefined
}

function readItem(value: unknown): boolean {
  if (!isObject(value)) return false
  const { item, version, count, variables, outcome, total, parts, metaData } = value
  return (
    hasKeys(value, 6 + (variables === undefined ? 0 : 1) + (metaData === undefined ? 0 : 1)) &&
    isPlain(item, 256) &&
    isPlain(version, 256) &&
    isText(count, 100) &&
    (variables === undefined || areVariables(variables)) &&
    isPlain(outcome, 64) &&
    readMicro(value, 'total', total) &&
    Array.isArray(parts) &&
    parts.every(readPart) &&
    (metaData === undefined || isRecord(metaData))
  )
}

function readPart(value: unknown): boolean {
  if (!isObject(value)) return false
  const { lineItemId, rate, actionId, charged } = value
  return (
    hasKeys(value, 4) &&
    isPlain(lineItemId, 256) &&
    isText(rate, 100) &&
    (actionId === null || isPlain(actionId, 64)) &&
    readMicro(value, 'charged', charged)
  )
}

function readPosting(value: unknown): boolean {
  if (!isObject(value)) return false
  const { account, amount, aboveGrant } = value
  return (
    hasKeys(value, aboveGrant === undefined ? 2 : 3) &&
    isText(account, ACCOUNT_ID_MAX) &&
    account !== '' &&
    readMicro(value, 'amount', amount) &&
    (aboveGrant === undefined || readMicro(value, 'aboveGrant', aboveGrant))
  )
}

/** Replaces the text by its number. */
function readMicro(owner: Json, name: string, text: unknown): boolean {
  if (typeof text !== 'string' || !MICRO.test(text)) return false
  ;(owner as Record<string, unknown>)[name] = BigInt(text)
  return true
}

function isSession(value: unknown): boolean {
  return isObject(value) && hasKeys(value, 2) && isUuid(value['id']) && EVENTS.has(value['event'])
}

function isRequester(value: unknown): boolean {
  return isObject(value) && hasKeys(value, 2) && isPlain(value['type'], 1024) && isPlain(value['value'], 1024)
}

function areVariables(value: unknown): boolean {
  return isRecord(value) && Object.entries(value).every(([name, text]) => name.length <= 64 && isText(text, 100))
}

/** The schema leaves `__proto__` out. */
function isRecord(value: unknown): value is Json {
  return isObject(value) && !Object.hasOwn(value, '__proto__')
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** With the required fields read, this many keys are exactly those. */
function hasKeys(value: Json, count: number): boolean {
  let found = 0
  for (const key in value) if (Object.hasOwn(value, key)) found += 1
  return found === count
}

function isWhole(value: unknown, min: number, max: number): boolean {
  return Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max
}

function isUuid(value: unknown): boolean {
  return typeof value === 'string' && UUID.test(value)
}

function isText(value: unknown, max: number): boolean {
  return typeof value === 'string' && value.length <= max
}

function isPlain(value: unknown, max: number): boolean {
  return isText(value, max) && (value as string).isWellFormed() && !(value as string).includes('\u0000')
}
