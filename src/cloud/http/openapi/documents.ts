/** Generates the API documents from the served operations. */
import { API_VERSIONS, type ApiVersion } from '../../../protocol/service/status.ts'
import type { Operation } from '../operation.ts'
import { openApiDocument } from './document.ts'
import type { JsonSchema } from './render-schema.ts'

export type DocumentName = ApiVersion | 'edge'
export const DOCUMENT_NAMES: readonly DocumentName[] = [...API_VERSIONS, 'edge']

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
      const title = name === 'edge' ? EDGE_TITLE : { ...SERVICE_TITLE, version: name }
      const described = operations.filter(({ versions }) => versions.includes(title.version))
      return [name, openApiDocument({ ...title, server: prefix === '' ? '/' : prefix, errorsUrl }, described)]
    }),
  )
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
