import { accessSync, constants, existsSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import { libcCall } from './libc-call.ts'

/** Whether the file system of a directory is read-only, also for root. */
export function isReadOnly(directory: string): boolean {
  return codeOf(directory, constants.W_OK) === 'EROFS'
}

/** The database file, its log or its directory, if it is immutable (`chattr +i`), also for root; null: none is. */
export function immutableAt(path: string): string | null {
  return [...filesOf(path), dirname(path)].find((each) => codeOf(each, constants.W_OK) === 'EPERM') ?? null
}

/** The database file or its log, if it is append-only (`chattr +a`), also for root; null: neither is. */
function appendOnlyAt(path: string): string | null {
  return filesOf(path).find(isAppendOnly) ?? null
}

function filesOf(path: string): readonly string[] {
  return [path, `${path}-wal`]
}

const AT_FDCWD = -100
const STATX_BYTES = 256
const STATX_ATTRIBUTES_AT = 8
const STATX_ATTR_APPEND = 0x20

/**
 * Reads the attribute, which changes nothing. Opening a database for the test, and closing it again, would drop the locks of
 * this process. False where the C library or the file system does not report attributes.
 */
function isAppendOnly(path: string): boolean {
  try {
    statx ??= libcCall('int statx(int directory, const char *path, int flags, unsigned int mask, _Out_ void *found)')
    const found = Buffer.alloc(STATX_BYTES)
    if (statx(AT_FDCWD, path, 0, 0, found) !== null) return false
    return (found.readUInt32LE(STATX_ATTRIBUTES_AT) & STATX_ATTR_APPEND) !== 0
  } catch {
    return false
  }
}

let statx: ReturnType<typeof libcCall> | undefined

/** The reason that a path leads to no file for this user, as the end of a sentence; null: it leads to one. */
export function absenceOf(path: string): string | null {
  try {
    const found = statSync(path, { throwIfNoEntry: false })
    if (found === undefined) return 'does not exist'
    return found.isDirectory() ? 'is a directory' : null
  } catch (error) {
    const { code = 'unknown error' } = error as NodeJS.ErrnoException
    return code === 'EACCES' ? 'cannot be accessed by this user' : `cannot be accessed (${code})`
  }
}

interface Denial {
  /** The end of a sentence. */
  readonly reason: string
  readonly remedy: string
}

/** Why this user cannot use a database file; null: for another reason. SQLite reports an I/O error or a missing file. */
export function denialOf(path: string): Denial | null {
  if (isReadOnly(dirname(path))) {
    const remedy = 'Mount it for writing. If the kernel made it read-only (`dmesg`), check the disk first.'
    return { reason: 'the file system is read-only', remedy }
  }
  const immutable = immutableAt(path)
  if (immutable !== null) return { reason: `${immutable} is immutable`, remedy: `Run \`chattr -i ${immutable}\`.` }
  const first = existsSync(path) ? path : dirname(path)
  if (!isAllowed(first)) {
    const remedy = 'Run the program as the user who owns it, or give it to the user of the service (`chown`).'
    return { reason: `the user with the id ${process.geteuid?.() ?? 0} may not read and write ${first}`, remedy }
  }
  const appendOnly = appendOnlyAt(path)
  if (appendOnly === null) return null
  return { reason: `${appendOnly} is append-only`, remedy: `Run \`chattr -a ${appendOnly}\`.` }
}

function isAllowed(path: string): boolean {
  const user = process.geteuid?.()
  const code = codeOf(path, constants.R_OK | constants.W_OK)
  if (code !== undefined || user === process.getuid?.()) return code !== 'EACCES'
  // Root acts as another user: the system has checked what root may do.
  try {
    const { uid, gid, mode } = statSync(path)
    const shift = uid === user ? 6 : process.getgroups?.().includes(gid) === true ? 3 : 0
    return ((mode >> shift) & 6) === 6
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'EACCES'
  }
}

function codeOf(path: string, mode: number): string | undefined {
  try {
    accessSync(path, mode)
    return undefined
  } catch (error) {
    return (error as NodeJS.ErrnoException).code
  }
}
