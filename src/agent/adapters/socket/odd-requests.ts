/**
 * Requests that Node's server has no handler for, or cannot read at all: left to itself it would answer them without a body, or
 * hang up. Each gets an answer with a code and a reason, after those that its connection still waits for.
 */
import type { IncomingMessage } from 'node:http'
import { CodedError } from '../../../protocol/errors.ts'
import { type Reply, refused } from './reply.ts'

/** HTTP asks for a Host in every request of version 1.1; which one does not matter at a Unix socket. Null: nothing is wrong. */
export function hostRefusal({ httpVersionMajor, httpVersionMinor, headers }: IncomingMessage): Reply | null {
  const needsHost = httpVersionMajor === 1 && httpVersionMinor >= 1
  return needsHost && headers.host === undefined ? NO_HOST : null
}

export function expectationRefusal({ headers: { expect = '' } }: IncomingMessage): Reply {
  const shown = JSON.stringify(expect.slice(0, SHOWN_CHARACTERS))
  return refused(new CodedError('EXPECTATION_UNKNOWN', `Expect: ${shown} is not known; 100-continue is`))
}

/** @param cause code of Node's error: what its parser, or its clock, found wrong */
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
  new CodedError('NOT_FOUND', 'there is no CONNECT: the agent is no proxy; ask for one of its own addresses'),
)

const SHOWN_CHARACTERS = 100

const NO_HOST = refused(
  new CodedError(
    'BAD_REQUEST',
    'the header Host is missing, which HTTP/1.1 asks for; any name will do, such as localhost',
  ),
)
const HEADERS_TOO_LARGE = refused(
  new CodedError('HEADERS_TOO_LARGE', 'the request line and the headers are larger than 16 KiB together'),
)
const TOO_SLOW = refused(new CodedError('REQUEST_TOO_SLOW', 'the request did not arrive in the time that it may take'))
const NO_HTTP = refused(new CodedError('BAD_REQUEST', 'this is not an HTTP/1.1 request that the agent takes'))
