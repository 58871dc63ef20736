/** The socket has its final permissions before it appears. Only a socket without a listener is ever removed. */
import { once } from 'node:events'
import { chmodSync, linkSync, lstatSync, statSync, unlinkSync } from 'node:fs'
import { type Server, connect } from 'node:net'
import { dirname } from 'node:path'
import { makeDirectories } from '../../../platform/make-directories.ts'
import { CONNECTIONS_WAITING_MAX } from '../../../platform/open-connections.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { unwritableReason } from '../../../protocol/file-reasons.ts'

/** The kernel's limit on a socket path, minus the suffix of the temporary name. */
const PATH_BYTES_MAX = 106

/** The result removes the socket, unless it was replaced. @throws CodedError SOCKET_IN_USE, SOCKET_PATH_OCCUPIED */
export async function claimPath(server: Server, path: string, mode: number): Promise<() => void> {
  if (Buffer.byteLength(path) > PATH_BYTES_MAX) {
    throw occupied(path, `is longer than ${PATH_BYTES_MAX} bytes, the limit for a socket path`)
  }
  try {
    makeDirectories(dirname(path))
  } catch (error) {
    throw occupied(path, `cannot be created: ${unwritableReason(error)}`, error)
  }
  try {
    // Created under a temporary name, so that permissions are set before clients can see it.
    const unborn = `${path}~`
    await clear(unborn)
    await clear(path)
    await once(server.listen({ path: unborn, backlog: CONNECTIONS_WAITING_MAX }), 'listening')
    try {
      chmodSync(unborn, mode)
      linkSync(unborn, path)
    } catch (error) {
      server.close()
      throw error
    } finally {
      unlinkSync(unborn)
    }
  } catch (error) {
    throw refusal(error, path)
  }
  const { ino, dev } = statSync(path)
  return () => {
    const found = lstatSync(path, { throwIfNoEntry: false })
    if (found?.ino === ino && found.dev === dev) unlinkSync(path)
  }
}

async function clear(path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false })
  if (found === undefined) return
  if (!found.isSocket()) throw occupied(path, 'exists and is not a socket')
  if (await answers(path)) throw inUse(path)
  unlinkSync(path)
}

function answers(path: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    // Not `connect(path)`: Node takes a path that is a number for a port.
    const socket = connect({ path })
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ECONNREFUSED' || error.code === 'ENOENT') resolve(false)
      // EAGAIN means that the accept queue is full, so a process is listening.
      else if (error.code === 'EAGAIN') resolve(true)
      else reject(error)
    })
  })
}

function refusal(error: unknown, path: string): unknown {
  if (error instanceof CodedError) return error
  const { code } = error as NodeJS.ErrnoException
  return code === 'EADDRINUSE' || code === 'EEXIST'
    ? inUse(path)
    : occupied(path, `cannot be used: ${unwritableReason(error)}`, error)
}

function inUse(path: string): CodedError {
  return new CodedError('SOCKET_IN_USE', `another process is listening on ${path}`, { details: { path } })
}

function occupied(path: string, why: string, cause?: unknown): CodedError {
  return new CodedError('SOCKET_PATH_OCCUPIED', `${path} ${why}`, { cause, details: { path } })
}
