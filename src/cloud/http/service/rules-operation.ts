/**
 * Operations on the rules of an instance. Their responses have the revision of the rules as the ETag, and changes accept it
 * as If-Match. The interface does not mention these headers.
 */
import { CodedError } from '../../../protocol/errors.ts'
import { policyTag } from '../../../protocol/edge/policy-document.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'
import { ofRevision } from '../../policy/bump-policy-revision.ts'
import type { Principal } from '../../service-api/principal.ts'
import { actingAs } from '../../storage/audit.ts'
import type { Reader, Store } from '../../storage/store.ts'
import { parseTags } from '../entity-tags.ts'
import { type Answer, type Call, type Operation, serviceOperation } from '../operation.ts'

type Kind = Principal['kind']

type Declared<Params, Query, Body, K extends Kind> = Omit<
  Parameters<typeof serviceOperation<Params, Query, Body, K>>[0],
  'handle'
> & {
  /** Does everything in the given store. */
  readonly handle: (call: Call<Params, Query, Body, K, ApiVersion>, store: Store) => Promise<Answer>
}

export function rulesOperation<
  Params extends { readonly instanceId: string },
  Query = unknown,
  Body = unknown,
  K extends Kind = Kind,
>(store: Store, declared: Declared<Params, Query, Body, K>): Operation {
  const { method, errors = [], handle } = declared
  return serviceOperation<Params, Query, Body, K>({
    ...declared,
    ofRules: true,
    errors: method === 'GET' ? errors : [...errors, 'RULES_CHANGED'],
    handle: async (call) => {
      const { instanceId } = call.params
      let etag: string | undefined
      const note = async (reader: Pick<Reader, 'policyRevisions'>): Promise<void> => {
        const found = await reader.policyRevisions.get(instanceId)
        if (found !== undefined) etag = policyTag(found.revision)
      }
      const acting = ofRevision(actingAs(store, call.principal), instanceId, (revision) =>
        requireMatch(call.headers['if-match'], policyTag(revision)),
      )
      const answer = await handle(call, noting(acting, note))
      return etag === undefined ? answer : { ...answer, headers: { ...answer.headers, etag } }
    },
  })
}

/** Notes the revision that a reader sees, and the one that a change makes. */
function noting(store: Store, note: (reader: Pick<Reader, 'policyRevisions'>) => Promise<void>): Store {
  return {
    ...store,
    read: (work) =>
      store.read(async (reader) => {
        await note(reader)
        return work(reader)
      }),
    transaction: (work) =>
      store.transaction(async (tx) => {
        const result = await work(tx)
        await note(tx)
        return result
      }),
  }
}

/** @throws CodedError */
function requireMatch(given: string | undefined, current: string): void {
  if (given === undefined) return
  const isNamed = parseTags(given)
  if (isNamed === null) {
    throw new CodedError('BAD_REQUEST', 'if-match: must be the ETag of a response, with its quotes')
  }
  if (isNamed(current)) return
  throw new CodedError('RULES_CHANGED', `The rules of the instance have changed: their ETag is ${current}.`)
}
