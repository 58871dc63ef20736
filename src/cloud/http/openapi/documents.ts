/** Generates the API documents from the served operations. */
import { API_VERSIONS, type ApiVersion } from '../../../protocol/service/status.ts'
import { instanceHeader } from '../../../protocol/service/sessions.ts'
import { uuid, idempotencyHeader, idempotencyKeyText } from '../../../protocol/wire.ts'
import { z } from 'zod'
import { errorCodes } from '../declared-answers.ts'
import { type CallerKind, type Operation, addressesOf, at, roleOf } from '../operation.ts'
import { type DescribedOperation, type HeaderForm, type SCHEMES, type Title, openApiDocument } from './document.ts'
import type { JsonSchema } from './render-schema.ts'

export type DocumentName = ApiVersion | 'edge' | 'data'
export const DOCUMENT_NAMES: readonly DocumentName[] = [...API_VERSIONS, 'edge', 'data']

export interface Place {
  /** Path prefix of the cloud. */
  readonly prefix: string
  readonly errorsUrl: string
}

export function apiDocuments(
  operations: readonly Operation[],
  { prefix, errorsUrl }: Place,
): ReadonlyMap<DocumentName, JsonSchema> {
  return new Map(
    DOCUMENT_NAMES.map((name) => {
      const title = titleOf(name)
      const described = operations
        .filter((operation) => documentOf(operation, title.version) === name)
        .map((operation) => describedAs(operation, title.version))
      return [name, openApiDocument({ ...title, server: prefix === '' ? '/' : prefix, errorsUrl }, described)]
    }),
  )
}

function titleOf(name: DocumentName): Omit<Title, 'server' | 'errorsUrl'> {
  if (name === 'edge') return EDGE_TITLE
  return name === 'data' ? DATA_TITLE : { ...SERVICE_TITLE, version: name }
}

/** Undefined: the operation does not have this version. */
function documentOf({ versions, areas }: Operation, version: string): DocumentName | undefined {
  if (!versions.includes(version)) return undefined
  const [area] = at(version, areas)
  if (area === 'edge/api') return 'edge'
  return area === 'data/api' ? 'data' : (version as ApiVersion)
}

export function describedAs(operation: Operation, version: string): DescribedOperation {
  const { id, tag, summary, description, method, params, query, example, errors } = operation
  const role = roleOf(operation)
  const needed = role === null || role === 'read' ? null : role
  const words = [
    ...(description === undefined ? [] : [description]),
    ...(needed === null ? [] : [`Administrators need the role \`${needed}\`.`]),
  ]
  return {
    id,
    tag,
    summary,
    description: words.join('\n\n'),
    method,
    paths: addressesOf(operation, version).map(templateOf),
    security: schemesOf(operation).map((scheme) => [
      scheme,
      scheme === 'AdministrationAccess' && needed !== null ? [needed] : [],
    ]),
    params,
    query,
    headers: headersOf(operation),
    body: operation.body === undefined ? undefined : at(version, operation.bodyForm ?? operation.body),
    example,
    answers: answersOf(operation, version),
    codes: errorCodes(method, errors),
  }
}

function answersOf({ answers, ofRules = false }: Operation, version: string): DescribedOperation['answers'] {
  const all = at(version, answers)
  if (!ofRules) return all
  const tagged = Object.entries(all).map(([status, form]) => [
    status,
    Number(status) < 300 ? { ...form, headers: { ETag: RULES_TAG } } : form,
  ])
  return Object.fromEntries(tagged) as DescribedOperation['answers']
}

function templateOf(path: string): string {
  return path.replaceAll(/:(\w+)/g, '{$1}')
}

const SCHEME_OF: Readonly<Record<CallerKind, keyof typeof SCHEMES>> = {
  ADMINISTRATOR: 'AdministrationAccess',
  CLIENT: 'ClientAccess',
  DEVICE: 'DeviceToken',
  ENROLLMENT: 'EnrollmentToken',
  INTRODUCED_DEVICE: 'DeviceToken',
}

function schemesOf({ principals, basic = false }: Operation): readonly (keyof typeof SCHEMES)[] {
  return [...principals.map((kind) => SCHEME_OF[kind]), ...(basic ? (['AdministrationAccessBasic'] as const) : [])]
}

function headersOf(operation: Operation): Readonly<Record<string, HeaderForm>> {
  const { method, principals, idempotent, conditional = false, ofRules = false, gzip = false } = operation
  return {
    ...(principals.includes('CLIENT') ? { [instanceHeader]: INSTANCE_HEADER } : {}),
    ...(idempotent === undefined
      ? {}
      : { [idempotencyHeader]: { description: idempotent, schema: idempotencyKeyText } }),
    ...(conditional ? { 'if-none-match': REVISION_HEADER } : {}),
    ...(ofRules && method !== 'GET' ? { 'if-match': RULES_HEADER } : {}),
    ...(gzip ? { 'content-encoding': GZIP_HEADER } : {}),
  }
}

const INSTANCE_HEADER = {
  description: 'The instance of the call. Client tokens require it on session operations, and must list it in `aud`.',
  schema: uuid,
}
const REVISION_HEADER = { description: "The ETag of the device's revision.", schema: z.string() }
const RULES_HEADER = {
  description:
    'Optional: the ETag of a response with rules of this instance. The change is refused if they have changed since.',
  schema: z.string(),
}
const RULES_TAG = {
  description: 'The revision of the rules of the instance. It does not change with use.',
  schema: z.string(),
}
const GZIP_HEADER = { description: 'Compression of the body.', schema: z.enum(['gzip', 'identity']) }

const SERVICE_TITLE = {
  title: 'Tallygate: monetization service API',
  description:
    'Instances, line items, rules of access, rate tables, sessions, access requests, configuration and keys. Instants are POSIX milliseconds; token amounts are exact decimals. Clients decide by the first digit of an item status: 1 is not an error, 2 is refused.',
}

const EDGE_TITLE = {
  title: 'Tallygate: edge API',
  version: 'v1',
  description:
    'Devices enroll, get their rules and deliver their ledgers; administrators manage devices. Amounts are micro-tokens as integer text.',
}

const DATA_TITLE = {
  title: 'Tallygate: usage reports',
  version: 'v1',
  description:
    'For programs that read usage from the original service. The address is also served without the path prefix. Amounts are exact decimals.',
}
