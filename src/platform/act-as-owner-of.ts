import { statSync } from 'node:fs'

/**
 * Lets root work in a directory of another user with only that user's rights, until the result is disposed: the user may
 * have put symbolic links there. New files belong to that user.
 */
export function actAsOwnerOf(directory: string): Disposable {
  const owner = statSync(directory, { throwIfNoEntry: false })
  if (process.geteuid?.() !== 0 || owner === undefined || owner.uid === 0) return { [Symbol.dispose]: () => undefined }
  const [group, groups] = [process.getegid?.() ?? 0, process.getgroups?.() ?? []]
  process.setgroups?.([owner.gid])
  process.setegid?.(owner.gid)
  process.seteuid?.(owner.uid)
  return {
    [Symbol.dispose]: () => {
      process.seteuid?.(0)
      process.setegid?.(group)
      process.setgroups?.(groups)
    },
  }
}
