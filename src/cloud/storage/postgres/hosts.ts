/** The address of a database on one or several hosts, of which one is the primary. */
import pg from 'pg'
import { trustSystem } from '../../../platform/outgoing.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { NotConnected, PasswordMissing, isQueueTimeout, databaseMessageOf } from './failures.ts'
import type { Limits } from './limits.ts'

// The driver calls it if the server asks for a password, and neither the address nor PGPASSWORD has one.
pg.defaults.password = () => {
  throw new PasswordMissing()
}

export interface DatabaseAddress {
  /** One for each host. They contain secrets: for the driver only. */
  readonly connectionStrings: readonly string[]
  /** `postgres://user@host:port,host:port/database`, for messages. */
  readonly shown: string
}

/**
 * @param url `postgres://user:password@host:port,host:port/database?sslmode=verify-full`
 * @param password overrides the one in the URL; null: use that one or PGPASSWORD
 * @throws CodedError CONFIG_INVALID
 */
export function databaseAddress(url: string, password: string | null = null): DatabaseAddress {
  const invalid = (text: string) => new CodedError('CONFIG_INVALID', `The address of the database ${text}`)
  const [, scheme = '', authority = '', rest = ''] = /^([a-z]+:\/\/)([^/?#]*)(.*)$/is.exec(url) ?? []
  const credentials = authority.slice(0, authority.lastIndexOf('@') + 1)
  // A password that is not encoded would become part of the host or the path, which messages show.
  if (rest.includes('@')) {
    throw invalid('contains @ after its host. In the password, write %2F for /, %3F for ?, %23 for # and %40 for @.')
  }
  const names = authority.slice(credentials.length).split(',')
  if (names.length > 1 && names.includes('')) throw invalid('has an empty host: write host:port,host:port.')
  // URL's own error contains the password: do not pass it on.
  const urls = names.map((name) => URL.parse(`${scheme}${credentials}${name}${rest}`))
  const parsed = urls.filter((each) => each !== null)
  const [first] = parsed
  if (first === undefined || parsed.length < urls.length) throw invalid('is not a URL.')
  const problem = problemOf(first, names.length)
  if (problem !== null) throw invalid(problem)
  for (const { searchParams } of parsed) adaptToDriver(searchParams, password)
  const user = first.username === '' ? '' : `${first.username}@`
  const hosts = first.searchParams.get('host') ?? parsed.map(({ host }) => host).join(',')
  return { connectionStrings: parsed.map(({ href }) => href), shown: `postgres://${user}${hosts}${first.pathname}` }
}

function adaptToDriver(parameters: URLSearchParams, password: string | null): void {
  // The driver takes these for verify-full, and prints a warning about its next version.
  const isRenamed = /^(prefer|require|verify-ca)$/.test(parameters.get('sslmode') ?? '')
  if (isRenamed && !parameters.has('uselibpqcompat')) parameters.set('sslmode', 'verify-full')
  // A Unix socket URL has no host, so the password must be a parameter.
  if (password !== null) parameters.set('password', password)
}

/** Of the address with its first host. Null: the driver understands it. */
function problemOf({ protocol, searchParams }: URL, hosts: number): string | null {
  if (!/^postgres(ql)?:$/.test(protocol)) return 'must begin with postgres://.'
  if (searchParams.get('host')?.includes(',') === true)
    return 'has several hosts in a parameter: write host:port,host:port before the database.'
  if (hosts > 1 && (searchParams.has('host') || searchParams.has('port')))
    return 'has several hosts, and the parameter host or port, which replaces them all: omit the parameter.'
  if (!/^(read-write|primary)$/.test(searchParams.get('target_session_attrs') ?? 'primary'))
    return 'must have target_session_attrs=read-write, or omit it: the cloud needs the primary.'
  return null
}

/** A query that fails if it is not answered in time, on a connection whose other queries may take long. */
export function bounded(text: string, { answerTimeoutMs }: Limits): pg.QueryConfig {
  const query = { text, query_timeout: answerTimeoutMs }
  return query
}

const parserOf = (type: number): ((text: string) => unknown) => (type === INT8 ? BigInt : otherParserOf(type))

const otherParserOf = pg.types.getTypeParser as (type: number) => (text: string) => unknown

const INT8: number = pg.types.builtins.INT8

/** Of one request. */
const ATTEMPTS_MAX = 20

/** Connects to the host that worked last, else to the others in turn. */
export class Hosts {
  readonly #options: readonly pg.ClientConfig[]
  /** Of one request, ms, to try hosts again after each was tried once. */
  readonly #timeoutMs: number
  #index = 0

  constructor({ connectionStrings }: DatabaseAddress, { connectTimeoutMs }: Limits) {
    this.#timeoutMs = connectTimeoutMs * connectionStrings.length
    // A parameter `sslrootcert` replaces these.
    if (connectionStrings.some((each) => /[?&]ssl/.test(each))) trustSystem()
    this.#options = connectionStrings.map((connectionString) => ({
      connectionString,
      application_name: 'tallygate',
      connectionTimeoutMillis: connectTimeoutMs,
      // Detects a vanished server in minutes instead of hours.
      keepAlive: true,
      // 64-bit integers are bigint.
      types: { getTypeParser: parserOf as typeof pg.types.getTypeParser },
    }))
  }

  /** Number of the current host. */
  get index(): number {
    return this.#index
  }

  /** Options of all connections to the current host. The caller sets `query_timeout`: a migration may take long. */
  get current(): pg.ClientConfig {
    return this.#options[this.#index] ?? {}
  }

  /** The next connection goes to another host, unless others have left this one already. */
  leave(host: number): void {
    if (host === this.#index) this.#index = (host + 1) % this.#options.length
  }

  /**
   * @param open connects to the current host
   * @throws NotConnected; CodedError of `open`
   */
  async connect<T>(open: () => Promise<T>): Promise<T> {
    const causes = new Map<unknown, unknown>()
    const end = performance.now() + this.#timeoutMs
    for (let attempts = 1; ; attempts += 1) {
      const index = this.#index
      try {
        return await open()
      } catch (cause) {
        // A request that waits for a connection can get two to the same host: that does not mean that the others fail.
        causes.set(failedServerOf(cause), cause)
        if (isQueueTimeout(cause)) throw new NotConnected('no connection', { cause })
        this.leave(index)
        if (cause instanceof CodedError) throw cause
        if (causes.size === this.#options.length) {
          throw new NotConnected('no connection', {
            cause: causes.size === 1 ? cause : new AggregateError(causes.values()),
          })
        }
        const isOver = attempts >= this.#options.length && performance.now() >= end
        if (attempts === ATTEMPTS_MAX || isOver) {
          const text = `${attempts} connections led to ${causes.size} of ${this.#options.length} hosts: ${databaseMessageOf(cause)}`
          throw new NotConnected('no connection', { cause: new Error(text, { cause }) })
        }
      }
    }
  }
}

/** Where a connection failed: `host:port`, or the address and port. The error itself if it does not say. */
function failedServerOf(cause: unknown): unknown {
  if (cause instanceof NotPrimary) return cause.server
  if (!(cause instanceof Error) || !('address' in cause) || !('port' in cause)) return cause
  return `${String(cause.address)}:${String(cause.port)}`
}

/** The server is a standby, or a former primary. */
export class NotPrimary extends Error {
  /** `host:port` */
  readonly server: string

  constructor(message: string, client: pg.ClientBase) {
    super(message)
    this.server = serverOf(client)
  }
}

/** `host:port` */
export function serverOf(client: pg.ClientBase): string {
  const { host, port } = client as pg.Client
  return `${host}:${port}`
}

/** A primary whose successor was seen: its manager failed to stop it, so its data is old. */
export class FormerPrimary extends NotPrimary {}

export interface Primary {
  /** The system identifier, which a primary and its physical copies share. */
  readonly system: string
  /** Each promotion of a standby begins the next one. */
  readonly timeline: number
}

/** A standby answers queries too, but behind the primary. */
export async function requirePrimary(client: pg.ClientBase, limits: Limits): Promise<Primary> {
  // The timeline is that of the last checkpoint, or of a promotion after it.
  const text = `SELECT pg_is_in_recovery() AS is_standby, current_setting('default_transaction_read_only')::boolean AS reads_only,
    (SELECT system_identifier::text FROM pg_control_system()) AS system,
    (SELECT greatest(timeline_id, min_recovery_end_timeline) FROM pg_control_checkpoint(), pg_control_recovery()) AS timeline`
  type Inputs = Primary & { readonly is_standby: boolean; readonly reads_only: boolean }
  const [inputs] = (await client.query<Inputs>(bounded(text, limits))).rows
  if (inputs?.is_standby !== false) throw new NotPrimary('the server is a standby', client)
  if (inputs.reads_only) throw new Error('the server is read-only')
  return inputs
}
