/** Minimal RESP: one prepared command per connection, one expected response. */
import type { Dialect } from './dialect.ts'

export function redisCommand(parts: readonly string[]): Buffer {
  const bulk = parts.map((part) => `$${Buffer.byteLength(part)}\r\n${part}\r\n`).join('')
  return Buffer.from(`*${parts.length}\r\n${bulk}`)
}

export function redisDialect(command: readonly string[], grantAnswer: string): Dialect {
  const requests = new Map<number, Buffer>()
  const grant = Buffer.from(grantAnswer)
  return {
    request(connection) {
      const prepared =
        requests.get(connection) ?? redisCommand(command.map((part) => part.replaceAll('%', String(connection))))
      requests.set(connection, prepared)
      return prepared
    },
    answerLength(bytes) {
      const end = bytes.indexOf('\r\n')
      if (end < 0) return 0
      if (bytes.length < grant.length || bytes.compare(grant, 0, grant.length, 0, grant.length) !== 0) {
        throw new Error(`not a grant: ${bytes.toString('utf8')}`)
      }
      return grant.length
    },
  }
}
