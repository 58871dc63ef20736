/** The cloud's keys that this device trusts: pinned by the enrollment token or named by a verified policy. */
import { type KeyObject, createPublicKey } from 'node:crypto'
import type { z } from 'zod'
import { parseJson } from '../../protocol/parse-json.ts'
import { type DocumentKind, openDocument, type PublicJwk, publicJwk, thumbprint } from '../../protocol/signing.ts'

interface TrustedKey {
  readonly thumbprint: string
  readonly jwk: PublicJwk
  readonly key: KeyObject
}

export interface Opened {
  readonly text: string
  readonly signedBy: PublicJwk
}

export class Trust {
  readonly #keys: readonly TrustedKey[]

  private constructor(keys: readonly TrustedKey[]) {
    this.#keys = keys
  }

  /** @param jwks public keys as JWK text. Throws on invalid text: keys are verified before they are stored. */
  static async of(jwks: readonly string[]): Promise<Trust> {
    const keys = jwks.map(async (text) => {
      const { jwk, key } = keyOf(text)
      return { thumbprint: await thumbprint(jwk), jwk, key }
    })
    return new Trust(await Promise.all(keys))
  }

  async open(kind: DocumentKind, document: string): Promise<Opened | undefined> {
    for (const { key, jwk } of this.#keys) {
      const text = await openDocument(kind, document, key)
      if (text !== undefined) return { text, signedBy: jwk }
    }
    return undefined
  }

  /** Undefined also for a document that does not fit the schema. */
  async read<S extends z.ZodType>(kind: DocumentKind, document: string, schema: S): Promise<z.output<S> | undefined> {
    const opened = await this.open(kind, document)
    return opened === undefined ? undefined : schema.safeParse(parseJson(opened.text)).data
  }
}

function keyOf(text: string): Pick<TrustedKey, 'jwk' | 'key'> {
  const jwk = publicJwk.parse(JSON.parse(text))
  return { jwk, key: createPublicKey({ key: jwk, format: 'jwk' }) }
}

/** Whether a stored key is one that {@link Trust.of} can read. */
export function isKeyText(text: string): boolean {
  try {
    keyOf(text)
    return true
  } catch {
    return false
  }
}

export async function distinctKeys(keys: readonly PublicJwk[]): Promise<readonly string[]> {
  const byThumbprint = new Map<string, string>()
  for (const key of keys) {
    const id = await thumbprint(key)
    if (!byThumbprint.has(id)) byThumbprint.set(id, JSON.stringify(key))
  }
  return [...byThumbprint.values()]
}

const FORMER_KEYS_MAX = 8

export function formerKeys(
  before: { readonly trustedKeys: readonly string[]; readonly formerKeys?: readonly string[] },
  trusted: readonly string[],
): readonly string[] {
  const former = new Set([...(before.formerKeys ?? []), ...before.trustedKeys])
  return [...former].filter((key) => !trusted.includes(key)).slice(-FORMER_KEYS_MAX)
}
