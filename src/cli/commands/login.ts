import { Command, Option } from 'commander'
import { CodedError } from '../../protocol/errors.ts'
import { isLoopback } from '../../platform/is-loopback.ts'
import { SIGN_IN_PATH, signInOptions } from '../../protocol/sign-in.ts'
import { type AdministratorFlags, type Target, clientWith, targetOf, withCloudFlags } from '../administrator.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { writeLines } from '../lines.ts'
import { callerText, readCaller, rightsText } from '../sign-in/caller.ts'
import { cloudAddress, saveSignIn, withSignInLock } from '../sign-in/kept-sign-in.ts'
import type { Provider, Tokens } from '../sign-in/provider.ts'

interface LoginFlags extends AdministratorFlags {
  readonly device?: true
  readonly browser?: true
}

export function command(io: Io): Command {
  const login = withCloudFlags(new Command('login'))
    .description(
      'Signs in to a cloud with OpenID Connect. Afterwards, commands for administrators need no --admin-key. The default is --browser on a machine with a desktop, and --device elsewhere.',
    )
    .addOption(
      new Option('--device', 'show a code to enter in a browser on any machine, for machines without a browser'),
    )
    .addOption(new Option('--browser', 'open a browser on this machine').conflicts('device'))
    .action((flags: LoginFlags) => signIn(flags, io))
  return examples(login, ['tallygate login --url https://cloud.example', 'tallygate devices list'])
}

async function signIn(flags: LoginFlags, io: Io): Promise<void> {
  const target = targetOf(flags, io)
  const cloud = cloudAddress(target.url)
  const { protocol, hostname } = new URL(cloud)
  if (protocol !== 'https:' && !isLoopback(hostname)) {
    throw new CodedError('USAGE', `A sign-in requires https, or other machines could read the token: ${cloud}.`)
  }
  const options = await readOptions(target, io)
  const { Provider } = await import('../sign-in/provider.ts')
  const provider = await Provider.open(options, io)
  // Before the user does anything: the sign-in must be possible here, and its file must be writable.
  const byDevice = flags.device ?? (flags.browser === undefined && !hasBrowser(io))
  if (byDevice && !provider.offersDevices) {
    const remedy = 'Use --browser, or an administration key (--admin-key).'
    throw new CodedError('SIGN_IN_NOT_OFFERED', `${options.issuer} offers no sign-in by code.`, { details: { remedy } })
  }
  await withSignInLock(cloud, io, () => Promise.resolve())
  let tokens: Tokens | undefined
  let shown: readonly string[]
  try {
    const { issuer, clientId, scopes, maxTokenAgeMs } = options
    tokens = await (byDevice ? provider.signInByDevice(scopes, io) : provider.signInByBrowser(scopes, io))
    const { idToken, refreshToken, lifetimeMs } = tokens
    using service = clientWith(target, idToken, io)
    const caller = await readCaller(service)
    const usableMs = Math.min(lifetimeMs, maxTokenAgeMs)
    const signIn = { cloud, issuer, clientId, idToken, refreshToken, savedAt: io.now(), usableMs }
    // Another command may renew the previous sign-in at this moment, and save it afterwards.
    await withSignInLock(cloud, io, () => saveSignIn(cloud, io, () => Promise.resolve(signIn)))
    shown = [`Signed in to ${cloud} as ${callerText(caller)}.`, `Roles: ${rightsText(caller)}.`]
  } catch (error) {
    await abandon(provider, tokens)
    throw error
  }
  writeLines(io.stdout, shown)
}

/** Revokes tokens that were not saved. The first error matters more than one of this. */
async function abandon(provider: Provider, tokens: Tokens | undefined): Promise<void> {
  if (tokens === undefined || tokens.refreshToken === null) return
  await provider.revoke(tokens.refreshToken).catch(() => undefined)
}

async function readOptions(target: Target, io: Io) {
  using service = clientWith(target, null, io)
  return await service.json({ method: 'GET', path: SIGN_IN_PATH }, signInOptions)
}

/** A browser that a user of this terminal can see. */
function hasBrowser({ env }: Io): boolean {
  if (env['SSH_CONNECTION'] !== undefined || env['SSH_TTY'] !== undefined) return false
  if (process.platform === 'darwin' || process.platform === 'win32') return true
  return (env['DISPLAY'] ?? '') !== '' || (env['WAYLAND_DISPLAY'] ?? '') !== ''
}
