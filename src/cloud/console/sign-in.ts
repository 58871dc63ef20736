/**
 * The CLI gets a code for an access token, and the browser exchanges it once for a cookie with that token.
 * A code contains the token, encrypted with a key of all nodes: no node stores tokens, only which codes were used.
 */
import { EncryptJWT, jwtDecrypt } from 'jose'
import { CodedError } from '../../protocol/errors.ts'
import { sha256 } from '../../protocol/signing.ts'
import type { Store } from '../storage/store.ts'

const CODE_LIFETIME_MS = 60_000

/** Browsers drop larger cookies. */
const TOKEN_LENGTH_MAX = 3_800

export interface ConsoleSignInDeps {
  readonly store: Pick<Store, 'transaction'>
  /** 32 bytes, the same on all nodes. */
  readonly secret: Uint8Array
  readonly newId: () => string
}

export class ConsoleSignIn {
  readonly #deps: ConsoleSignInDeps

  constructor(deps: ConsoleSignInDeps) {
    this.#deps = deps
  }

  /** @throws CodedError CONSOLE_SIGN_IN_REFUSED for a token that does not fit in a cookie */
  async codeFor(token: string, now: number): Promise<{ readonly code: string; readonly expiresAt: number }> {
    if (token.length > TOKEN_LENGTH_MAX) {
      const limit = `${token.length} characters, and a cookie takes up to ${TOKEN_LENGTH_MAX}`
      throw refused(`The access token has ${limit}. Use an administration key.`)
    }
    const expiresAt = now + CODE_LIFETIME_MS
    const code = await new EncryptJWT({ token })
      .setProtectedHeader({ alg: 'dir', enc: 'A256GCM' })
      .setJti(this.#deps.newId())
      .setExpirationTime(Math.floor(expiresAt / 1_000))
      .encrypt(this.#deps.secret)
    return { code, expiresAt }
  }

  /** Returns the token of an unused code. @throws CodedError CONSOLE_SIGN_IN_REFUSED */
  async redeem(code: string, now: number): Promise<string> {
    const { token, jti } = await this.#read(code, now)
    const use = { scope: sha256(`console code ${jti}`), requestHash: '', answer: '', created: now }
    const isFirst = await this.#deps.store.transaction((tx) => tx.idempotency.add(use))
    if (!isFirst) throw refused('The code was used already.')
    return token
  }

  async #read(code: string, now: number): Promise<{ readonly token: string; readonly jti: string }> {
    try {
      const { payload } = await jwtDecrypt(code, this.#deps.secret, {
        currentDate: new Date(now),
        keyManagementAlgorithms: ['dir'],
        contentEncryptionAlgorithms: ['A256GCM'],
        requiredClaims: ['exp', 'jti'],
      })
      const { token, jti = '' } = payload
      if (typeof token === 'string') return { token, jti }
    } catch (cause) {
      throw refused('The code has expired, or it is not a code of this cloud.', cause)
    }
    throw refused('The code has no token.')
  }
}

/** Proves that a form comes from a page of this sign-in: other sites cannot read the cookie. */
export function formTokenOf(token: string): string {
  return sha256(`console form ${token}`)
}

function refused(message: string, cause?: unknown): CodedError {
  return new CodedError('CONSOLE_SIGN_IN_REFUSED', message, { cause })
}
