/** Minimal protocol of PostgreSQL: a connection without a password, and one simple query at a time. */
import type { Dialect, PostgresTarget } from './dialect.ts'

const PROTOCOL = 196_608

/** Type and length, which counts itself. */
const HEADER_BYTES = 5

export function postgresDialect({
  user,
  database,
  prepare,
  statement,
  grantAnswer,
}: Pick<PostgresTarget, 'user' | 'database' | 'prepare' | 'statement' | 'grantAnswer'>): Dialect {
  const query = queryOf(statement)
  return {
    // The server answers the query after the start, so both go together and end at the second readiness.
    opening: {
      bytes: Buffer.concat([startOf(user, database), queryOf(prepare)]),
      answerLength: (bytes) => lengthUpTo(bytes, 2).length,
    },
    request: () => query,
    answerLength(bytes) {
      const { length, values } = lengthUpTo(bytes, 1)
      if (length > 0 && (values.length !== 1 || values[0] !== grantAnswer)) {
        throw new Error(`not a grant: ${values.join(', ')}`)
      }
      return length
    },
  }
}

function startOf(user: string, database: string): Buffer {
  const text = Buffer.from(`user\0${user}\0database\0${database}\0\0`)
  const head = Buffer.alloc(8)
  head.writeInt32BE(head.length + text.length, 0)
  head.writeInt32BE(PROTOCOL, 4)
  return Buffer.concat([head, text])
}

function queryOf(statement: string): Buffer {
  const text = Buffer.from(`${statement}\0`)
  const head = Buffer.alloc(HEADER_BYTES)
  head.write('Q')
  head.writeInt32BE(text.length + 4, 1)
  return Buffer.concat([head, text])
}

/** Up to the message that says that the server is ready for the next query, and the rows before it with one column each. */
function lengthUpTo(bytes: Buffer, ready: number): { readonly length: number; readonly values: readonly string[] } {
  const values: string[] = []
  let seen = 0
  for (let at = 0; at + HEADER_BYTES <= bytes.length;) {
    const kind = String.fromCharCode(bytes[at] ?? 0)
    const end = at + 1 + bytes.readInt32BE(at + 1)
    if (end > bytes.length) break
    if (kind === 'E') throw new Error(`PostgreSQL refused: ${bytes.toString('utf8', at + HEADER_BYTES, end)}`)
    if (kind === 'D') values.push(bytes.toString('utf8', at + 11, end))
    if (kind === 'Z') seen += 1
    if (seen === ready) return { length: end, values }
    at = end
  }
  return { length: 0, values }
}
