/** Connection pool. Failed connections are never reused; a failing idle one affects nothing else. 64-bit integers are bigint. */
import pg from 'pg'
import type { Limits } from './limits.ts'

export type Pool = pg.Pool

/** Text parser by type number. */
const parserOf = (type: number): ((text: string) => unknown) => (type === INT8 ? BigInt : otherParserOf(type))

const otherParserOf = pg.types.getTypeParser as (type: number) => (text: string) => unknown

const INT8: number = pg.types.builtins.INT8

/** Common options of all connections. The caller sets `query_timeout`: a migration may take long. */
export function connectionOptions(connectionString: string, { connectTimeoutMs }: Limits) {
  return {
    connectionString,
    application_name: 'tallygate',
    connectionTimeoutMillis: connectTimeoutMs,
    // Detects a vanished server in minutes instead of hours.
    keepAlive: true,
    types: { getTypeParser: parserOf as typeof pg.types.getTypeParser },
  }
}

/** @param onLost called when an idle connection failed */
export function openPool(connectionString: string, limits: Limits, onLost: (error: Error) => void): Pool {
  const pool = new pg.Pool({
    ...connectionOptions(connectionString, limits),
    max: limits.connectionsMax,
    // Statements are sent without waiting for earlier responses.
    pipeline: true,
    query_timeout: limits.answerTimeoutMs,
  })
  // Reports idle connections; without a listener, their errors would end the process.
  pool.on('error', onLost)
  return pool
}
