import { closeSync, openSync } from 'node:fs'
import { libcCall } from '../../../platform/libc-call.ts'
import { orNull } from '../../../platform/or-null.ts'

const LOCK_EX = 2
const LOCK_NB = 4

/**
 * Locks a directory against other processes that lock it, until the result is disposed or the process ends. Null: another
 * process has locked it. A directory that cannot be opened or locked is not locked: the work in it reports the reason.
 */
export function lockDirectory(path: string): Disposable | null {
  const file = orNull(() => openSync(path, 'r'))
  if (file === null) return { [Symbol.dispose]: () => undefined }
  if (orNull(() => isLockedByOther(file)) !== true) return { [Symbol.dispose]: () => closeSync(file) }
  closeSync(file)
  return null
}

/** Takes the lock otherwise, unless the file system has none. */
function isLockedByOther(file: number): boolean {
  flock ??= libcCall('int flock(int fd, int operation)')
  return flock(file, LOCK_EX | LOCK_NB) === 'EAGAIN'
}

let flock: ReturnType<typeof libcCall> | undefined
