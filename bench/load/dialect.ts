/**
 * Requests and responses of a protocol as bytes. Only the expected answer is accepted: a refusal is cheaper than a debit and
 * would improve the results.
 */
export interface Dialect {
  /** Sent first on each connection, until it is answered. Absent: nothing. */
  readonly opening?: {
    readonly bytes: Buffer
    /** Length of the complete answer, else 0. Throws if the server refuses. */
    answerLength(bytes: Buffer): number
  }
  /** The bytes of the next request of a connection; valid until its next one. */
  request(connection: number): Buffer
  /** Length of a complete response, else 0. Throws when it is not a grant. */
  answerLength(bytes: Buffer): number
}

export interface HttpTarget {
  readonly protocol: 'http'
  readonly socketPath: string
  /** Instead of the socket: a local port. */
  readonly port?: number
  readonly authorization?: string
  /** Requests take them in turn. */
  readonly paths: readonly string[]
  /** JSON texts; connection `i` uses number `i` modulo their count. */
  readonly bodies: readonly string[]
  /** Digits in each body that are replaced by a running number, so that no body is sent twice. Absent: bodies repeat. */
  readonly serial?: string
  readonly grantMark: string
}

export interface RedisTarget {
  readonly protocol: 'redis'
  readonly socketPath: string
  /** Parts of one command; `%` is replaced by the connection's number. */
  readonly command: readonly string[]
  readonly grantAnswer: string
}

export interface PostgresTarget {
  readonly protocol: 'postgres'
  readonly socketPath: string
  readonly user: string
  readonly database: string
  /** Run once on each connection. */
  readonly prepare: string
  /** One statement that returns one value. */
  readonly statement: string
  readonly grantAnswer: string
}

export type Target = HttpTarget | RedisTarget | PostgresTarget
