/** Writes a partial file beside the target, flushes and renames it. Non-files, such as pipes, are written directly. */
import { randomUUID } from 'node:crypto'
import { accessSync, closeSync, constants, openSync, realpathSync, statSync } from 'node:fs'
import { open, rename, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { flush } from '../platform/flush.ts'
import { orNull } from '../platform/or-null.ts'
import { scratchAt } from '../platform/scratch.ts'
import { makeDirectories } from '../platform/make-directories.ts'
import { refuseDirectory } from '../platform/refuse-directory.ts'
import { CodedError } from '../protocol/errors.ts'
import { unwritableReason } from '../protocol/file-reasons.ts'

type Pieces = AsyncIterable<string | Uint8Array>

/** @throws CodedError OUTPUT_UNWRITABLE, and errors of the pieces */
export async function writeFileAtomically(path: string, content: string | Uint8Array | Pieces): Promise<void> {
  const pieces = typeof content === 'string' || content instanceof Uint8Array ? [content] : content
  if (isNoFile(path)) {
    await writeThrough(path, pieces)
    return
  }
  // Before the content is made, which may take long.
  await atPath(path, async () => refuseDirectory(path))
  // A random name: parallel runs must not share a partial file, and another user must not prepare it.
  const partial = `${path}.${randomUUID()}.partial`
  // Synchronous: a signal while another thread makes the file could leave it behind.
  await atPath(path, async () => closeSync(openSync(partial, 'wx', 0o600)))
  const isDone = scratchAt(partial)
  try {
    const file = await atPath(path, () => open(partial, 'r+'))
    try {
      for await (const piece of pieces) await atPath(path, () => file.writeFile(piece))
      await atPath(path, () => file.sync())
    } finally {
      await file.close()
    }
    await atPath(path, () => rename(partial, path))
  } catch (error) {
    await rm(partial, { force: true })
    throw error
  } finally {
    isDone()
  }
  // Not supported on every system; the file itself is flushed.
  orNull(() => flush(dirname(path)))
}

/** Replacing a non-file with a file would destroy it and leave its readers waiting. */
export function isNoFile(path: string): boolean {
  try {
    const found = statSync(path, { throwIfNoEntry: false })
    if (found !== undefined && !found.isFile() && !found.isDirectory()) return true
    // Open files have such names too: /dev/stdout, /dev/fd/3.
    return found !== undefined && /^\/dev$|^\/proc\//.test(realpathSync(dirname(path)))
  } catch {
    return false
  }
}

async function writeThrough(path: string, pieces: Pieces | readonly (string | Uint8Array)[]): Promise<void> {
  const file = await atPath(path, () => open(path, 'w'))
  try {
    for await (const piece of pieces) await atPath(path, () => file.writeFile(piece))
  } finally {
    await file.close()
  }
}

async function atPath<T>(path: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (cause) {
    throw new CodedError('OUTPUT_UNWRITABLE', `Cannot write ${path}: ${unwritableReason(cause)}.`, { cause })
  }
}

/** @throws CodedError OUTPUT_UNWRITABLE, also if the directory exists and this user cannot write there */
export function makePrivateDirectory(path: string): void {
  try {
    makeDirectories(path, 0o700)
    accessSync(path, constants.W_OK | constants.X_OK)
  } catch (cause) {
    throw new CodedError('OUTPUT_UNWRITABLE', `Cannot write ${path}: ${unwritableReason(cause)}.`, { cause })
  }
}
