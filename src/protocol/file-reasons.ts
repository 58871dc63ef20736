/** Why a file cannot be read or written, as the end of a sentence without a period. */
import { CodedError, messageOf } from './errors.ts'
import { shellWord } from './shell-quoted.ts'

export function unreadableReason(error: unknown): string {
  const { user } = error as DeniedError
  const who = user === undefined ? 'this user' : `the user with the id ${user}`
  return reasonOf(error, { ...REASONS, ENOENT: 'there is no such file', EACCES: `${who} may not read it` })
}

/** An error of the system, with the id of the user that may not read the file. */
export interface DeniedError {
  readonly code?: unknown
  user?: number
}

/** @param what the file, or the setting that names it */
export function unreadableSetting(error: unknown, path: string, what: string): CodedError {
  const details = remedyOfDenial(error, path)
  return new CodedError('CONFIG_UNREADABLE', `${what}: ${unreadableReason(error)}.`, { cause: error, details })
}

/** Details of an error: the commands that let the user read the file. Empty: the file is not denied. */
export function remedyOfDenial(error: unknown, path: string): { remedy?: string } {
  const { code, user } = error as DeniedError
  if (code !== 'EACCES' || user === undefined || shownPath(path) !== path) return {}
  const file = shellWord(path)
  const remedy = `If this is the user of the service, let it read the file, as root: \`chown ${user} ${file}\` (\`namei -l ${file}\` shows all owners). Otherwise, run the command as root.`
  return { remedy }
}

/** The error for a failure of the process or the disk, which no change of the file mends. Null: another failure. */
export function systemFailure(error: unknown, path: string): CodedError | null {
  const { code } = error as { readonly code?: unknown }
  if (code === 'EMFILE' || code === 'ENFILE') {
    return new CodedError('OPEN_FILES_USED_UP', `${path} cannot be opened: ${code}.`, { cause: error })
  }
  if (code === 'EIO' || (typeof code === 'string' && code.startsWith('SQLITE_IOERR'))) {
    return new CodedError('DISK_FAILED', `${path} cannot be read or written: ${code}.`, { cause: error })
  }
  return null
}

/** The error for a state file that cannot be made or changed. @param failure the start of the message */
export function unwritableState(error: unknown, path: string, failure: string): CodedError {
  const message = `${failure}: ${unwritableReason(error)}.`
  return systemFailure(error, path) ?? new CodedError('STATE_UNWRITABLE', message, { cause: error })
}

export function isNotUtf8(error: unknown): boolean {
  return (error as { readonly code?: unknown }).code === NOT_UTF8
}

/** The path in a message, or `[secret]` for a token, or for a key with or without its first line. */
export function shownPath(path: string): string {
  return /-----BEGIN |^eyJ|^MI[\w+/=]{80}|[\r\n]/.test(path) ? '[secret]' : path
}

export function unwritableReason(error: unknown): string {
  return reasonOf(error, REASONS)
}

function reasonOf(error: unknown, reasons: Readonly<Record<string, string>>): string {
  const { code } = error as { readonly code?: unknown }
  if (typeof code !== 'string') return messageOf(error)
  // The system's own message repeats the path, and names a call.
  return reasons[code] ?? (/^E[A-Z0-9]+$/.test(code) ? code : messageOf(error))
}

/** Of a strict `TextDecoder`. */
const NOT_UTF8 = 'ERR_ENCODING_INVALID_ENCODED_DATA'

const REASONS: Readonly<Record<string, string>> = {
  ENOENT: 'its directory does not exist',
  ENOTDIR: 'a part of its path is not a directory',
  EISDIR: 'it is a directory',
  ELOOP: 'its symbolic links lead in a circle',
  ENAMETOOLONG: 'its name is too long',
  EEXIST: 'a file is in its place',
  EACCES: 'this user may not write there',
  EPERM: 'this user may not write there',
  EROFS: 'the file system is read-only',
  ENOSPC: 'the disk is full (no space or no inodes)',
  SQLITE_FULL: 'the disk is full',
  EDQUOT: 'the quota of this user is used up',
  [NOT_UTF8]: 'it is not valid UTF-8',
  ERR_FS_FILE_TOO_LARGE: 'it is too large',
  ERR_STRING_TOO_LONG: 'it is too large',
}
