/** Ends a sign-in, here and at the provider. */
import { Command } from 'commander'
import { CodedError, messageOf } from '../../protocol/errors.ts'
import { urlArgument } from '../arguments.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { chooseCloud, readSignIn, removeSignIn, withSignInLock } from '../sign-in/kept-sign-in.ts'

interface LogoutFlags {
  readonly cloud?: string
}

export function command(io: Io): Command {
  const logout = new Command('logout')
    .description('Signs the user out: deletes the tokens on this machine, and revokes them if the provider offers it.')
    .option('--cloud <url>', 'address of the cloud (default: the only one with a signed-in user)', urlArgument)
    .action((flags: LogoutFlags) => signOut(flags, io))
  return examples(logout, ['tallygate logout --cloud https://cloud.example/dynamicmonetization'])
}

async function signOut(flags: LogoutFlags, io: Io): Promise<void> {
  const cloud = chooseCloud(flags.cloud, io)
  await withSignInLock(cloud, io, async () => {
    const kept = readSignIn(cloud, io)
    await removeSignIn(cloud, io)
    if (kept === undefined) throw new CodedError('SIGN_IN_REQUIRED', `${cloud}: No user is signed in.`)
    if (kept.refreshToken === null) return
    const { Provider } = await import('../sign-in/provider.ts')
    try {
      const provider = await Provider.open(kept)
      await provider.revoke(kept.refreshToken)
    } catch (error) {
      io.stderr.write(`The tokens are deleted here, but could not be revoked: ${messageOf(error)}\n`)
    }
  })
  io.stdout.write(`Signed out of ${cloud}.\n`)
}
