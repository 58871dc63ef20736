/** Connection pool. Failed connections are never reused; a failing idle one affects nothing else. */
import { Socket } from 'node:net'
import pg from 'pg'
import { type DatabaseAddress, FormerPrimary, Hosts, NotPrimary, requirePrimary, serverOf } from './hosts.ts'
import { NotConnected, isQueueTimeout } from './failures.ts'
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
  /** The server was silent: its connections are given up, and the next ones try the other hosts first. */
  readonly leaveHost: () => void
  /**
   * Leaves the host if its server waited for a standby before and does not any more: another server may be the primary.
   * @param waits whether it waits now
   * @returns whether it has left
   */
  readonly leaveIfNotWaiting: (waits: boolean) => boolean
}

/**
 * @param onLost called when an idle connection failed
 * @param onRegained called with `host:port` at the first connection after that, or after no host could be used
 */
export function openPool(
  address: DatabaseAddress,
  limits: Limits,
  onLost: (error: Error) => void,
  onRegained: (server: string) => void = () => undefined,
): Pool {
  const sockets = new Set<Socket>()
  const hosts = new Hosts(address, limits)
  const primaries = new Primaries(address.shown, limits, onRegained)
  const startOf = new WeakMap<pg.ClientBase, { readonly socket: Socket; readonly host: number }>()
  const ready = async (client: pg.ClientBase): Promise<void> => {
    // The pending statement reports connection errors.
    client.on('error', () => undefined)
    try {
      await primaries.accept(client)
    } catch (error) {
      // The pool waits for the end of the connection, which a server that does not respond would delay.
      startOf.get(client)?.socket.destroy()
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
        startOf.set(this, { socket, host: hosts.index })
      }
    },
    // The pool waits for the promise, which its types omit. `verify` would leak a connection whose caller timed out meanwhile.
    onConnect: (client): unknown => ready(client),
  })
  // Reports idle connections; without a listener, their errors would end the process.
  pool.on('error', (error, client) => {
    if (!primaries.hasAccepted(client)) return
    primaries.lose()
    onLost(error)
  })
  const cut = Promise.withResolvers<never>()
  cut.promise.catch(() => undefined)
  let isCut = false
  let ended: Promise<void> | undefined
  const end = (): Promise<void> => (ended ??= pool.end())
  const leave = (client: pg.ClientBase): void => hosts.leave(startOf.get(client)?.host ?? 0)
  const connect = connectionsOf(clientsOf(pool, hosts, primaries), primaries, leave)
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

function connectionsOf(
  nextClient: () => Promise<pg.PoolClient>,
  primaries: Primaries,
  leave: (client: pg.ClientBase) => void,
): () => Promise<PooledConnection> {
  return async () => {
    for (;;) {
      const client = await nextClient()
      const serverRun = primaries.serverRunOf(client)
      if (serverRun === null) {
        client.release(true)
        continue
      }
      const leaveHost = (): void => {
        if (primaries.serverRunOf(client) === null) return
        primaries.giveUp()
        leave(client)
      }
      const leaveIfNotWaiting = (waits: boolean): boolean => {
        const hasStopped = primaries.noteWaiting(client, waits)
        if (hasStopped) leaveHost()
        return hasStopped
      }
      return { client, serverRun, leaveHost, leaveIfNotWaiting }
    }
  }
}

/** Whether a former primary is the primary again: each other host is a standby. */
function isSucceededByNone(error: unknown): boolean {
  const cause = error instanceof NotConnected ? error.cause : undefined
  const causes: readonly unknown[] = cause instanceof AggregateError ? cause.errors : [cause]
  return causes.every((each) => each instanceof NotPrimary) && causes.some((each) => each instanceof FormerPrimary)
}

/** @throws NotConnected */
function clientsOf(pool: pg.Pool, hosts: Hosts, primaries: Primaries): () => Promise<pg.PoolClient> {
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
  return async () => {
    try {
      return await hosts.connect(next)
    } catch (error) {
      if (!isSucceededByNone(error)) {
        if (error instanceof NotConnected && !isQueueTimeout(error.cause)) primaries.lose()
        throw error
      }
      primaries.acceptFormer()
      return hosts.connect(next)
    }
  }
}

/** Knows which connections lead to the newest primary that was seen. */
class Primaries {
  readonly #shown: string
  readonly #limits: Limits
  readonly #onRegained: (server: string) => void
  readonly #accepted = new WeakMap<pg.ClientBase, { readonly serverRun: string; readonly generation: number }>()
  #system: string | undefined
  #timeline = 0
  /** Connections of earlier generations are given up. */
  #generation = 0
  /** Whether the primary of this generation was seen to wait for a standby. */
  #waits = false
  #isLost = false

  constructor(shown: string, limits: Limits, onRegained: (server: string) => void) {
    this.#shown = shown
    this.#limits = limits
    this.#onRegained = onRegained
  }

  /** The next connection that is accepted ends an outage. */
  lose(): void {
    this.#isLost = true
  }

  /** Prepares a new connection. A newer timeline gives up the earlier connections. */
  async accept(client: pg.ClientBase): Promise<void> {
    const { system, timeline } = await requirePrimary(client, this.#limits)
    this.#system ??= system
    if (system !== this.#system) throw differs(this.#shown, client)
    const serverRun = await prepare(client, this.#limits)
    if (timeline < this.#timeline) throw new FormerPrimary('the server is a former primary', client)
    if (timeline > this.#timeline) this.giveUp()
    this.#timeline = timeline
    this.#accepted.set(client, { serverRun, generation: this.#generation })
    if (this.#isLost) this.#onRegained(serverOf(client))
    this.#isLost = false
  }

  hasAccepted(client: pg.ClientBase): boolean {
    return this.#accepted.has(client)
  }

  /** Null: the connection is given up. */
  serverRunOf(client: pg.ClientBase): string | null {
    const accepted = this.#accepted.get(client)
    return accepted?.generation === this.#generation ? accepted.serverRun : null
  }

  /** Gives up all connections so far. */
  giveUp(): void {
    this.#generation += 1
    this.#waits = false
  }

  /** @returns whether the server waited for a standby before, and does not any more */
  noteWaiting(client: pg.ClientBase, waits: boolean): boolean {
    const isGivenUp = this.serverRunOf(client) === null
    if (waits && !isGivenUp) this.#waits = true
    return !waits && (this.#waits || isGivenUp)
  }

  acceptFormer(): void {
    this.#timeline = 0
  }
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
