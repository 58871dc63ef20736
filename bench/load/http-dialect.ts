/** Requests with the bodies of the target, each connection with its own. */
import type { Dialect, HttpTarget } from './dialect.ts'

const HEAD_END = Buffer.from('\r\n\r\n')

export function httpDialect({
  paths,
  bodies,
  serial = '',
  grantMark,
  authorization,
}: Pick<HttpTarget, 'paths' | 'bodies' | 'serial' | 'grantMark' | 'authorization'>): Dialect {
  const mark = Buffer.from(grantMark)
  /** By body and path. */
  const requests = new Map<number, SerialRequest>()
  let sent = 0
  const prepared = (number: number): SerialRequest => {
    const body = bodies[Math.floor(number / paths.length)]
    const path = paths[number % paths.length]
    if (body === undefined || path === undefined) throw new Error('at least one body and one path are needed')
    const request = Buffer.from(
      `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n` +
        (authorization === undefined ? '' : `Authorization: ${authorization}\r\n`) +
        `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    )
    const serialAt = serial === '' ? -1 : request.indexOf(serial)
    if (serial !== '' && serialAt < 0) throw new Error(`the body has no ${serial}: ${body}`)
    return { bytes: request, serialAt }
  }
  return {
    request(connection) {
      const number = (connection % bodies.length) * paths.length + (sent % paths.length)
      let request = requests.get(number)
      if (request === undefined) {
        request = prepared(number)
        requests.set(number, request)
      }
      sent += 1
      const { bytes, serialAt } = request
      if (serialAt >= 0) bytes.write(String(sent).padStart(serial.length, '0'), serialAt, 'latin1')
      return bytes
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

interface SerialRequest {
  readonly bytes: Buffer
  /** Below 0: the bytes never change. */
  readonly serialAt: number
}
