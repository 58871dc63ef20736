import { decodeJwt } from 'jose'
import { CodedError } from '../../protocol/errors.ts'
import type { Io } from '../io.ts'
import { type KeptSignIn, cloudAddress, readSignIn, saveSignIn, withSignInLock } from './kept-sign-in.ts'

/** A token is renewed before its end: the command may send it for a while. Of short lives, a tenth. */
const MARGIN_MS = 60_000

export async function signInToken(url: string, io: Io): Promise<string> {
  const cloud = cloudAddress(url)
  const kept = requireSignIn(cloud, io)
  if (isUsable(kept, io.now())) return kept.idToken
  return withSignInLock(cloud, io, async () => {
    // Another command may have renewed it meanwhile.
    const current = requireSignIn(cloud, io)
    return isUsable(current, io.now()) ? current.idToken : renew(current, io)
  })
}

async function renew(kept: KeptSignIn, io: Io): Promise<string> {
  const { cloud, refreshToken, usableMs } = kept
  if (refreshToken === null) throw required(cloud, 'The sign-in has expired.')
  const { Provider } = await import('./provider.ts')
  const renewed: { signIn?: KeptSignIn } = {}
  try {
    await saveSignIn(cloud, io, async () => {
      const provider = await Provider.open(kept, io)
      const tokens = await provider.refresh(refreshToken)
      if (tokens.subject !== decodeJwt(kept.idToken).sub)
        throw required(cloud, 'The provider sent the token of another user.')
      renewed.signIn = {
        ...kept,
        idToken: tokens.idToken,
        refreshToken: tokens.refreshToken ?? refreshToken,
        savedAt: io.now(),
        usableMs: Math.min(tokens.lifetimeMs, usableMs),
      }
      return renewed.signIn
    })
  } catch (error) {
    if (renewed.signIn === undefined) throw error
    io.stderr.write('The renewed sign-in cannot be saved. Free disk space, then run tallygate login again.\n')
  }
  if (renewed.signIn === undefined) throw new Error('invariant: a sign-in that is saved was renewed')
  return renewed.signIn.idToken
}

function isUsable({ savedAt, usableMs }: KeptSignIn, now: number): boolean {
  const age = now - savedAt
  return age >= 0 && age < usableMs - Math.min(MARGIN_MS, usableMs / 10)
}

function requireSignIn(cloud: string, io: Io): KeptSignIn {
  const kept = readSignIn(cloud, io)
  if (kept === undefined) throw required(cloud, 'No user is signed in.')
  return kept
}

function required(cloud: string, reason: string): CodedError {
  return new CodedError('SIGN_IN_REQUIRED', `${cloud}: ${reason}`)
}
