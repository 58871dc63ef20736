/**
 * The idempotency key in a request's headers. Keys are scoped to the caller: a caller that uses another caller's session
 * name gets none of its responses and uses none of its numbers.
 */
import { CodedError } from '../../../protocol/errors.ts'
import { applicationSession } from '../../access/application-session.ts'

export interface IdempotencyKey {
  /** The caller and its session name. */
  readonly session: string
  readonly n: number
}

/** Session name: visible ASCII. */
const SESSION = /^[\x21-\x7e]{1,128}$/
const REQUEST_NUMBER = /^[1-9]\d{0,14}$/

/**
 * @param owner the caller, without spaces; null when callers are not identified
 * @throws CodedError BAD_REQUEST
 */
export function idempotencyKeyOf(
  headers: Readonly<Record<string, string | readonly string[] | undefined>>,
  owner: string | null,
): IdempotencyKey | null {
  const { 'x-tallygate-session': session, 'x-tallygate-request': number } = headers
  if (session === undefined && number === undefined) return null
  if (typeof session !== 'string' || !SESSION.test(session)) {
    throw new CodedError(
      'BAD_REQUEST',
      'x-tallygate-session must have 1 to 128 visible ASCII characters, and x-tallygate-request must be sent with it',
    )
  }
  if (typeof number !== 'string' || !REQUEST_NUMBER.test(number)) {
    throw new CodedError(
      'BAD_REQUEST',
      'x-tallygate-request must be a whole number from 1, and x-tallygate-session must be sent with it',
    )
  }
  return { session: applicationSession(owner, session), n: Number(number) }
}
