/** Generates the API documents from the served operations. */
import { z } from 'zod'
import { instanceHeader, openingHeader, openingKey } from '../../../protocol/service/sessions.ts'
import { API_VERSIONS, type ApiVersion } from '../../../protocol/service/status.ts'
import { uuid } from '../../../protocol/wire.ts'
import { EDGE_AREA, type EdgeAccess, type EdgeRoute, edgeErrors } from '../edge-area.ts'
import { at } from '../operation.ts'
import { type Route, ownErrors } from '../routes.ts'
import { type Described, openApiDocument } from './document.ts'
import type { JsonSchema } from './render-schema.ts'

export type DocumentName = ApiVersion | 'edge'
export const DOCUMENT_NAMES: readonly DocumentName[] = [...API_VERSIONS, 'edge']

export interface Operations {
  readonly service: readonly Route[]
  readonly edge: readonly EdgeRoute[]
}

export interface Place {
  /** Path prefix of the cloud. */
  readonly prefix: string
  readonly errorsUrl: string
}

export function apiDocuments({ service, edge }: Operations, place: Place): ReadonlyMap<DocumentName, JsonSchema> {
  const title = { server: place.prefix === '' ? '/' : place.prefix, errorsUrl: place.errorsUrl }
  return new Map<DocumentName, JsonSchema>([
    ...API_VERSIONS.map((version) => {
      const operations = service.filter(({ versions = API_VERSIONS }) => versions.includes(version))
      const described = operations.map((operation) => ofService(operation, version))
      return [version, openApiDocument({ ...title, ...SERVICE_TITLE, version }, described)] as const
    }),
    ['edge', openApiDocument({ ...title, ...EDGE_TITLE }, edge.map(ofEdge))],
  ])
}

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

function ofService(operation: Route, version: ApiVersion): Described {
  const { method, path, access, params, query, body, bodyForm, id, tag, summary, description, example, idempotent } =
    operation
  const [first, ...others] = at(version, operation.areas).map((area) => `/${area}/${version}${path}`)
  if (first === undefined) throw new Error(`invariant: ${id} is served somewhere`)
  return {
    method,
    path: first,
    alsoAt: others,
    id,
    tag,
    summary,
    description,
    security: access === 'EITHER' ? ['AdministrationAccess', 'ClientAccess'] : ['AdministrationAccess'],
    params,
    query,
    headers: {
      ...(access === 'EITHER' ? { [instanceHeader]: INSTANCE_HEADER } : {}),
      ...(idempotent === undefined ? {} : { [openingHeader]: { description: idempotent, schema: openingKey } }),
    },
    body: body === undefined ? undefined : at(version, bodyForm ?? body),
    example,
    answers: at(version, operation.answers),
    errors: ownErrors(operation),
  }
}

const INSTANCE_HEADER = {
  description: 'The instance of the call. Client tokens require it on session operations, and must list it in `aud`.',
  schema: uuid,
}

function ofEdge(operation: EdgeRoute): Described {
  const { method, path, access, params, query, body, id, tag, summary, description, example, answers } = operation
  return {
    method,
    path: `${EDGE_AREA}${path}`,
    alsoAt: [],
    id,
    tag,
    summary,
    description,
    security: SECURITY[access],
    params,
    query,
    headers: {
      ...(operation.conditional === true ? { 'if-none-match': REVISION_HEADER } : {}),
      ...(operation.gzip === true ? { 'content-encoding': GZIP_HEADER } : {}),
    },
    body,
    example,
    answers,
    errors: edgeErrors(operation),
  }
}

const SECURITY: Readonly<Record<EdgeAccess, Described['security']>> = {
  DEVICE: ['DeviceToken'],
  ADMINISTRATION: ['AdministrationAccess'],
  ENROLLMENT: ['EnrollmentToken'],
  INTRODUCED: ['DeviceToken'],
}

const REVISION_HEADER = { description: "The ETag of the device's revision.", schema: z.string() }
const GZIP_HEADER = { description: 'Compression of the body.', schema: z.enum(['gzip', 'identity']) }
