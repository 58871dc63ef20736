import { closeSync, openSync } from 'node:fs'
import { createRequire } from 'node:module'
import { orNull } from './or-null.ts'

const LOCK_EX = 2
const LOCK_NB = 4

/**
 * Locks a directory against other processes that lock it, until the result is disposed or the process ends. Null: another
 * process has locked it. A directory that cannot be opened is not locked: the work in it reports the reason.
 */
export function lockDirectory(path: string): Disposable | null {
  const file = orNull(() => openSync(path, 'r'))
  if (file === null) return { [Symbol.dispose]: () => undefined }
  const isLocked = orNull(() => (flock ??= loadFlock())(file, LOCK_EX | LOCK_NB) === 0)
  if (isLocked !== false) return { [Symbol.dispose]: () => closeSync(file) }
  closeSync(file)
  return null
}

type Flock = (file: number, operation: number) => number

let flock: Flock | undefined

function loadFlock(): Flock {
  const { default: koffi } = createRequire(import.meta.url)('koffi') as {
    default: { load(path: null): { func(declaration: string): Flock } }
  }
  return koffi.load(null).func('int flock(int fd, int operation)')
}
