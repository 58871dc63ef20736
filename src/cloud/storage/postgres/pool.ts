/** Connection pool. Failed connections are never reused; a failing idle one affects nothing else. */
import { Socket } from 'node:net'
import pg from 'pg'
import { type DatabaseAddress, Hosts, requirePrimary } from './hosts.ts'
import { isQueueTimeout } from './failures.ts'
import type { Limits } from './limits.ts'
import { CodedError } from '../../../protocol/errors.ts'

/** `connect` rejects with NotConnected, with DATABASE_DIFFERS, or with STOPPING after {@link Pool.cut}. */
export interface Pool {
  connect(): Promise<PooledConnection>
  readonly isCut: boolean
  /** Cuts all connections, and makes none again: a server that does not respond must not delay a stop. */
  cut(): void
  /** Waits for the work in progress, and closes all connections. */
  end(): Promise<void>
}

export interface PooledConnection {
  readonly client: pg.PoolClient
  /** Changes when the server recovers from a crash, and when a standby is promoted. */
  readonly serverRun: string
}

/** @param onLost called when an idle connection failed */
export function openPool(address: DatabaseAddress, limits: Limits, onLost: (error: Error) => void): Pool {
  const sockets = new Set<Socket>()
  const hosts = new Hosts(address, limits)
  const runs = new WeakMap<pg.ClientBase, string>()
  const socketOf = new WeakMap<pg.ClientBase, Socket>()
  let firstSystem: string | undefined
  const ready = async (client: pg.ClientBase): Promise<void> => {
    // The pending statement reports connection errors.
    client.on('error', () => undefined)
    try {
      const system = await requirePrimary(client, limits)
      firstSystem ??= system
      if (system !== firstSystem) throw differs(address.shown, client)
      runs.set(client, await prepare(client, limits))
    } catch (error) {
      // The pool waits for the end of the connection, which a server that does not respond would delay.
      socketOf.get(client)?.destroy()
      throw error
    }
  }
  const pool = new pg.Pool({
    max: limits.connectionsMax,
    connectionTimeoutMillis: limits.connectTimeoutMs,
    Client: class extends pg.Client {
      constructor() {
        const socket = new Socket()
        super({
          ...hosts.current,
          // Statements are sent without waiting for earlier responses.
          pipeline: true,
          query_timeout: limits.answerTimeoutMs,
          stream: () => {
            sockets.add(socket)
            return socket.once('close', () => sockets.delete(socket))
          },
        })
        socketOf.set(this, socket)
      }
    },
    // The pool waits for the promise, which its types omit. `verify` would leak a connection whose caller timed out meanwhile.
    onConnect: (client): unknown => ready(client),
  })
  // Reports idle connections; without a listener, their errors would end the process.
  pool.on('error', (error, client) => {
    if (runs.has(client)) onLost(error)
  })
  const nextClient = clientsOf(pool, hosts)
  const cut = Promise.withResolvers<never>()
  cut.promise.catch(() => undefined)
  let isCut = false
  let ended: Promise<void> | undefined
  const end = (): Promise<void> => (ended ??= pool.end())
  const connect = async (): Promise<PooledConnection> => {
    const client = await nextClient()
    return { client, serverRun: runs.get(client) ?? '' }
  }
  return {
    get isCut() {
      return isCut
    },
    // Work that waits for a free connection would wait for its timeout.
    connect: () => Promise.race([cut.promise, connect()]),
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

/** @throws NotConnected */
function clientsOf(pool: pg.Pool, hosts: Hosts): () => Promise<pg.PoolClient> {
  let inUse = 0
  pool.on('acquire', () => (inUse += 1))
  pool.on('release', () => (inUse -= 1))
  const next = async (): Promise<pg.PoolClient> => {
    try {
      return await pool.connect()
    } catch (cause) {
      // It has waited for connections that are being made, and not for others to end their work.
      if (isQueueTimeout(cause) && inUse === 0) throw new Error('the server does not respond', { cause })
      throw cause
    }
  }
  return () => hosts.connect(next)
}

/** Ids of transactions mean nothing on a server that is no physical copy: a commit might be run, and charged, again. */
function differs(shown: string, client: pg.ClientBase): CodedError {
  const { host, port } = client as pg.Client
  const text = `the server ${host}:${port} is not a physical copy of the one that this node used first.`
  return new CodedError('DATABASE_DIFFERS', `${shown}: ${text}`)
}

/**
 * Sets the timeouts, and durable commits whatever the server's default. Stricter settings, such as waiting for a standby,
 * stay. Returns the run of the server: its table is unlogged, so PostgreSQL empties it after a crash and at a promotion.
 */
async function prepare(client: pg.ClientBase, limits: Limits): Promise<string> {
  const results = (await client.query(`
    SELECT set_config('statement_timeout', '${limits.statementTimeoutMs}', false),
      set_config('lock_timeout', '${limits.lockTimeoutMs}', false),
      set_config('idle_in_transaction_session_timeout', '${limits.silenceTimeoutMs}', false),
      CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', false) END;
    BEGIN ISOLATION LEVEL READ COMMITTED;
    INSERT INTO server_runs (id) VALUES (gen_random_uuid()) ON CONFLICT DO NOTHING;
    COMMIT;
    SELECT id::text FROM server_runs`)) as unknown as readonly pg.QueryResult<{ id: string }>[]
  const run = results.flatMap(({ rows }) => rows).at(-1)?.id
  if (run === undefined) throw new Error('invariant: server_runs has one row')
  return run
}
