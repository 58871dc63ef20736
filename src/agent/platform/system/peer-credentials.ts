/** The process that connected to a Unix socket, which a client cannot forge. Node has no API for it. */
import type { Socket } from 'node:net'
import koffi from 'koffi'
import { CodedError } from '../../../protocol/errors.ts'
import type { Caller } from '../../access/callers/callers.ts'
import { descriptorOf } from '../../../platform/direct-socket.ts'
import { fileText } from '../../../platform/file-text.ts'

const SOL_SOCKET = 1
const SO_PEERCRED = 17
const SO_PEERGROUPS = 59

const GROUPS_MAX = 65_536
const INT_BYTES = 4

type GetSockOpt = (fd: number, level: number, option: number, value: Buffer, length: [number]) => number

/** Ids that stand for every user or group without an id in this user namespace; null: each has its own. */
export interface SharedIds {
  readonly sharedUid: number | null
  readonly sharedGid: number | null
}

/** @throws CodedError SYSTEM_UNSUPPORTED if the kernel cannot be queried */
export function openPeerCredentials(): (socket: Socket) => Caller | CodedError {
  const getsockopt = load()
  const ids = idsOf({
    uidMap: fileText('/proc/self/uid_map') ?? '',
    gidMap: fileText('/proc/self/gid_map') ?? '',
    overflowUid: fileText('/proc/sys/kernel/overflowuid') ?? '',
    overflowGid: fileText('/proc/sys/kernel/overflowgid') ?? '',
  })
  return (socket) => {
    const caller = callerAt(getsockopt, socket)
    if (caller !== null) return knownCaller(caller, ids)
    return new CodedError('CALLER_NOT_ALLOWED', 'the kernel did not identify the calling process')
  }
}

/** Texts of the kernel's files of these names; an unreadable map counts as partial. */
export function idsOf(texts: Readonly<Record<'uidMap' | 'gidMap' | 'overflowUid' | 'overflowGid', string>>): SharedIds {
  return {
    sharedUid: isWholeMap(texts.uidMap) ? null : overflowOf(texts.overflowUid),
    sharedGid: isWholeMap(texts.gidMap) ? null : overflowOf(texts.overflowGid),
  }
}

/** All users outside of a partial map share one uid: they would get each other's sessions and answers. */
export function knownCaller(caller: Caller, { sharedUid, sharedGid }: SharedIds): Caller | CodedError {
  const { uid, gids, pid } = caller
  if (uid !== sharedUid)
    return sharedGid === null ? caller : { ...caller, gids: gids.filter((gid) => gid !== sharedGid) }
  const message = `uid:${uid} stands for every user that has no id in the user namespace of the agent`
  return new CodedError('CALLER_UNMAPPED', message, { details: { uid, pid } })
}

/** Ids are 32-bit numbers, and the highest one is none. */
const IDS = 2 ** 32 - 1

const OVERFLOW_ID = 65_534

function isWholeMap(map: string): boolean {
  const counts = map.split('\n').map((line) => Number(line.trim().split(/\s+/)[2] ?? 0))
  return counts.reduce((sum, count) => sum + count, 0) >= IDS
}

function overflowOf(text: string): number {
  return /^\d{1,10}$/.test(text.trim()) ? Number(text) : OVERFLOW_ID
}

function callerAt(getsockopt: GetSockOpt, socket: Socket): Caller | null {
  const fd = descriptorOf(socket)
  if (fd === undefined) return null
  const credentials = Buffer.alloc(3 * INT_BYTES)
  const length: [number] = [credentials.length]
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, credentials, length) !== 0) return null
  const [pid, uid, gid] = [0, 1, 2].map((index) => credentials.readUInt32LE(index * INT_BYTES))
  if (pid === undefined || uid === undefined || gid === undefined || length[0] !== credentials.length) return null
  return { uid, gids: [gid, ...groupsOf(getsockopt, fd)], pid }
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
