/** Requests share one attempt to load the keys, and few wait for it: a slow provider must not delay other callers. */
import { type JWTVerifyGetKey, createLocalJWKSet, errors } from 'jose'
import type { Logger } from 'pino'
import { z } from 'zod'
import { prepareFetch } from '../../../platform/outgoing.ts'
import { CodedError, messageOf } from '../../../protocol/errors.ts'
import { tlsReason } from '../../../protocol/tls-reason.ts'

export interface IssuerKeysOptions {
  readonly issuer: string
  /** For the provider's metadata and keys together. */
  readonly timeoutMs: number
  /** Requests that may wait for the provider, at most 16. */
  readonly waitingMax: number
  readonly now: () => number
  readonly log: Pick<Logger, 'info' | 'warn'>
}

/** How long keys are used without asking for new ones, ms. */
const FRESH_MS = 10 * 60_000

/** How long keys are used while the provider does not respond, ms. */
const USABLE_MS = 24 * 3_600_000

/** Shortest interval between two attempts to load keys, ms. */
const COOL_DOWN_MS = 10_000

/** Administrators are few; further requests are refused until the keys are loaded. */
const WAITING_MAX = 16

const BYTES_MAX = 256 * 1_024
const KEYS_MAX = 100

type Keys = ReturnType<typeof createLocalJWKSet>

export class IssuerKeys {
  readonly #options: IssuerKeysOptions
  #loaded: { readonly keys: Keys; readonly at: number } | null = null
  #triedAt = Number.NEGATIVE_INFINITY
  #attempt: Promise<boolean> | null = null
  #waiting = 0
  #isFailing = false

  constructor(options: IssuerKeysOptions) {
    this.#options = options
  }

  /** The key that a token names. @throws CodedError SIGN_IN_UNAVAILABLE, JOSEError */
  readonly find: JWTVerifyGetKey = async (header, token) => {
    if (this.#loadedWithin(FRESH_MS) === undefined) await this.#load()
    const keys = this.#loadedWithin(USABLE_MS)
    if (keys === undefined) {
      const details = { retryAfterMs: COOL_DOWN_MS }
      throw new CodedError('SIGN_IN_UNAVAILABLE', `The keys of ${this.#options.issuer} are not available.`, { details })
    }
    try {
      return await keys(header, token)
    } catch (error) {
      // The provider may have a new key.
      if (!(error instanceof errors.JWKSNoMatchingKey) || !(await this.#load())) throw error
      return (this.#loadedWithin(USABLE_MS) ?? keys)(header, token)
    }
  }

  #loadedWithin(ms: number): Keys | undefined {
    return this.#loaded !== null && Math.abs(this.#options.now() - this.#loaded.at) < ms ? this.#loaded.keys : undefined
  }

  /** Whether the keys have been loaded by an attempt that this call started or waited for. */
  async #load(): Promise<boolean> {
    const { now, waitingMax } = this.#options
    if (this.#attempt === null) {
      if (Math.abs(now() - this.#triedAt) < COOL_DOWN_MS) return false
      this.#triedAt = now()
      this.#attempt = this.#tryToLoad().finally(() => {
        this.#attempt = null
      })
    }
    if (this.#waiting >= Math.min(waitingMax, WAITING_MAX)) return false
    this.#waiting += 1
    try {
      return await this.#attempt
    } finally {
      this.#waiting -= 1
    }
  }

  async #tryToLoad(): Promise<boolean> {
    const { issuer, timeoutMs, now, log } = this.#options
    try {
      this.#loaded = { keys: await fetchKeys(issuer, AbortSignal.timeout(timeoutMs)), at: now() }
      if (this.#isFailing) log.warn({ issuer }, 'the keys of the OpenID Connect provider were loaded again')
      this.#isFailing = false
      return true
    } catch (error) {
      const fields = { code: 'SIGN_IN_UNAVAILABLE', issuer, reason: reasonOf(error) }
      if (!this.#isFailing) log.warn(fields, 'the keys of the OpenID Connect provider were not loaded')
      this.#isFailing = true
      return false
    }
  }
}

/** Errors of `fetch` have the reason in their cause. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error) || error.cause === undefined) return messageOf(error)
  return tlsReason(error.cause) ?? messageOf(error.cause)
}

async function fetchKeys(issuer: string, signal: AbortSignal): Promise<Keys> {
  const metadata = z.looseObject({ issuer: z.literal(issuer), jwks_uri: z.url({ protocol: protocolOf(issuer) }) })
  const address = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`
  const { jwks_uri: keysAddress } = metadata.parse(await fetchJson(address, signal))
  const keySet = z.looseObject({ keys: z.array(z.looseObject({ kty: z.string() })).max(KEYS_MAX) })
  return createLocalJWKSet(keySet.parse(await fetchJson(keysAddress, signal)))
}

/** Only a provider without TLS, which is on this machine, may have keys at an address without TLS. */
function protocolOf(issuer: string): RegExp {
  return issuer.startsWith('https:') ? /^https$/ : /^https?$/
}

/** Follows no redirects. */
async function fetchJson(address: string, signal: AbortSignal): Promise<unknown> {
  prepareFetch(address, process.env)
  const response = await fetch(address, { signal, redirect: 'manual', headers: { accept: 'application/json' } })
  if (response.status !== 200 || response.body === null) {
    await response.body?.cancel()
    throw new Error(`${address} responded with ${response.status}`)
  }
  const pieces: Uint8Array[] = []
  let size = 0
  for await (const piece of response.body as AsyncIterable<Uint8Array>) {
    size += piece.length
    if (size > BYTES_MAX) throw new Error(`${address} responded with more than ${BYTES_MAX} bytes`)
    pieces.push(piece)
  }
  return JSON.parse(Buffer.concat(pieces).toString('utf8')) as unknown
}
