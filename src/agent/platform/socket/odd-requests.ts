/**
 * Responses to requests that Node's server has no handler for or cannot parse. Node would send no body or close the
 * connection. Each response is sent after those that are still pending on its connection.
 */
import type { IncomingMessage } from 'node:http'
import { CodedError } from '../../../protocol/errors.ts'
import { type Reply, refused } from './reply.ts'

/** HTTP/1.1 requires a Host header; its value does not matter on a Unix socket. Null: the request is fine. */
export function hostRefusal({ httpVersionMajor, httpVersionMinor, headers }: IncomingMessage): Reply | null {
  const needsHost = httpVersionMajor === 1 && httpVersionMinor >= 1
  return needsHost && headers.host === undefined ? NO_HOST : null
}

export function expectationRefusal({ headers: { expect = '' } }: IncomingMessage): Reply {
  const shown = JSON.stringify(expect.slice(0, SHOWN_CHARACTERS))
  return refused(new CodedError('EXPECTATION_UNKNOWN', `Expect: ${shown} is not supported; only 100-continue is`))
}

/** @param cause error code of Node's HTTP parser or timeout */
export function brokenRefusal(cause: string | undefined): Reply {
  switch (cause) {
    case 'HPE_HEADER_OVERFLOW':
      return HEADERS_TOO_LARGE
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return TOO_SLOW
    default:
      return NO_HTTP
  }
}

export const NO_TUNNEL = refused(
  new CodedError(
    'NOT_FOUND',
    'CONNECT is not supported: the agent is not a proxy. Send the request to one of its own paths',
  ),
)

const SHOWN_CHARACTERS = 100

const NO_HOST = refused(
  new CodedError(
    'BAD_REQUEST',
    'the Host header is missing, and HTTP/1.1 requires it. Any value works, such as localhost',
  ),
)
const HEADERS_TOO_LARGE = refused(
  new CodedError('HEADERS_TOO_LARGE', 'the request line and headers together exceed 16 KiB'),
)
const TOO_SLOW = refused(
  new CodedError('REQUEST_TOO_SLOW', 'the request did not arrive in time. See socket.request_timeout'),
)
const NO_HTTP = refused(new CodedError('BAD_REQUEST', 'this is not a valid HTTP/1.1 request'))
