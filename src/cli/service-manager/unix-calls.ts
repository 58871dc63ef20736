/** C library calls for Unix sockets and signals that Node lacks; all calls return at once. */
import { constants } from 'node:os'
import koffi from 'koffi'
import { CodedError } from '../../protocol/errors.ts'

const AF_UNIX = 1
const SOCK_STREAM = 1
const SOCK_DGRAM = 2
const SOCK_CLOEXEC = 0o2000000
const SOL_SOCKET = 1
const SO_TYPE = 3
const SO_ACCEPTCONN = 30
const MSG_DONTWAIT = 0x40
const MSG_NOSIGNAL = 0x4000

const FAMILY_BYTES = 2
/** Size of `sun_path` including the final NUL. */
const PATH_BYTES_MAX = 108
const INT_BYTES = 4

/** More than the size of `struct sigaction`, which begins with the handler. Zeros are the default action. */
const SIGNAL_ACTION_BYTES = 256

type Sigaction = (signal: number, action: Buffer, former: Buffer | null) => number

interface Calls {
  readonly socket: (family: number, type: number, protocol: number) => number
  readonly sendto: (
    fd: number,
    bytes: Buffer,
    length: number,
    flags: number,
    address: Buffer,
    addressLength: number,
  ) => number
  readonly close: (fd: number) => number
  readonly dup: (fd: number) => number
  readonly getsockname: (fd: number, address: Buffer, length: [number]) => number
  readonly getsockopt: (fd: number, level: number, option: number, value: Buffer, length: [number]) => number
  readonly sigaction: Sigaction
  /** Address of the function. */
  readonly exit: bigint
}

let loaded: Calls | undefined

function calls(): Calls {
  if (loaded !== undefined) return loaded
  try {
    const libc = koffi.load(null)
    loaded = {
      socket: libc.func('int socket(int family, int type, int protocol)'),
      sendto: libc.func(
        'long sendto(int fd, const void *bytes, size_t length, int flags, const void *address, uint32_t addressLength)',
      ),
      close: libc.func('int close(int fd)'),
      dup: libc.func('int dup(int fd)'),
      getsockname: libc.func('int getsockname(int fd, _Out_ void *address, _Inout_ uint32_t *length)'),
      getsockopt: libc.func(
        'int getsockopt(int fd, int level, int option, _Out_ void *value, _Inout_ uint32_t *length)',
      ),
      sigaction: libc.func('int sigaction(int signal, const void *action, _Out_ void *former)'),
      exit: libc.symbol('_exit') as bigint,
    }
    return loaded
  } catch (cause) {
    throw new CodedError('SYSTEM_UNSUPPORTED', 'The C library cannot be called.', { cause })
  }
}

/** A leading `@` of `path` selects the abstract namespace. Returns false if no process received it. */
export function sendDatagram(path: string, text: string): boolean {
  const name = Buffer.from(path.startsWith('@') ? `\0${path.slice(1)}` : path)
  if (name.length === 0 || name.length > PATH_BYTES_MAX) return false
  const { socket, sendto, close } = calls()
  const fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)
  if (fd < 0) return false
  try {
    const address = Buffer.alloc(FAMILY_BYTES + name.length)
    address.writeUInt16LE(AF_UNIX)
    name.copy(address, FAMILY_BYTES)
    const bytes = Buffer.from(text)
    return sendto(fd, bytes, bytes.length, MSG_DONTWAIT | MSG_NOSIGNAL, address, address.length) === bytes.length
  } finally {
    close(fd)
  }
}

/**
 * From now on, SIGINT and SIGTERM end the process at once, although its thread is blocked and cannot call their listeners.
 * The result gives the signals back to the listeners.
 */
export function endBySignals(): () => void {
  const { sigaction, exit } = calls()
  const action = Buffer.alloc(SIGNAL_ACTION_BYTES)
  // The kernel does not apply the default action to the first process of a container.
  if (process.pid === 1) action.writeBigUInt64LE(exit)
  const { SIGINT, SIGTERM } = constants.signals
  const former = [SIGINT, SIGTERM].map((signal) => {
    const listeners = Buffer.alloc(SIGNAL_ACTION_BYTES)
    sigaction(signal, action, listeners)
    return { signal, listeners }
  })
  return () => {
    for (const { signal, listeners } of former) sigaction(signal, listeners, null)
  }
}

/** Another descriptor for the same file or socket. @throws if the process may open no more */
export function duplicate(fd: number): number {
  const other = calls().dup(fd)
  if (other < 0) throw new Error(`descriptor ${fd} cannot be duplicated`)
  return other
}

/** Path of the listening Unix stream socket of this descriptor; null if it is something else or has no path. */
export function listeningPath(fd: number): string | null {
  if (intOption(fd, SO_TYPE) !== SOCK_STREAM || intOption(fd, SO_ACCEPTCONN) !== 1) return null
  const address = Buffer.alloc(FAMILY_BYTES + PATH_BYTES_MAX)
  const length: [number] = [address.length]
  if (calls().getsockname(fd, address, length) !== 0 || address.readUInt16LE() !== AF_UNIX) return null
  const name = address.subarray(FAMILY_BYTES, Math.min(length[0], address.length))
  const end = name.indexOf(0)
  const path = name.toString('utf8', 0, end < 0 ? name.length : end)
  return path === '' ? null : path
}

function intOption(fd: number, option: number): number | null {
  const value = Buffer.alloc(INT_BYTES)
  return calls().getsockopt(fd, SOL_SOCKET, option, value, [value.length]) === 0 ? value.readInt32LE() : null
}
