/** Classifies database failures: rerun the transaction, or report a code. The only place that decides about reruns. */
import pg from 'pg'
import { LOCK_NOT_AVAILABLE, WouldWait } from '../sql/sql.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { tlsReason } from '../../../protocol/tls-reason.ts'

/** The connection was lost before COMMIT: nothing has changed. */
export class ConnectionLost extends Error {}

/** COMMIT was sent and not confirmed: only the server knows the outcome. */
export class CommitUnanswered extends Error {
  readonly xid: string
  /** Run of the server that assigned the id. After a crash or a promotion, another transaction may get the same one. */
  readonly serverRun: string

  constructor(xid: string, serverRun: string, cause: unknown) {
    super('a commit was not confirmed', { cause })
    this.xid = xid
    this.serverRun = serverRun
  }
}

export class PasswordMissing extends Error {
  constructor() {
    super('the server requires a password, and none is set')
  }
}

/** No connection was available. */
export class NotConnected extends Error {}

/** The server's error code; undefined if the connection failed. */
function sqlState(error: unknown): string | undefined {
  return error instanceof pg.DatabaseError ? error.code : undefined
}

/** Errors after which a connection is useless: the server closes it, or has become read-only. */
export function endsConnection(error: unknown): boolean {
  if (!(error instanceof pg.DatabaseError)) return false
  // The severity is localized, so check the code too.
  return error.severity === 'FATAL' || error.severity === 'PANIC' || /^(08|57P0|25006)/.test(error.code ?? '')
}

/**
 * Whether a notice says that a commit ended its wait for a standby. An administrator can end the wait (pg_cancel_backend),
 * and PostgreSQL confirms the commit nevertheless. The text of the notice is localized, its origin is not.
 */
export function endsWait({ routine }: { readonly routine?: string | undefined }): boolean {
  return routine === 'SyncRepWaitForLSN'
}

/** A prepared statement no longer fits changed tables; another connection parses it anew. */
export function isStalePlan(error: unknown): boolean {
  return error instanceof pg.DatabaseError && error.routine === 'RevalidateCachedQuery'
}

/**
 * Whether a rerun may succeed: a conflict between transactions, or a connection lost before the commit. A duplicate key is
 * a conflict too: the rerun sees the other transaction's row.
 */
export function mayRerunSucceed(error: unknown): boolean {
  if (error instanceof ConnectionLost || error instanceof WouldWait) return true
  return MEETINGS.has(sqlState(error) ?? '')
}

const MEETINGS: ReadonlySet<string> = new Set([
  '40001', // serialization_failure
  '40P01', // deadlock_detected
  '23505', // unique_violation
  '23503', // foreign_key_violation
  '23514', // check_violation: the partition of the row was made meanwhile
])

export const SESSION_SHARED =
  'a connection pooler gives each transaction another session. Set its pool mode to session, or name PostgreSQL itself in db'

/** Maps a database failure to a code for operators; passes others on. */
export function coded(error: unknown, shown: string): unknown {
  if (error instanceof NotConnected) return notConnected(error.cause, shown)
  if (error instanceof ConnectionLost) {
    return new CodedError('DATABASE_UNREACHABLE', `${shown}: ${error.message}`, { cause: error.cause })
  }
  if (error instanceof CommitUnanswered) {
    return new CodedError('OUTCOME_UNKNOWN', `${shown}: a commit was not confirmed.`, {
      cause: error.cause,
      details: { xid: error.xid },
    })
  }
  const state = error instanceof WouldWait ? LOCK_NOT_AVAILABLE : sqlState(error)
  if (state === undefined) return error
  type Code = ConstructorParameters<typeof CodedError>[0]
  const plain = (code: Code, text: string) => new CodedError(code, text, { cause: error, details: { sqlState: state } })
  const of = (code: Code, text: string) => plain(code, `${shown}: ${text}`)
  const { message } = error as Error
  switch (state) {
    case '40001':
    case '40P01':
    case LOCK_NOT_AVAILABLE:
    case '57014': // query_canceled: the statement's limit
      return plain('OVERLOADED', 'Too many transactions are waiting for the same rows.')
    case '53100': // disk_full
    case '58030': // io_error
      return of('NOT_RECORDED', message)
    case '42501': // insufficient_privilege
      return of('DATABASE_REFUSED', message)
    case '26000': // invalid_sql_statement_name
    case '42P05': // duplicate_prepared_statement
      return of('DATABASE_UNSUITABLE', `${SESSION_SHARED} (${message}).`)
    case 'XX001': // data_corrupted
    case 'XX002': // index_corrupted
      return of('DATABASE_CORRUPT', message)
    case '22021': // character_not_in_repertoire
    case '54000': // program_limit_exceeded: a text is too long for an index
      return plain(
        'BAD_REQUEST',
        'A text is too long for a database index or contains a character that the database cannot store.',
      )
    default:
      return error
  }
}

/** The pool's error after a wait for one of its connections. */
export function isQueueTimeout(error: unknown): boolean {
  return error instanceof Error && error.message === 'timeout exceeded when trying to connect'
}

function notConnected(cause: unknown, shown: string): CodedError {
  if (isQueueTimeout(cause)) {
    return new CodedError('OVERLOADED', 'No database connection became free in time.', { cause })
  }
  const causes: readonly unknown[] = cause instanceof AggregateError ? cause.errors : [cause]
  const refusal = causes.find(isRefusal)
  const state = sqlState(refusal) ?? causes.map(sqlState).find((each) => each !== undefined)
  return new CodedError(
    refusal === undefined ? 'DATABASE_UNREACHABLE' : 'DATABASE_REFUSED',
    `${shown}: ${databaseMessageOf(cause)}`,
    {
      cause,
      ...(state === undefined ? {} : { details: { sqlState: state } }),
    },
  )
}

function isRefusal(error: unknown): boolean {
  return /^(28|3D|42501)/.test(sqlState(error) ?? '') || error instanceof PasswordMissing
}

/** A host name with several addresses fails with an AggregateError without a message. */
export function databaseMessageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error instanceof AggregateError && error.message === '') {
    return error.errors.map(databaseMessageOf).join('; ')
  }
  return tlsReason(error) ?? (isDiskFull(error) ? `the disk of the server is full (${error.message})` : error.message)
}

/** The text for servers and operating systems that give no code. */
function isDiskFull(error: Error): boolean {
  return sqlState(error) === '53100' || /No space left on device|could not write init file/.test(error.message)
}
