/** Reads ledger entries as agents write them, many times as fast as the schema, which decides about anything else. */
import { ACCOUNT_ID_MAX } from '../../core/accounts/account.ts'
import { parseDecimal } from '../../core/pricing/amount.ts'
import { type JsonObject, isJsonObject, parseJson } from '../parse-json.ts'
import { INSTANT_MAX } from '../wire.ts'
import { ENGINE_MAX } from './engines.ts'
import type { EntryBody } from './sync.ts'
import { SESSION_EVENTS } from './sessions.ts'

type Place = Pick<EntryBody, 'instanceId' | 'policyRevision' | 'engine'>
type Source = Pick<EntryBody, 'requester' | 'session'>
type Content = Pick<EntryBody, 'items' | 'postings'>

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/
const UUID_LENGTH = 36
const MICRO = /^(0|[1-9]\d{0,17})$/
const KINDS: ReadonlySet<unknown> = new Set(['access', 'refund', 'session', 'burn'])
const EVENTS: ReadonlySet<unknown> = new Set(SESSION_EVENTS)

const WHOLE = '(0|[1-9]\\d{0,15})'
const START = new RegExp(
  `^\\{"n":${WHOLE},"kind":"([a-z]+)","at":${WHOLE},"earliest":${WHOLE},"latest":(?:null|${WHOLE}),`,
)
const ID = ',"correlationId":"'
const AFTER_ID = '",'
const ITEMS = ',"items":['

/** Parses everything but beginnings and ids once for all entries with the same text; these entries share the result. */
export class EntryReader {
  readonly #places = new Parts(readPlace)
  readonly #sources = new Parts(readSource)
  readonly #contents = new Parts(readContent)

  /** @returns what `entryBody` makes of the text, with counts that are decimals; or undefined: ask the schema */
  read(text: string): EntryBody | undefined {
    const start = START.exec(text)
    if (start === null || text.at(-1) !== '}') return undefined
    const placeAt = start[0].length
    // A JSON text has these only where a value has ended, and the parts are JSON only if that value is the entry's.
    const placeEnd = text.indexOf(ID, placeAt)
    const idAt = placeEnd + ID.length
    const idEnd = idAt + UUID_LENGTH
    const sourceAt = idEnd + AFTER_ID.length
    const sourceEnd = text.indexOf(ITEMS, sourceAt)
    if (placeEnd < 0 || sourceEnd < 0 || text.slice(idEnd, sourceAt) !== AFTER_ID) return undefined
    const correlationId = text.slice(idAt, idEnd)
    const place = this.#places.of(text.slice(placeAt, placeEnd))
    const source = this.#sources.of(text.slice(sourceAt, sourceEnd))
    const content = this.#contents.of(text.slice(sourceEnd + 1, -1))
    if (place === null || source === null || content === null) return undefined
    const entry = {
      n: Number(start[1]),
      kind: start[2] as EntryBody['kind'],
      at: Number(start[3]),
      earliest: Number(start[4]),
      latest: start[5] === undefined ? null : Number(start[5]),
      instanceId: place.instanceId,
      policyRevision: place.policyRevision,
      engine: place.engine,
      correlationId,
      requester: source.requester,
      items: content.items,
      postings: content.postings,
    }
    const isRead =
      isWhole(entry.n, 1, Number.MAX_SAFE_INTEGER) &&
      KINDS.has(entry.kind) &&
      isWhole(entry.at, 0, INSTANT_MAX) &&
      isWhole(entry.earliest, 0, INSTANT_MAX) &&
      (entry.latest === null || isWhole(entry.latest, 0, INSTANT_MAX)) &&
      isUuid(correlationId)
    if (!isRead) return undefined
    return source.session === undefined ? entry : { ...entry, session: source.session }
  }
}

/** Parts of entries by their texts, without the braces. */
class Parts<T> {
  readonly #read: (value: JsonObject) => T | null
  readonly #known = new Map<string, T | null>()

  constructor(read: (value: JsonObject) => T | null) {
    this.#read = read
  }

  of(text: string): T | null {
    let part = this.#known.get(text)
    if (part === undefined) {
      const value = parseJson(`{${text}}`)
      part = isJsonObject(value) ? this.#read(value) : null
      this.#known.set(text, part)
    }
    return part
  }
}

function readPlace(value: JsonObject): Place | null {
  const { instanceId, policyRevision, engine } = value
  const isRead =
    hasKeys(value, 3) &&
    isUuid(instanceId) &&
    isWhole(policyRevision, 1, Number.MAX_SAFE_INTEGER) &&
    isWhole(engine, 1, ENGINE_MAX)
  return isRead ? (value as Place) : null
}

function readSource(value: JsonObject): Source | null {
  const { session, requester } = value
  const isRead =
    hasKeys(value, session === undefined ? 1 : 2) &&
    (session === undefined || isSession(session)) &&
    isRequester(requester)
  return isRead ? (value as unknown as Source) : null
}

function readContent(value: JsonObject): Content | null {
  const { items, postings } = value
  const isRead =
    hasKeys(value, 2) &&
    Array.isArray(items) &&
    items.every(readItem) &&
    Array.isArray(postings) &&
    postings.every(readPosting)
  return isRead ? (value as unknown as Content) : null
}

function readItem(value: unknown): boolean {
  if (!isJsonObject(value)) return false
  const { item, version, count, variables, outcome, total, parts, metaData } = value
  return (
    hasKeys(value, 6 + (variables === undefined ? 0 : 1) + (metaData === undefined ? 0 : 1)) &&
    isPlain(item, 256) &&
    isPlain(version, 256) &&
    isText(count, 100) &&
    isCount(count as string) &&
    (variables === undefined || areVariables(variables)) &&
    isPlain(outcome, 64) &&
    readMicro(value, 'total', total) &&
    Array.isArray(parts) &&
    parts.every(readPart) &&
    (metaData === undefined || isRecord(metaData))
  )
}

function readPart(value: unknown): boolean {
  if (!isJsonObject(value)) return false
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
  if (!isJsonObject(value)) return false
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
function readMicro(owner: JsonObject, name: string, text: unknown): boolean {
  if (typeof text !== 'string' || !MICRO.test(text)) return false
  ;(owner as Record<string, unknown>)[name] = BigInt(text)
  return true
}

function isCount(text: string): boolean {
  const count = parseDecimal(text)
  return count !== undefined && count.digits >= 0n
}

function isSession(value: unknown): boolean {
  return isJsonObject(value) && hasKeys(value, 2) && isUuid(value['id']) && EVENTS.has(value['event'])
}

function isRequester(value: unknown): boolean {
  return isJsonObject(value) && hasKeys(value, 2) && isPlain(value['type'], 1024) && isPlain(value['value'], 1024)
}

function areVariables(value: unknown): boolean {
  return isRecord(value) && Object.entries(value).every(([name, text]) => name.length <= 64 && isText(text, 100))
}

/** The schema leaves `__proto__` out. */
function isRecord(value: unknown): value is JsonObject {
  return isJsonObject(value) && !Object.hasOwn(value, '__proto__')
}

/** With the required fields read, this many keys are exactly those. */
function hasKeys(value: JsonObject, count: number): boolean {
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
