/**
 * Which request of which application session this is, where its headers say so. The names of one caller mean nothing to
 * another one: who knows a name of somebody else gets none of its answers, and takes none of its numbers.
 */
import { CodedError } from '../../../protocol/errors.ts'
import { applicationSession } from '../../app/application-session.ts'

export interface Repetition {
  /** The caller and the name that it chose. */
  readonly session: string
  readonly n: number
}

/** Name of an application session: what a header may carry without quoting. */
const SESSION = /^[\x21-\x7e]{1,128}$/
const REQUEST_NUMBER = /^[1-9]\d{0,14}$/

/**
 * @param owner the caller, without spaces; null where callers are not told apart
 * @throws CodedError BAD_REQUEST
 */
export function repetitionOf(
  headers: Readonly<Record<string, string | readonly string[] | undefined>>,
  owner: string | null,
): Repetition | null {
  const { 'x-tallygate-session': session, 'x-tallygate-request': number } = headers
  if (session === undefined && number === undefined) return null
  if (typeof session !== 'string' || !SESSION.test(session)) {
    throw new CodedError(
      'BAD_REQUEST',
      'x-tallygate-session: 1 to 128 visible ASCII characters, with x-tallygate-request',
    )
  }
  if (typeof number !== 'string' || !REQUEST_NUMBER.test(number)) {
    throw new CodedError('BAD_REQUEST', 'x-tallygate-request: a whole number from 1, with x-tallygate-session')
  }
  return { session: applicationSession(owner, session), n: Number(number) }
}
