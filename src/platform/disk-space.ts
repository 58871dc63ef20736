/** Free space on disks and in quotas, and the errors of its lack. */
import { closeSync, constants, openSync, statfsSync } from 'node:fs'
import { dirname } from 'node:path'
import { CodedError } from '../protocol/errors.ts'
import { libcCall } from './libc-call.ts'
import { orNull } from './or-null.ts'

/** More than SQLite writes at once. */
const PROBE_BYTES = 64 * 1024

/** Linux: a file without a name. */
const O_TMPFILE = 0o20000000 | constants.O_DIRECTORY

/** SQLite does not report which of them it is. */
export const DISK_OR_QUOTA_FULL = 'the disk or the quota of this user is full'

const NO_SPACE: readonly unknown[] = ['ENOSPC', 'EDQUOT', 'SQLITE_FULL']

/** Work that waits until the disk has space. */
export class NoSpace extends CodedError {
  constructor(path: string, reason: string, cause?: unknown) {
    super('STATE_UNWRITABLE', `${path}: ${reason}`, { cause, details: { path } })
  }
}

/**
 * Whether the disk is full, or the quota of the user used up. SQLite reports a quota as a failed write: call this before
 * anything is removed.
 * @param path the file that was written
 */
export function lacksSpace(error: unknown, path: string): boolean {
  const { code, cause } = error as { readonly code?: unknown; readonly cause?: unknown }
  if (error instanceof NoSpace || NO_SPACE.includes(code)) return true
  // Of a file that cannot be created.
  if (code === 'STATE_UNWRITABLE' && cause instanceof Error) return lacksSpace(cause, path)
  return isFailedWrite(error) && orNull(() => hasSpace(path, PROBE_BYTES)) === false
}

/** Of a database, its log or the shared memory of its users, which is a file. */
export function isFailedWrite(error: unknown): boolean {
  const { code } = error as { readonly code?: unknown }
  return code === 'SQLITE_IOERR_WRITE' || code === 'SQLITE_IOERR_SHMSIZE'
}

/** Whether the directory of this file has space for that many bytes. Writes nothing. */
export function hasSpace(path: string, bytes: number): boolean {
  const directory = dirname(path)
  const { bavail, bfree, blocks, bsize } = statfsSync(directory)
  // File systems such as ramfs report no size.
  if (blocks === 0) return !failsToAllocate(directory, bytes)
  // Some file systems keep a part for root.
  const free = process.geteuid?.() === 0 ? bfree : bavail
  return free * bsize >= bytes && !failsToAllocate(directory, bytes)
}

/** Only this shows a quota, and what a file system reserves. False also where space cannot be allocated without a write. */
function failsToAllocate(directory: string, bytes: number): boolean {
  try {
    fallocate ??= libcCall('int fallocate(int fd, int mode, int64_t offset, int64_t length)')
    const file = openSync(directory, O_TMPFILE | constants.O_RDWR, 0o600)
    try {
      return NO_SPACE.includes(fallocate(file, 0, 0, bytes))
    } finally {
      closeSync(file)
    }
  } catch (error) {
    // Without inodes, no file can be made, but those that exist can grow.
    return NO_SPACE.includes((error as { readonly code?: unknown }).code) && hasInodes(directory)
  }
}

/** File systems such as Btrfs have no fixed number of them. */
export function hasInodes(directory: string): boolean {
  const { files, ffree } = statfsSync(directory)
  return files === 0 || ffree > 0
}

let fallocate: ReturnType<typeof libcCall> | undefined
