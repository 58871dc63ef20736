/** Why an address cannot be listened on, in words of the error catalogue, for every server of both services. */
import { CodedError } from './errors.ts'

const NOT_PERMITTED: ReadonlySet<unknown> = new Set(['EACCES', 'EADDRNOTAVAIL'])

/**
 * @param place as a person reads it, such as `127.0.0.1:7080`
 * @returns ADDRESS_IN_USE or ADDRESS_NOT_PERMITTED, or what was given where it is none of that
 */
export function listenFailure(cause: unknown, place: string): unknown {
  const { code, syscall } = cause as { readonly code?: unknown; readonly syscall?: unknown }
  if (code === 'EADDRINUSE') return new CodedError('ADDRESS_IN_USE', `Another process listens on ${place}.`, { cause })
  // A name that no name server knows, that is no name, or of which nobody can be asked.
  if (NOT_PERMITTED.has(code) || syscall === 'getaddrinfo') {
    return new CodedError('ADDRESS_NOT_PERMITTED', `${place} cannot be listened on: ${String(code)}.`, { cause })
  }
  return cause
}
