/**
 * A file that is there as a whole or not at all: written beside its place, flushed, and then renamed. What was in its place
 * stays until then, and for ever when the writing fails. What is no file, such as a pipe or /dev/null, is written to and stays.
 */
import { randomUUID } from 'node:crypto'
import { realpathSync, statSync } from 'node:fs'
import { open, rename, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { scratchAt } from '../agent/adapters/system/scratch.ts'
import { CodedError } from '../protocol/errors.ts'

/** @throws CodedError OUTPUT_UNWRITABLE, and whatever the pieces throw */
export async function writeWholeFile(path: string, pieces: AsyncIterable<Uint8Array>): Promise<void> {
  if (isNoFile(path)) {
    await writeThrough(path, pieces)
    return
  }
  // Two runs that write the same file must not write into each other: the one that ends last stays. Nor may anybody else
  // have put something under the name, to have it written over.
  const partial = `${path}.${randomUUID()}.partial`
  const file = await atPath(path, () => open(partial, 'wx', 0o600))
  const isDone = scratchAt(partial)
  try {
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
  await flushDirectory(dirname(path))
}

/** What stands here would be lost, and whoever waits at it get nothing, if a file took its place. */
export function isNoFile(path: string): boolean {
  try {
    const found = statSync(path, { throwIfNoEntry: false })
    if (found !== undefined && !found.isFile() && !found.isDirectory()) return true
    // An open file goes by such a name, too: /dev/stdout, /dev/fd/3.
    return found !== undefined && /^\/dev$|^\/proc\//.test(realpathSync(dirname(path)))
  } catch {
    return false
  }
}

async function writeThrough(path: string, pieces: AsyncIterable<Uint8Array>): Promise<void> {
  const file = await atPath(path, () => open(path, 'w'))
  try {
    for await (const piece of pieces) await atPath(path, () => file.writeFile(piece))
  } finally {
    await file.close()
  }
}

/** So that the new name survives a power cut, on systems where a directory can be flushed. */
async function flushDirectory(path: string): Promise<void> {
  try {
    await using directory = await open(path, 'r')
    await directory.sync()
  } catch {
    // The file itself is flushed; its name is as durable as this system makes it.
  }
}

async function atPath<T>(path: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (cause) {
    throw new CodedError('OUTPUT_UNWRITABLE', `${path} cannot be written.`, { cause })
  }
}
