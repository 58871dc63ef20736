/** Serializes a whole HTTP response, for replies that bypass Node's server. */
import { STATUS_CODES } from 'node:http'
import type { Reply } from './reply.ts'

/** @param keepAliveMs idle timeout; null: close after this response */
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
