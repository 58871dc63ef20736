/** Minimal Redis client over its Unix socket, to prepare accounts and read a counter. */
import { once } from 'node:events'
import { connect } from 'node:net'
import { redisCommand } from '../load/redis-dialect.ts'

/** Sends one command; returns an integer, simple or bulk string as text. Rejects on an error. */
export async function askRedis(socketPath: string, ...command: string[]): Promise<string> {
  const socket = connect(socketPath)
  try {
    await once(socket, 'connect')
    socket.write(redisCommand(command))
    let received = ''
    for await (const bytes of socket as AsyncIterable<Buffer>) {
      received += bytes.toString('latin1')
      const answer = parse(received)
      if (answer !== undefined) return answer
    }
    throw new Error('Redis closed the connection')
  } finally {
    socket.destroy()
  }
}

/** Undefined: incomplete. */
function parse(received: string): string | undefined {
  const end = received.indexOf('\r\n')
  if (end < 0) return undefined
  const line = received.slice(1, end)
  if (received.startsWith('-')) throw new Error(`Redis refused: ${line}`)
  if (!received.startsWith('$')) return line
  const bulkEnd = end + 2 + Number(line)
  return received.length < bulkEnd + 2 ? undefined : received.slice(end + 2, bulkEnd)
}
