/** A whole HTTP response as it goes over the connection, for answers that Node's server does not write. */
import { STATUS_CODES } from 'node:http'
import type { Reply } from './reply.ts'

/** @param keepAliveMs after so much silence the connection is closed; null: after this answer */
export function replyText({ status, headers, body }: Reply, keepAliveMs: number | null): string {
  let text = `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n`
  for (let index = 0; index < headers.length; index += 2)
    text += `${headers[index] ?? ''}: ${headers[index + 1] ?? ''}\r\n`
  text +=
    keepAliveMs === null
      ? 'Connection: close\r\n'
      : `Connection: keep-alive\r\nKeep-Alive: timeout=${Math.floor(keepAliveMs / 1000)}\r\n`
  return `${text}\r\n${body}`
}
