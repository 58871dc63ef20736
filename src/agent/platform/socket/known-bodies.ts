/** Cache of parsed bodies, keyed by their bytes. Callers share the cached objects, so they must not change them. */
import { isUtf8 } from 'node:buffer'
import type { CodedError } from '../../../protocol/errors.ts'
import { type JsonBody, parseBody } from './request-body.ts'

const BODIES_MAX = 256

/** Longer bodies rarely repeat. */
const BODY_BYTES_MAX = 2_048

export class KnownBodies {
  readonly #known = new Map<string, JsonBody>()

  /** Cached {@link parseBody}. */
  parse(bytes: Buffer): JsonBody | CodedError {
    if (bytes.length > BODY_BYTES_MAX || !isUtf8(bytes)) return parseBody(bytes)
    const text = bytes.toString('utf8')
    const known = this.#known.get(text)
    if (known !== undefined) return known
    const body = parseBody(bytes)
    if (!('text' in body)) return body
    if (this.#known.size >= BODIES_MAX) this.#known.clear()
    this.#known.set(text, body)
    return body
  }
}
