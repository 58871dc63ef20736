import { closeSync, openSync } from 'node:fs'
import { dirname } from 'node:path'
import { CodedError } from '../protocol/errors.ts'
import { systemFailure } from '../protocol/file-reasons.ts'
import { hasInodes } from './disk-space.ts'

/** {@link systemFailure} of an existing database file. Looks for the reason if SQLite gives none, or its library cannot be loaded. */
export function databaseFailure(error: unknown, path: string): CodedError | null {
  const { code } = error as { readonly code?: unknown }
  if (typeof code !== 'string' || !/^(SQLITE_CANTOPEN|ERR_DLOPEN_FAILED)/.test(code)) return systemFailure(error, path)
  try {
    const directory = dirname(path)
    closeSync(openSync(directory, 'r'))
    if (hasInodes(directory)) return null
    return new CodedError('STATE_UNWRITABLE', `${path}: the disk has no inodes left`, { cause: error })
  } catch (cause) {
    return systemFailure(cause, path)
  }
}
