import { CodedError } from './errors.ts'

const NOT_PERMITTED: ReadonlySet<unknown> = new Set(['EACCES', 'EADDRNOTAVAIL'])

/**
 * @param place address and port, with the setting that names the port
 * @returns ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED, or the unchanged cause
 */
export function listenFailure(cause: unknown, place: string): unknown {
  const { code, syscall } = cause as { readonly code?: unknown; readonly syscall?: unknown }
  if (code === 'EADDRINUSE') return new CodedError('ADDRESS_IN_USE', `Another process listens on ${place}.`, { cause })
  // The name is unknown or invalid, or no name server responds.
  if (NOT_PERMITTED.has(code) || syscall === 'getaddrinfo') {
    return new CodedError('ADDRESS_NOT_PERMITTED', `Cannot listen on ${place}: ${String(code)}.`, { cause })
  }
  return cause
}
