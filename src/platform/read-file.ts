/** Bounded reads: a device, a pipe or a file without end would fill the memory of the process. */
import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs'
import type { DeniedError } from '../protocol/file-reasons.ts'

/** Of a setting, key, certificate or secret. A bundle of all public authorities has 250 KB. */
const SMALL_BYTES_MAX = 4 * 1024 * 1024

/** Of a document for a command. */
export const TEXT_BYTES_MAX = 256 * 1024 * 1024

const CHUNK_BYTES = 65_536

/** Reads a regular file of at most 4 MiB. */
export function readSmallFile(path: string): Buffer {
  // Without O_NONBLOCK, this would wait for the writer of a pipe.
  const file = openNamingUser(path, constants.O_RDONLY | constants.O_NONBLOCK)
  try {
    const found = fstatSync(file)
    // A directory fails below, with a code that callers know.
    if (!found.isFile() && !found.isDirectory()) throw new Error('it is a pipe or a device, not a file')
    return readBounded(file, SMALL_BYTES_MAX)
  } finally {
    closeSync(file)
  }
}

function openNamingUser(path: string, flags: number): number {
  try {
    return openSync(path, flags)
  } catch (error) {
    nameUser(error)
    throw error
  }
}

/** Adds the present user to an error of the system: messages name it, when the process may act as another one. */
export function nameUser(error: unknown): void {
  ;(error as DeniedError).user ??= process.geteuid?.() ?? 0
}

export function readSmallText(path: string): string {
  return readSmallFile(path).toString('utf8')
}

/** Reads to the end. A pipe is read until its writers close it. */
export function readBounded(file: number, bytesMax: number): Buffer {
  const full: Buffer[] = []
  let chunk = Buffer.allocUnsafe(CHUNK_BYTES)
  let used = 0
  for (let total = 0; total <= bytesMax;) {
    // A pipe can give a few bytes at a time.
    if (used === CHUNK_BYTES) {
      full.push(chunk)
      chunk = Buffer.allocUnsafe(CHUNK_BYTES)
      used = 0
    }
    const length = readSync(file, chunk, { offset: used })
    if (length === 0) return Buffer.concat([...full, chunk.subarray(0, used)])
    used += length
    total += length
  }
  throw new Error(`it is larger than ${bytesMax / 1024 / 1024} MiB`)
}
