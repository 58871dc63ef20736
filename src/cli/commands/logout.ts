import { Command } from 'commander'
import { messageOf } from '../../protocol/errors.ts'
import { type AdministratorFlags, targetOf, withCloudFlags } from '../administrator.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { cloudAddress, readSignIn, removeSignIn, withSignInLock } from '../sign-in/kept-sign-in.ts'

export function command(io: Io): Command {
  const logout = withCloudFlags(new Command('logout'))
    .description('Signs the user out: deletes the tokens on this machine, and revokes them if the provider offers it.')
    .action((flags: AdministratorFlags) => signOut(flags, io))
  return examples(logout, ['tallygate logout'])
}

async function signOut(flags: AdministratorFlags, io: Io): Promise<void> {
  const cloud = cloudAddress(targetOf(flags, io).url)
  const wasSignedIn = await withSignInLock(cloud, io, async () => {
    const kept = readSignIn(cloud, io)
    await removeSignIn(cloud, io)
    if (kept === undefined) return false
    if (kept.refreshToken === null) return true
    const { Provider } = await import('../sign-in/provider.ts')
    try {
      const provider = await Provider.open(kept, io)
      await provider.revoke(kept.refreshToken)
    } catch (error) {
      io.stderr.write(`The tokens are deleted here, but could not be revoked: ${messageOf(error)}\n`)
    }
    return true
  })
  io.stdout.write(wasSignedIn ? `Signed out of ${cloud}.\n` : `No user was signed in to ${cloud}.\n`)
}
