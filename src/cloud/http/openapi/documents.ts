/** Generates the API documents from the served operations. */
import { API_VERSIONS, type ApiVersion } from '../../../protocol/service/status.ts'
import { type Operation, at } from '../operation.ts'
import { type Title, openApiDocument } from './document.ts'
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
      const described = operations.filter((operation) => documentOf(operation, title.version) === name)
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
