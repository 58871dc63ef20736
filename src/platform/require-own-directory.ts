import { statSync } from 'node:fs'
import { orNull } from './or-null.ts'
import { CodedError } from '../protocol/errors.ts'

/** For a service: its user cannot use files that root makes. @throws CodedError STATE_UNWRITABLE */
export function requireOwnDirectory(directory: string): void {
  // If the directory cannot be found, the work in it reports the reason.
  const uid = process.geteuid?.() === 0 ? orNull(() => statSync(directory).uid) : null
  if (uid === null || uid === 0) return
  throw new CodedError(
    'STATE_UNWRITABLE',
    `${directory} belongs to the user with the id ${uid}, who could not use files that root makes there.`,
    {
      details: {
        remedy: `Start the service as this user (with sudo: sudo -u '#${uid}'; in a container: --user ${uid}).`,
      },
    },
  )
}
