/**
 * Puts a listening server at a path of the file system. The path never shows a socket that the wrong people could open,
 * and nothing is ever removed from it but a socket behind which nobody listens any more.
 */
import { chmodSync, linkSync, lstatSync, mkdirSync, statSync, unlinkSync } from 'node:fs'
import { type Server, connect } from 'node:net'
import { dirname } from 'node:path'
import { CodedError } from '../../../protocol/errors.ts'

/** What the kernel takes, less the mark of the temporary name. */
const PATH_BYTES_MAX = 106

/**
 * Listens at `path` with the permissions `mode`. The returned function removes the path again, if it is still ours.
 *
 * @throws CodedError SOCKET_IN_USE or SOCKET_PATH_OCCUPIED
 */
export async function claimPath(server: Server, path: string, mode: number): Promise<() => void> {
  if (Buffer.byteLength(path) > PATH_BYTES_MAX) {
    throw occupied(path, `is longer than ${PATH_BYTES_MAX} bytes, which is more than a socket's path may be`)
  }
  try {
    mkdirSync(dirname(path), { recursive: true })
  } catch (error) {
    throw occupied(path, `cannot be made: ${(error as Error).message}`, error)
  }
  try {
    // It comes into the world under another name, gets its permissions there, and only then its own name.
    const unborn = `${path}~`
    await clear(unborn)
    await clear(path)
    await listen(server, unborn)
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

/** Leaves the path free, or throws: only a socket without a listener is removed. */
async function clear(path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false })
  if (found === undefined) return
  if (!found.isSocket()) throw occupied(path, 'exists and is not a socket')
  if (await answers(path)) throw inUse(path)
  unlinkSync(path)
}

/** Whether somebody listens there. */
function answers(path: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const socket = connect(path)
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ECONNREFUSED' || error.code === 'ENOENT') resolve(false)
      // A full queue has an owner.
      else if (error.code === 'EAGAIN') resolve(true)
      else reject(error)
    })
  })
}

function listen(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(path, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

function refusal(error: unknown, path: string): unknown {
  if (error instanceof CodedError) return error
  const { code, message } = error as NodeJS.ErrnoException
  return code === 'EADDRINUSE' || code === 'EEXIST' ? inUse(path) : occupied(path, `cannot be used: ${message}`, error)
}

function inUse(path: string): CodedError {
  return new CodedError('SOCKET_IN_USE', `another process answers on ${path}`, { facts: { path } })
}

function occupied(path: string, why: string, cause?: unknown): CodedError {
  return new CodedError('SOCKET_PATH_OCCUPIED', `${path} ${why}`, { cause, facts: { path } })
}
