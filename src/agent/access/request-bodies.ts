/** The socket passes the same object for the same bytes, so each body is parsed once while the socket caches it. */
import type { AccessRequest } from '../../core/rules/decision.ts'
import { CodedError, firstProblem } from '../../protocol/errors.ts'
import { type AccessRequestBody, accessRequestBody, requestOf } from '../../protocol/service/access-request.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'

export interface ReadBody {
  readonly body: AccessRequestBody
  readonly request: AccessRequest
}

export class RequestBodies {
  readonly #read: Readonly<Record<ApiVersion, WeakMap<object, ReadBody>>> = {
    'v1.0': new WeakMap(),
    'v1.1': new WeakMap(),
  }

  /** @throws CodedError BAD_REQUEST */
  read(version: ApiVersion, given: unknown): ReadBody {
    const isObject = typeof given === 'object' && given !== null
    const known = isObject ? this.#read[version].get(given) : undefined
    if (known !== undefined) return known
    const parsed = accessRequestBody[version].safeParse(given)
    if (!parsed.success) throw new CodedError('BAD_REQUEST', firstProblem(parsed.error))
    const read = { body: parsed.data, request: requestOf(parsed.data) }
    if (isObject) this.#read[version].set(given, read)
    return read
  }
}
