/** Signs in at an OpenID Connect provider. Import it where it is used: it alone loads `openid-client`. */
import { spawn } from 'node:child_process'
import * as openid from 'openid-client'
import { prepareFetch } from '../../platform/outgoing.ts'
import { CodedError, messageOf } from '../../protocol/errors.ts'
import { isLoopback } from '../../platform/is-loopback.ts'
import { type SignInOptionsWire, printable } from '../../protocol/sign-in.ts'
import type { Io } from '../io.ts'
import { RedirectServer } from './redirect-server.ts'

export interface Tokens {
  readonly idToken: string
  readonly refreshToken: string | null
  readonly subject: string
  readonly lifetimeMs: number
}

const TIMEOUT_S = 30

const SIGN_IN_TIMEOUT_MS = 10 * 60_000

/** The cloud checks the time of ID tokens; a wrong clock on this machine must not prevent a sign-in. */
const CLOCK_TOLERANCE_S = 24 * 3_600

export class Provider {
  readonly #config: openid.Configuration

  private constructor(config: openid.Configuration) {
    this.#config = config
  }

  static async open(
    { issuer, clientId }: Pick<SignInOptionsWire, 'issuer' | 'clientId'>,
    { env }: Pick<Io, 'env'>,
  ): Promise<Provider> {
    const address = URL.canParse(issuer) ? new URL(issuer) : null
    if (address === null || !isSafe(address)) {
      throw new CodedError(
        'SIGN_IN_FAILED',
        `The cloud names a provider that does not use https: ${printable(issuer)}.`,
      )
    }
    // The library uses the global `fetch`.
    prepareFetch(address.href, env)
    const metadata = { token_endpoint_auth_method: 'none', [openid.clockTolerance]: CLOCK_TOLERANCE_S }
    // A provider without TLS is on this machine.
    // oxlint-disable-next-line typescript/no-deprecated -- marked so only to make it stand out
    const execute = address.protocol === 'http:' ? [openid.allowInsecureRequests] : []
    const discover = () => openid.discovery(address, clientId, metadata, openid.None(), { execute, timeout: TIMEOUT_S })
    return new Provider(await guarded(discover))
  }

  get offersDevices(): boolean {
    return this.#config.serverMetadata().device_authorization_endpoint !== undefined
  }

  async signInByDevice(scope: string, io: Io): Promise<Tokens> {
    const code = await guarded(() => openid.initiateDeviceAuthorization(this.#config, { scope }))
    const { verification_uri: address, verification_uri_complete: whole, user_code: userCode } = code
    const direct = whole === undefined ? '' : `, or open ${printable(whole)} and compare the code`
    io.stderr.write(`Open ${printable(address)} in any browser and enter the code ${printable(userCode)}${direct}.\n`)
    const signal = deadline(io)
    return tokensOf(await guarded(() => openid.pollDeviceAuthorizationGrant(this.#config, code, undefined, { signal })))
  }

  async signInByBrowser(scope: string, io: Io): Promise<Tokens> {
    const [state, nonce, verifier] = [openid.randomState(), openid.randomNonce(), openid.randomPKCECodeVerifier()]
    await using server = await RedirectServer.open(state)
    const address = openid.buildAuthorizationUrl(this.#config, {
      redirect_uri: server.redirectUri,
      scope,
      state,
      nonce,
      code_challenge: await openid.calculatePKCECodeChallenge(verifier),
      code_challenge_method: 'S256',
    })
    if (!isSafe(address)) throw new CodedError('SIGN_IN_FAILED', 'The sign-in page of the provider does not use https.')
    io.stderr.write(
      `Sign in with the browser. If it does not open, open this address on this machine:\n${address.href}\n`,
    )
    openBrowser(server.linkTo(address.href), io)
    return await guarded(async () => {
      const returned = await server.received(deadline(io))
      const checks = { pkceCodeVerifier: verifier, expectedState: state, expectedNonce: nonce, idTokenExpected: true }
      return tokensOf(await openid.authorizationCodeGrant(this.#config, returned, checks))
    })
  }

  async refresh(refreshToken: string): Promise<Tokens> {
    try {
      return tokensOf(await guarded(() => openid.refreshTokenGrant(this.#config, refreshToken)))
    } catch (cause) {
      if (!(cause instanceof CodedError) || cause.code !== 'SIGN_IN_FAILED') throw cause
      throw new CodedError('SIGN_IN_REQUIRED', `The provider has ended the sign-in: ${cause.message}`, { cause })
    }
  }

  /** False: the provider offers no revocation. */
  async revoke(refreshToken: string): Promise<boolean> {
    if (this.#config.serverMetadata().revocation_endpoint === undefined) return false
    await guarded(() => openid.tokenRevocation(this.#config, refreshToken, { token_type_hint: 'refresh_token' }))
    return true
  }
}

const NO_RESPONSE = new Set([
  'OAUTH_TIMEOUT',
  'OAUTH_RESPONSE_IS_NOT_CONFORM',
  'OAUTH_PARSE_ERROR',
  'OAUTH_RESPONSE_IS_NOT_JSON',
])

/** Whether the same request can succeed later. Providers use errors in place of statuses, and the other way round. */
function isPassing(cause: openid.ResponseBodyError | openid.AuthorizationResponseError): boolean {
  const isBusy = 'status' in cause && cause.status === 429
  return isBusy || cause.error === 'temporarily_unavailable' || cause.error === 'server_error'
}

/** Messages contain no tokens. */
async function guarded<T>(ask: () => Promise<T>): Promise<T> {
  try {
    return await ask()
  } catch (cause) {
    if (cause instanceof CodedError) throw cause
    if (cause instanceof openid.ResponseBodyError || cause instanceof openid.AuthorizationResponseError) {
      const { error, error_description: description } = cause
      const text = printable(description === undefined ? error : `${error}: ${description}`, 300)
      if (isPassing(cause))
        throw new CodedError('SIGN_IN_UNAVAILABLE', `The provider cannot be used: ${text}.`, { cause })
      throw new CodedError('SIGN_IN_FAILED', `The provider answered ${text}.`, { cause })
    }
    const { code } = cause as { readonly code?: unknown }
    if (cause instanceof TypeError || NO_RESPONSE.has(String(code))) {
      const reason = messageOf((cause as Error).cause ?? cause)
      throw new CodedError('SIGN_IN_UNAVAILABLE', `The provider cannot be used: ${printable(reason, 300)}.`, { cause })
    }
    throw new CodedError('SIGN_IN_FAILED', `The sign-in did not succeed: ${printable(messageOf(cause), 300)}.`, {
      cause,
    })
  }
}

function tokensOf(response: openid.TokenEndpointResponse & openid.TokenEndpointResponseHelpers): Tokens {
  const claims = response.claims()
  if (claims === undefined || response.id_token === undefined) {
    throw new CodedError('SIGN_IN_FAILED', 'The provider sent no ID token; the scopes must include openid.')
  }
  return {
    idToken: response.id_token,
    refreshToken: response.refresh_token ?? null,
    subject: claims.sub,
    lifetimeMs: (claims.exp - claims.iat) * 1_000,
  }
}

function deadline(io: Io): AbortSignal {
  return AbortSignal.any([io.stop(), AbortSignal.timeout(SIGN_IN_TIMEOUT_MS)])
}

function isSafe({ protocol, hostname }: URL): boolean {
  return protocol === 'https:' || (protocol === 'http:' && isLoopback(hostname))
}

/** Without a shell. A browser that does not start is no error: the user has the address. */
function openBrowser(address: string, { env }: Io): void {
  const [program = '', ...args] =
    process.platform === 'darwin'
      ? ['open']
      : process.platform === 'win32'
        ? ['rundll32', 'url.dll,FileProtocolHandler']
        : ['xdg-open']
  const child = spawn(program, [...args, address], { env: { ...env }, stdio: 'ignore', detached: true })
  child.on('error', () => undefined)
  child.unref()
}
