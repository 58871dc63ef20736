/**
 * Connections to one database. A connection that failed is never used again, and the failure of one that nobody uses ends
 * nothing but itself. Whole numbers of 64 bits are bigint everywhere.
 */
import pg from 'pg'
import type { Limits } from './limits.ts'

export type Pool = pg.Pool

/** How the text of a value is read, by the number of its type. */
const parserOf = (type: number): ((text: string) => unknown) => (type === INT8 ? BigInt : otherParserOf(type))

const otherParserOf = pg.types.getTypeParser as (type: number) => (text: string) => unknown

const INT8: number = pg.types.builtins.INT8

/** What every connection has in common. `query_timeout` is left to the caller: a migration may take long. */
export function connectionOptions(connectionString: string, { connectTimeoutMs }: Limits) {
  return {
    connectionString,
    application_name: 'tallygate',
    connectionTimeoutMillis: connectTimeoutMs,
    // A server that vanished without a word is noticed in minutes, not in hours.
    keepAlive: true,
    types: { getTypeParser: parserOf as typeof pg.types.getTypeParser },
  }
}

/** @param onLost called when a connection that was not in use has failed; the next work gets another one */
export function openPool(connectionString: string, limits: Limits, onLost: (error: Error) => void): Pool {
  const pool = new pg.Pool({
    ...connectionOptions(connectionString, limits),
    max: limits.connectionsMax,
    // Statements are sent without waiting for the answers to those before them.
    pipeline: true,
    query_timeout: limits.answerTimeoutMs,
  })
  // The pool hears connections that are not in use. Whoever uses one hears it himself: an error that nobody hears would end
  // the process.
  pool.on('error', onLost)
  return pool
}
