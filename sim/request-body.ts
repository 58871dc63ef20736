/** Planned requests as applications send them. */
import type { AccessRequest } from '../src/core/rules/decision.ts'
import { accessRequestBody, requestOf } from '../src/protocol/service/access-request.ts'
import type { PlannedRequest } from './plan.ts'

/** On each requested item, which ledgers and usage records repeat: what the auditor needs to decide again. */
export interface MetaData {
  /** Position in the request. */
  readonly at: number
  readonly dictionary: Readonly<Record<string, unknown>>
  /** Of the application session or idempotency key, and its number. */
  readonly key?: string
}

export interface Body {
  readonly requester: { readonly type: string; readonly value: string; readonly dictionary?: MetaData['dictionary'] }
  readonly requestedItems: readonly {
    readonly item: string
    readonly version?: string
    readonly count: number
    readonly metaData: MetaData
  }[]
}

export function dictionaryOf({ dictionary, gold }: PlannedRequest): MetaData['dictionary'] {
  return dictionary ?? (gold ? { tier: 'gold' } : {})
}

/** @param key null: without */
export function bodyOf(request: PlannedRequest, key: string | null = null): Body {
  const { item, count, requester, more = [] } = request
  const dictionary = dictionaryOf(request)
  const given = Object.keys(dictionary).length === 0 ? {} : { dictionary }
  return {
    requester: { type: 'user', value: requester, ...given },
    requestedItems: [{ item, count }, ...more].map((each, at) => ({
      ...each,
      metaData: { at, dictionary, ...(key === null ? {} : { key }) },
    })),
  }
}

/** As the services read it. */
export function readBody(body: Body): { readonly request: AccessRequest; readonly metaData: readonly MetaData[] } {
  return {
    request: requestOf(accessRequestBody['v1.1'].parse(body)),
    metaData: body.requestedItems.map(({ metaData }) => metaData),
  }
}
