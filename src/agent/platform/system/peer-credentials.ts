/**
 * The process that connected to a Unix socket, by SO_PEERCRED and SO_PEERGROUPS, which a client cannot forge. Node has no
 * API for it, so libc is called through koffi.
 */
import type { Socket } from 'node:net'
import koffi from 'koffi'
import { CodedError } from '../../../protocol/errors.ts'
import type { Caller } from '../../access/callers/callers.ts'

const SOL_SOCKET = 1
const SO_PEERCRED = 17
const SO_PEERGROUPS = 59

const GROUPS_MAX = 65_536
const INT_BYTES = 4

type GetSockOpt = (fd: number, level: number, option: number, value: Buffer, length: [number]) => number

/** @throws CodedError SYSTEM_UNSUPPORTED if the kernel cannot be queried */
export function openPeerCredentials(): (socket: Socket) => Caller | null {
  const getsockopt = load()
  return (socket) => {
    const fd = descriptorOf(socket)
    if (fd === undefined) return null
    const credentials = Buffer.alloc(3 * INT_BYTES)
    const length: [number] = [credentials.length]
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, credentials, length) !== 0) return null
    const [pid, uid, gid] = [0, 1, 2].map((index) => credentials.readUInt32LE(index * INT_BYTES))
    if (pid === undefined || uid === undefined || gid === undefined || length[0] !== credentials.length) return null
    return { uid, gids: [gid, ...groupsOf(getsockopt, fd)], pid }
  }
}

function groupsOf(getsockopt: GetSockOpt, fd: number): readonly number[] {
  for (let available = 64; available <= GROUPS_MAX; available *= 8) {
    const groups = Buffer.alloc(available * INT_BYTES)
    const length: [number] = [groups.length]
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, length) !== 0) {
      // The buffer is too small, or the kernel is older than 4.13; the next size tells which.
      continue
    }
    return Array.from({ length: length[0] / INT_BYTES }, (_, index) => groups.readUInt32LE(index * INT_BYTES))
  }
  return []
}

function load(): GetSockOpt {
  try {
    const signature = 'int getsockopt(int fd, int level, int option, _Out_ void *value, _Inout_ uint32_t *length)'
    return koffi.load(null).func(signature) as GetSockOpt
  } catch (cause) {
    throw new CodedError(
      'SYSTEM_UNSUPPORTED',
      'The kernel cannot identify clients of the socket: getsockopt is not available.',
      { cause },
    )
  }
}

function descriptorOf(socket: Socket): number | undefined {
  const { _handle: handle } = socket as unknown as { readonly _handle?: { readonly fd?: unknown } | null }
  return typeof handle?.fd === 'number' && handle.fd >= 0 ? handle.fd : undefined
}
