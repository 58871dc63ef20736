/**
 * Connection pool. Failed connections are never reused; a failing idle one affects nothing else. 64-bit integers are bigint.
 */
import { Socket } from 'node:net'
import pg from 'pg'
import type { Limits } from './limits.ts'
import { CodedError } from '../../../protocol/errors.ts'

/** `connect` and `query` reject with STOPPING after {@link Pool.cut}. */
export interface Pool {
  connect(): Promise<pg.PoolClient>
  query<R extends pg.QueryResultRow>(text: string, values: unknown[]): Promise<pg.QueryResult<R>>
  readonly isCut: boolean
  /** Cuts all connections, and makes none again: a server that does not respond must not delay a stop. */
  cut(): void
  /** Waits for the work in progress, and closes all connections. */
  end(): Promise<void>
}

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
  const sockets = new Set<Socket>()
  const pool = new pg.Pool({
    ...connectionOptions(connectionString, limits),
    max: limits.connectionsMax,
    // Statements are sent without waiting for earlier responses.
    pipeline: true,
    query_timeout: limits.answerTimeoutMs,
    stream: () => {
      const socket = new Socket()
      sockets.add(socket)
      return socket.once('close', () => sockets.delete(socket))
    },
  })
  // Reports idle connections; without a listener, their errors would end the process.
  pool.on('error', onLost)
  const cut = Promise.withResolvers<never>()
  cut.promise.catch(() => undefined)
  let isCut = false
  let ended: Promise<void> | undefined
  const end = (): Promise<void> => (ended ??= pool.end())
  return {
    get isCut() {
      return isCut
    },
    // Work that waits for a free connection would wait for its timeout.
    connect: () => Promise.race([cut.promise, pool.connect()]),
    query: <R extends pg.QueryResultRow>(text: string, values: unknown[]) =>
      Promise.race([cut.promise, pool.query<R>(text, values)]),
    cut() {
      isCut = true
      cut.reject(new CodedError('STOPPING', 'The cloud stops, and its database does not respond.'))
      void end()
      for (const socket of sockets) socket.destroy()
    },
    async end() {
      await end()
      // A server that does not respond would keep the process alive.
      for (const socket of sockets) socket.destroySoon()
    },
  }
}

export interface DatabaseAddress {
  /** Contains secrets: for the driver only. */
  readonly connectionString: string
  /** `postgres://user@host:port/database`, for messages. */
  readonly shown: string
}

/**
 * @param url `postgres://user:password@host:port/database?sslmode=verify-full`
 * @param password overrides the one in the URL; null: use that one or PGPASSWORD
 * @throws CodedError CONFIG_INVALID
 */
export function databaseAddress(url: string, password: string | null = null): DatabaseAddress {
  // URL's own error contains the password: do not pass it on.
  if (!URL.canParse(url)) throw new CodedError('CONFIG_INVALID', 'The address of the database is not a URL.')
  const parsed = new URL(url)
  if (!/^postgres(ql)?:$/.test(parsed.protocol)) {
    throw new CodedError('CONFIG_INVALID', 'The address of the database must begin with postgres://.')
  }
  const user = parsed.username === '' ? '' : `${parsed.username}@`
  const host = parsed.host === '' ? (parsed.searchParams.get('host') ?? '') : parsed.host
  const shown = `postgres://${user}${host}${parsed.pathname}`
  // A Unix socket URL has no host, so the password must be a parameter.
  if (password !== null) parsed.searchParams.set('password', password)
  return { connectionString: parsed.href, shown }
}
