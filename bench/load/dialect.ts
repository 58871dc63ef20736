/**
 * Requests and responses of a protocol as bytes. Only grants are accepted: a refusal is cheaper than a debit and would
 * improve the results.
 */
export interface Dialect {
  /** The request bytes for one debit, constant per connection. */
  request(connection: number): Buffer
  /** Length of a complete response, else 0. Throws when it is not a grant. */
  answerLength(bytes: Buffer): number
}

export type Target =
  | {
      readonly protocol: 'http'
      readonly socketPath: string
      /** Instead of the socket: a local port. */
      readonly port?: number
      readonly authorization?: string
      readonly path: string
      /** JSON texts; connection `i` uses number `i` modulo their count. */
      readonly bodies: readonly string[]
      readonly grantMark: string
    }
  | {
      readonly protocol: 'redis'
      readonly socketPath: string
      /** Parts of one command; `%` is replaced by the connection's number. */
      readonly command: readonly string[]
      readonly grantAnswer: string
    }
