import { statSync } from 'node:fs'
import { orNull } from './or-null.ts'

/**
 * Lets root work in a directory of another user with only that user's rights, until the result is disposed: the user may
 * have put symbolic links there. New files belong to that user.
 */
export function actAsOwnerOf(directory: string): Disposable {
  const nothing = { [Symbol.dispose]: () => undefined }
  if (process.geteuid?.() !== 0) return nothing
  // If the directory is missing or unreadable, the work in it reports the reason.
  const owner = orNull(() => statSync(directory))
  if (owner === null || owner.uid === 0) return nothing
  const [group, groups] = [process.getegid?.() ?? 0, process.getgroups?.() ?? []]
  const giveBack = (): void => {
    process.seteuid?.(0)
    process.setegid?.(group)
    process.setgroups?.(groups)
  }
  try {
    process.setgroups?.([owner.gid])
    process.setegid?.(owner.gid)
    process.seteuid?.(owner.uid)
  } catch (error) {
    // A container may not know the user.
    giveBack()
    throw error
  }
  return { [Symbol.dispose]: giveBack }
}
