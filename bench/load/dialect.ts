/**
 * What the load generator speaks: one request and one answer of a protocol, as bytes. A dialect accepts only the answer
 * that grants; everything else ends the run, because a refusal is cheaper than a debit and would flatter the figures.
 */
export interface Dialect {
  /** The bytes that ask for one debit; the same for every request of one connection. */
  request(connection: number): Buffer
  /** Bytes of the whole answer at the beginning of `bytes`, 0 while it is incomplete. Throws when it is not a grant. */
  answerLength(bytes: Buffer): number
}

/** What to load, in a form that can be sent to another process. */
export type Target =
  | {
      readonly protocol: 'http'
      readonly socketPath: string
      /** In the place of the socket: a port of this machine. */
      readonly port?: number
      /** Value of the header Authorization. */
      readonly authorization?: string
      readonly path: string
      /** JSON texts; connection `i` sends number `i` modulo their count. */
      readonly bodies: readonly string[]
      /** Text that only the answer of a grant has. */
      readonly grantMark: string
    }
  | {
      readonly protocol: 'redis'
      readonly socketPath: string
      /** One command in parts; `%` in a part stands for the number of the connection. */
      readonly command: readonly string[]
      /** The whole answer of a grant, as it comes over the wire. */
      readonly grantAnswer: string
    }
