/** Source: interface, Sessions and Non-session access request; documentation on request and response bodies. */
import { z } from 'zod'
import type { AccessRequest, Decision, RequestedItem } from '../../core/rules/decision.ts'
import type { Variables } from '../../core/pricing/formula-rate.ts'
import { REQUESTER_ENCODED_MAX, fitsEncoded } from '../../core/accounts/account.ts'
import { type Decimal, parseDecimal } from '../../core/pricing/amount.ts'
import { variableName } from '../../core/pricing/formula.ts'
import { parseInput } from '../errors.ts'
import { type JsonObject, isJsonObject } from '../parse-json.ts'
import { decimalNumber, exactNumber, plainText, tokensNumber, uuid } from '../wire.ts'
import { type ApiVersion, ITEM_STATUS } from './status.ts'

const REQUESTED_ITEMS_MAX = 500

/** Not a zod record: that drops the key `__proto__`, and a DENY rule on it would be skipped. */
const jsonObject = z
  .custom<JsonObject>(isJsonObject, 'must be an object')
  .meta({ wire: { type: 'object', additionalProperties: true } })

/** This key sets the prototype in programs that copy objects carelessly. */
const UNSAFE_KEY = '__proto__'

function holdsUnsafeKey(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  return Object.hasOwn(value, UNSAFE_KEY) || Object.values(value).some(holdsUnsafeKey)
}

/** A number such as 1e400, which would be recorded as null. */
function holdsInfinity(value: unknown): boolean {
  if (typeof value === 'number') return !Number.isFinite(value)
  return typeof value === 'object' && value !== null && Object.values(value).some(holdsInfinity)
}

const recordedObject = jsonObject.refine(
  (value) => !holdsInfinity(value),
  'must not contain a number beyond the range of a double',
)

const metaData = recordedObject.refine((value) => !holdsUnsafeKey(value), `must not contain the key ${UNSAFE_KEY}`)

const requester = z
  .strictObject({
    type: plainText(256),
    value: plainText(256),
    dictionary: recordedObject.optional().meta({ description: 'Properties for conditions.' }),
  })
  // Together they name an account.
  .refine(
    ({ type, value }) => fitsEncoded(REQUESTER_ENCODED_MAX, type, value),
    `type and value must have at most ${REQUESTER_ENCODED_MAX} characters in total after percent-encoding`,
  )
  .meta({ id: 'Requester' })

const VARIABLES_MAX = 32
const VARIABLES_WIRE = { type: 'object', maxProperties: VARIABLES_MAX, additionalProperties: { type: 'number' } }

/** Entry by entry, to keep every name, `__proto__` included. */
const variables = jsonObject.meta({ wire: VARIABLES_WIRE }).transform((given, context): Variables => {
  const refuse = (path: string[], message: string): Variables => {
    context.addIssue({ code: 'custom', path, message })
    return z.NEVER
  }
  const entries = Object.entries(given)
  if (entries.length > VARIABLES_MAX) return refuse([], `must contain at most ${VARIABLES_MAX} variables`)
  const known = new Map<string, Decimal>()
  for (const [key, number] of entries) {
    const name = variableName(key)
    if (name === undefined) return refuse([key], 'is not a variable name: use letters, digits and "_"')
    if (known.has(name)) return refuse([key], 'appears twice: names are case-insensitive')
    const value = typeof number === 'number' ? parseDecimal(number) : undefined
    if (value === undefined) return refuse([key], 'must be a number in the supported range')
    known.set(name, value)
  }
  return known
})

const itemFields = {
  item: plainText(256).min(1),
  version: plainText(256).optional(),
  /** Older spelling of `version`. */
  requestedVersion: plainText(256).optional(),
  count: decimalNumber('POSITIVE'),
  metaData: metaData.optional().meta({ description: 'Written to the usage records only.' }),
}

const ONE_VERSION = { message: 'give version or requestedVersion, not both' }
const hasOneVersion = (item: { readonly version?: unknown; readonly requestedVersion?: unknown }): boolean =>
  item.version === undefined || item.requestedVersion === undefined

const ITEM_META = { id: 'ItemToRequest', description: '`version` or its older spelling `requestedVersion`, not both.' }

const requestedItem = {
  'v1.0': z
    .strictObject({
      ...itemFields,
      variables: z
        .undefined('is a field of v1.1')
        .meta({ wire: { not: {} } })
        .optional(),
    })
    .refine(hasOneVersion, ONE_VERSION)
    .meta(ITEM_META),
  'v1.1': z
    .strictObject({ ...itemFields, variables: variables.optional() })
    .refine(hasOneVersion, ONE_VERSION)
    .meta(ITEM_META),
}

const oneOff = (version: ApiVersion) =>
  z
    .strictObject({ requester, requestedItems: z.array(requestedItem[version]).min(1).max(REQUESTED_ITEMS_MAX) })
    .meta({ id: 'AccessRequest' })

const inSession = (version: ApiVersion) =>
  z
    .strictObject({
      requester,
      rollbackOnDeny: z.boolean().meta({
        description: 'If true, a denied request leaves the session unchanged; otherwise it ends the session.',
      }),
      requestedItems: z.array(requestedItem[version]).max(REQUESTED_ITEMS_MAX),
    })
    .meta({
      id: 'SessionAccessRequest',
      description: 'An empty list releases the session’s items; the session stays open.',
    })

export const accessRequestBody = { 'v1.0': oneOff('v1.0'), 'v1.1': oneOff('v1.1') }

export const sessionAccessRequestBody = { 'v1.0': inSession('v1.0'), 'v1.1': inSession('v1.1') }

export type AccessRequestBody = z.infer<(typeof accessRequestBody)[ApiVersion]>

const chargedLineItem = z
  .strictObject({ activationId: z.string(), rate: z.number().min(0), tokensCharged: z.number().min(0) })
  .meta({ id: 'ChargedLineItem' })

const responseBody = <Code extends z.ZodType<string>>(code: Code) =>
  z
    .strictObject({
      correlationId: uuid,
      requester: z.strictObject({ type: z.string(), value: z.string() }),
      requestedItems: z.array(
        z
          .strictObject({
            item: z.string(),
            version: z.string().optional(),
            count: z.number().gt(0),
            status: z.strictObject({ code, description: z.string() }),
            totalTokensCharged: z.number().min(0),
            lineItems: z.array(chargedLineItem),
          })
          .meta({ id: 'RequestedItem' }),
      ),
    })
    .meta({ id: 'AccessResponse', description: 'One element for each requested item, in their order.' })

export const accessResponseBody = responseBody(z.string())
export type AccessResponse = z.infer<typeof accessResponseBody>

const codesIn = (version: ApiVersion) =>
  z.enum(Object.values(ITEM_STATUS).map((status) => status[version])).meta({
    description: Object.values(ITEM_STATUS)
      .map(({ [version]: code, description }) => `- \`${code}\`: ${description}`)
      .join('\n'),
  })

export const accessResponses: Readonly<Record<ApiVersion, z.ZodType>> = {
  'v1.0': responseBody(codesIn('v1.0')),
  'v1.1': responseBody(codesIn('v1.1')),
}

/** Without `metaData`: decisions do not depend on it. */
export function requestOf(body: Pick<AccessRequestBody, 'requester' | 'requestedItems'>): AccessRequest {
  return {
    requester: {
      type: body.requester.type,
      value: body.requester.value,
      dictionary: body.requester.dictionary ?? {},
    },
    items: body.requestedItems.map((item): RequestedItem => ({
      name: item.item,
      version: item.version ?? item.requestedVersion ?? '',
      count: item.count,
      ...(item.variables === undefined ? {} : { variables: item.variables }),
    })),
  }
}

export interface ReadAccessRequest {
  readonly request: AccessRequest
  readonly metaData: readonly (Readonly<Record<string, unknown>> | undefined)[]
}

/** Of a one-off request. @throws CodedError BAD_REQUEST */
export function readAccessRequest(version: ApiVersion, given: unknown): ReadAccessRequest {
  const plain = plainAccessRequest(given)
  if (plain !== undefined) return plain
  const parsed = parseInput(accessRequestBody[version], given)
  return { request: requestOf(parsed), metaData: parsed.requestedItems.map(({ metaData }) => metaData) }
}

/** Like `accessRequestBody` and {@link requestOf} for plain bodies, several times as fast; undefined for others. */
export function plainAccessRequest(given: unknown): ReadAccessRequest | undefined {
  if (!isJsonObject(given)) return undefined
  let requester: AccessRequest['requester'] | undefined
  let list: unknown
  for (const key in given) {
    if (key === 'requester') requester = plainRequester(given[key])
    else if (key === 'requestedItems') list = given[key]
    else return undefined
  }
  if (requester === undefined || !Array.isArray(list)) return undefined
  if (list.length === 0 || list.length > REQUESTED_ITEMS_MAX) return undefined
  const items: RequestedItem[] = []
  const metaData: ReadAccessRequest['metaData'][number][] = []
  for (const each of list as readonly unknown[]) {
    if (!isJsonObject(each)) return undefined
    const item = plainItem(each)
    if (item === undefined) return undefined
    items.push(item)
    metaData.push(each['metaData'] as ReadAccessRequest['metaData'][number])
  }
  return { request: { requester, items }, metaData }
}

const PLAIN_TEXT = /^[ -~]{1,256}$/

function isPlainText(value: unknown): value is string {
  return typeof value === 'string' && PLAIN_TEXT.test(value)
}

function plainRequester(given: unknown): AccessRequest['requester'] | undefined {
  if (!isJsonObject(given)) return undefined
  for (const key in given) if (key !== 'type' && key !== 'value' && key !== 'dictionary') return undefined
  const { type, value, dictionary = {} } = given
  if (!isPlainText(type) || !isPlainText(value) || !isJsonObject(dictionary)) return undefined
  if (holdsInfinity(dictionary)) return undefined
  return fitsEncoded(REQUESTER_ENCODED_MAX, type, value) ? { type, value, dictionary } : undefined
}

function plainItem(given: JsonObject): RequestedItem | undefined {
  for (const key in given) {
    if (key !== 'item' && key !== 'version' && key !== 'count' && key !== 'metaData') return undefined
  }
  const { item: name, version, count, metaData: own = {} } = given
  if (!isPlainText(name) || (version !== undefined && !isPlainText(version))) return undefined
  if (typeof count !== 'number' || !(count > 0) || !isFlat(own)) return undefined
  const exact = parseDecimal(count)
  return exact === undefined || exact.digits === 0n ? undefined : { name, version: version ?? '', count: exact }
}

function isFlat(value: unknown): boolean {
  if (!isJsonObject(value)) return false
  for (const key in value) {
    const own = value[key]
    if (key === UNSAFE_KEY || (typeof own === 'object' && own !== null)) return false
    if (typeof own === 'number' && !Number.isFinite(own)) return false
  }
  return true
}

/** Numbers are exact decimal text (see `tokensNumber`): serialize with JSON.stringify. */
export function accessResponse(
  apiVersion: ApiVersion,
  correlationId: string,
  request: AccessRequest,
  decision: Pick<Decision, 'items'>,
): AccessResponse {
  return {
    correlationId,
    requester: { type: request.requester.type, value: request.requester.value },
    requestedItems: decision.items.map((outcome, index) => {
      const requested = request.items[index]
      if (requested === undefined) throw new Error('invariant: one outcome per requested item')
      const status = ITEM_STATUS[outcome.outcome === 'REFUSED' ? outcome.reason : outcome.outcome]
      const granted = outcome.outcome === 'GRANTED'
      return {
        item: requested.name,
        ...(requested.version === '' ? {} : { version: requested.version }),
        count: exactNumber(requested.count),
        status: { code: status[apiVersion], description: status.description },
        totalTokensCharged: granted ? tokensNumber(outcome.total) : 0,
        lineItems: granted
          ? outcome.shares.map((share) => ({
              activationId: share.lineItemId,
              rate: exactNumber(share.rate),
              tokensCharged: tokensNumber(share.charged),
            }))
          : [],
      }
    }),
  }
}
