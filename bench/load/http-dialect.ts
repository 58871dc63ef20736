/**
 * Minimal HTTP/1.1 with keep-alive, prepared requests and Content-Length responses. Parses little, so that the client
 * is not the bottleneck.
 */
import type { Dialect } from './dialect.ts'

const HEAD_END = Buffer.from('\r\n\r\n')

export function httpDialect(
  path: string,
  bodies: readonly string[],
  grantMark: string,
  authorization?: string,
): Dialect {
  const requests = bodies.map((body) =>
    Buffer.from(
      `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n` +
        (authorization === undefined ? '' : `Authorization: ${authorization}\r\n`) +
        `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    ),
  )
  const mark = Buffer.from(grantMark)
  return {
    request(connection) {
      const request = requests[connection % requests.length]
      if (request === undefined) throw new Error('at least one body is needed')
      return request
    },
    answerLength(bytes) {
      const headEnd = bytes.indexOf(HEAD_END)
      if (headEnd < 0) return 0
      const head = bytes.toString('latin1', 0, headEnd)
      const length = /\r\ncontent-length: *(\d+)/i.exec(head)?.[1]
      if (length === undefined) throw new Error(`an answer without Content-Length: ${head}`)
      const end = headEnd + HEAD_END.length + Number(length)
      if (bytes.length < end) return 0
      if (!head.startsWith('HTTP/1.1 200 ') || !bytes.includes(mark, headEnd)) {
        throw new Error(`not a grant: ${bytes.toString('utf8', 0, end)}`)
      }
      return end
    },
  }
}
