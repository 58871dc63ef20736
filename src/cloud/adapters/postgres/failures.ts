/**
 * What a failure of the database means: run the transaction again, or a code for the operator. Retry or not is decided
 * here and nowhere else.
 */
import pg from 'pg'
import { WouldWait } from '../sql/would-wait.ts'
import { CodedError } from '../../../protocol/errors.ts'

/** The connection is gone, and with it a transaction that had not reached its commit: nothing has changed. */
export class ConnectionLost extends Error {}

/** The connection was lost between COMMIT and the answer to it: only the server knows what became of the transaction. */
export class CommitUnanswered extends Error {
  /** Of the transaction. */
  readonly xid: string

  constructor(xid: string, cause: unknown) {
    super('the connection was lost during a commit', { cause })
    this.xid = xid
  }
}

/** No connection could be had. */
export class NotConnected extends Error {}

/** What the server said; undefined when it said nothing, because the connection failed. */
function sqlState(error: unknown): string | undefined {
  return error instanceof pg.DatabaseError ? error.code : undefined
}

/** After these words the server closes the connection. */
export function endsConnection(error: unknown): boolean {
  if (!(error instanceof pg.DatabaseError)) return false
  // A server in another language has other words for its severity.
  return error.severity === 'FATAL' || error.severity === 'PANIC' || /^(08|57P0)/.test(error.code ?? '')
}

/** A statement that this connection keeps no longer fits the tables, which somebody has changed: another one parses it anew. */
export function isStalePlan(error: unknown): boolean {
  return error instanceof pg.DatabaseError && error.routine === 'RevalidateCachedQuery'
}

/**
 * Another run may go well: two transactions met, or the connection was lost before anything was committed. A key that is
 * taken is such a meeting too: the second run reads what the other transaction wrote.
 */
export function isWorthAnotherRun(error: unknown): boolean {
  if (error instanceof ConnectionLost || error instanceof WouldWait) return true
  return MEETINGS.has(sqlState(error) ?? '')
}

const MEETINGS: ReadonlySet<string> = new Set([
  '40001', // serialization_failure
  '40P01', // deadlock_detected
  '23505', // unique_violation
  '23503', // foreign_key_violation
])

/** The failure as a code that the operator can look up. What is not of the database is passed on as it is. */
export function coded(error: unknown, shown: string): unknown {
  if (error instanceof NotConnected) return notConnected(error.cause, shown)
  if (error instanceof ConnectionLost) {
    return new CodedError('DATABASE_UNREACHABLE', `${shown}: ${error.message}`, { cause: error.cause })
  }
  if (error instanceof CommitUnanswered) {
    return new CodedError('OUTCOME_UNKNOWN', `${shown}: the connection was lost during a commit.`, {
      cause: error.cause,
      facts: { xid: error.xid },
    })
  }
  const state = sqlState(error instanceof WouldWait ? error.cause : error)
  if (state === undefined) return error
  type Code = ConstructorParameters<typeof CodedError>[0]
  const plain = (code: Code, text: string) => new CodedError(code, text, { cause: error, facts: { sqlState: state } })
  const of = (code: Code, text: string) => plain(code, `${shown}: ${text}`)
  const { message } = error as Error
  switch (state) {
    case '40001':
    case '40P01':
    case '55P03': // lock_not_available
    case '57014': // query_canceled: the statement's limit
      return plain('OVERLOADED', 'Too many transactions wait for the same rows.')
    case '53100': // disk_full
    case '58030': // io_error
      return of('NOT_RECORDED', message)
    case '42501': // insufficient_privilege
      return of('DATABASE_REFUSED', message)
    case 'XX001': // data_corrupted
    case 'XX002': // index_corrupted
      return of('DATABASE_CORRUPT', message)
    case '22021': // character_not_in_repertoire
    case '54000': // program_limit_exceeded: a text is too long for an index
      return plain(
        'BAD_REQUEST',
        'A text is longer than the database can look up, or has a character that it cannot hold.',
      )
    default:
      return error
  }
}

function notConnected(cause: unknown, shown: string): CodedError {
  const state = sqlState(cause)
  const words = messageOf(cause)
  // Of the pool: all connections are in use, and none came free in time.
  if (words === 'timeout exceeded when trying to connect') {
    return new CodedError('OVERLOADED', 'No connection to the database came free in time.', { cause })
  }
  const refused = state !== undefined && /^(28|3D|42501)/.test(state)
  return new CodedError(refused ? 'DATABASE_REFUSED' : 'DATABASE_UNREACHABLE', `${shown}: ${words}`, {
    cause,
    ...(state === undefined ? {} : { facts: { sqlState: state } }),
  })
}

/** Several addresses of one name fail as one error without words of its own. */
export function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error instanceof AggregateError && error.message === '') {
    return error.errors.map((each) => (each instanceof Error ? each.message : String(each))).join('; ')
  }
  return error.message
}
