/**
 * Administrators who sign in by OpenID Connect: verifies their ID tokens and maps a claim to roles. Source: OpenID Connect
 * Core 1.0, section 3.1.3.7; docs/decisions/access-tokens.md.
 */
import { type JWTPayload, type JWTVerifyGetKey, errors, jwtVerify } from 'jose'
import { CodedError } from '../../protocol/errors.ts'
import { type AccessRule, type SignInOptionsWire, printable } from '../../protocol/sign-in.ts'
import { TOKEN_SKEW_S } from '../devices/limits.ts'
import { type Administrator, type Right, lowerCase, scopeWith } from './principal.ts'

export interface SignInTerms {
  /** Exactly as the tokens name it. */
  readonly issuer: string
  readonly clientId: string
  readonly scopes: string
  /** Asymmetric ones only. */
  readonly algorithms: readonly string[]
  /** Name of a claim, or path of names separated by dots. */
  readonly rolesClaim: string
  /** A reload may change this. */
  readonly access: readonly AccessRule[]
  /** Maximum age of a token. A reload may change this. */
  readonly maxAgeMs: number
}

/** OpenID Connect limits subjects to 255 ASCII characters. */
const SUBJECT = /^[\x20-\x7e]{1,255}$/

const NAME_MAX = 100

/** Values of the claim that a refusal lists. */
const VALUES_SHOWN_MAX = 5

export class SignIn {
  readonly terms: SignInTerms
  readonly #keys: JWTVerifyGetKey

  /** @param keys public keys of the issuer. @throws CodedError SIGN_IN_UNAVAILABLE when called */
  constructor(terms: SignInTerms, keys: JWTVerifyGetKey) {
    this.terms = terms
    this.#keys = keys
  }

  /** For programs that sign a user in. */
  get options(): SignInOptionsWire {
    const { issuer, clientId, scopes, maxAgeMs } = this.terms
    return { issuer, clientId, scopes, maxTokenAgeMs: maxAgeMs }
  }

  /**
   * @param token that names the issuer, not verified yet
   * @param now POSIX ms
   * @throws CodedError TOKEN_INVALID, TOKEN_NOT_IN_TIME, SIGN_IN_NOT_MAPPED, SIGN_IN_UNAVAILABLE
   */
  async authenticate(token: string, now: number): Promise<Administrator> {
    const claims = await this.#verify(token, now)
    this.#requireIdToken(claims)
    const { sub } = claims
    if (sub === undefined || !SUBJECT.test(sub)) {
      throw new CodedError('TOKEN_INVALID', 'The claim sub of the ID token must have 1 to 255 ASCII characters.')
    }
    const rights = this.#rightsOf(claims)
    const identity = { keyId: sub, name: readableName(claims), issuer: this.terms.issuer }
    // Without a role for the operation, as for reading.
    const scope = scopeWith(rights, 'read')
    return { kind: 'ADMINISTRATOR', ...identity, rights, scope, instances: null, deviceId: null }
  }

  async #verify(token: string, now: number): Promise<JWTPayload> {
    const { issuer, clientId, algorithms, maxAgeMs } = this.terms
    try {
      const { payload, protectedHeader } = await jwtVerify(token, this.#keys, {
        issuer,
        audience: clientId,
        algorithms: [...algorithms],
        requiredClaims: ['sub', 'iat', 'exp'],
        currentDate: new Date(now),
        clockTolerance: TOKEN_SKEW_S,
        maxTokenAge: maxAgeMs / 1_000,
      })
      // Access tokens and logout tokens of the provider can name the same client.
      if (/^(application\/)?jwt$/i.test(protectedHeader.typ ?? 'JWT')) return payload
    } catch (cause) {
      throw this.#refusal(cause)
    }
    throw new CodedError('TOKEN_INVALID', 'The token is not an ID token: its header has another typ.')
  }

  #refusal(cause: unknown): Error {
    if (cause instanceof CodedError) return cause
    const { issuer, clientId, algorithms } = this.terms
    const invalid = (message: string): CodedError => new CodedError('TOKEN_INVALID', message, { cause })
    const outOfTime = (message: string): CodedError => new CodedError('TOKEN_NOT_IN_TIME', message, { cause })
    if (cause instanceof errors.JWTExpired) {
      return outOfTime(
        cause.claim === 'iat' ? 'The sign-in is older than oidc.max_age permits.' : 'The sign-in has expired.',
      )
    }
    if (cause instanceof errors.JWTClaimValidationFailed) {
      const { claim, reason } = cause
      if (reason === 'check_failed' && (claim === 'nbf' || claim === 'iat'))
        return outOfTime('The sign-in is not valid yet: the clocks of the provider and of the cloud differ.')
      if (claim === 'aud') return invalid(forAnotherClient(clientId))
      return invalid(`The claim ${claim} of the ID token is missing or wrong.`)
    }
    if (cause instanceof errors.JOSEAlgNotAllowed)
      return invalid(
        `The ID token must be signed with one of the algorithms of oidc.algorithms: ${algorithms.join(', ')}.`,
      )
    if (cause instanceof errors.JWKSNoMatchingKey)
      return invalid(`The ID token is signed with a key that ${issuer} does not list.`)
    return invalid(`The ID token is malformed, or its signature does not fit a key of ${issuer}.`)
  }

  /** @throws CodedError TOKEN_INVALID */
  #requireIdToken({ aud, azp, cnf, events }: JWTPayload): void {
    const { clientId } = this.terms
    if (azp === undefined ? [aud].flat().length > 1 : azp !== clientId)
      throw new CodedError('TOKEN_INVALID', forAnotherClient(clientId))
    if (events !== undefined)
      throw new CodedError('TOKEN_INVALID', 'The token is not an ID token: it has the claim events.')
    if (cnf !== undefined)
      throw new CodedError(
        'TOKEN_INVALID',
        'The ID token is bound to a key (claim cnf), so it cannot be used as a bearer token.',
      )
  }

  /** One for each rule that applies. @throws CodedError SIGN_IN_NOT_MAPPED */
  #rightsOf(claims: JWTPayload): readonly Right[] {
    const { rolesClaim, access } = this.terms
    const values = valuesAt(claims, rolesClaim)
    if (rolesClaim === 'email' && claims['email_verified'] !== true) {
      throw new CodedError('SIGN_IN_NOT_MAPPED', 'The provider has not verified the email address of this account.')
    }
    const given = new Set(values)
    const rights = access
      .filter(({ value }) => given.has(value))
      .map(({ roles, instances }) => ({ roles, instances: instances === undefined ? null : lowerCase(instances) }))
    if (rights.length > 0) return rights
    const shown = values.slice(0, VALUES_SHOWN_MAX).map((value) => JSON.stringify(printable(value, NAME_MAX)))
    const found = shown.length === 0 ? 'The ID token has no such claim' : `Its values include ${shown.join(', ')}`
    throw new CodedError(
      'SIGN_IN_NOT_MAPPED',
      `No value of the claim ${rolesClaim} has a role in oidc.access. ${found}.`,
    )
  }
}

function forAnotherClient(clientId: string): string {
  return `The ID token was not issued to the client ${clientId} alone.`
}

/** Texts of a claim, which may be one text or a list. */
function valuesAt(claims: JWTPayload, name: string): readonly string[] {
  const found = Object.hasOwn(claims, name)
    ? claims[name]
    : name.split('.').reduce<unknown>((node, key) => {
        return typeof node === 'object' && node !== null && Object.hasOwn(node, key)
          ? (node as Record<string, unknown>)[key]
          : undefined
      }, claims)
  return [found].flat().filter((value) => typeof value === 'string')
}

/** People can often choose these claims themselves, so they only help to read the audit. */
function readableName(claims: JWTPayload): string | null {
  for (const claim of ['name', 'preferred_username', 'email']) {
    const value = claims[claim]
    const text = typeof value === 'string' ? printable(value, NAME_MAX) : ''
    if (text !== '') return text
  }
  return null
}
