/** A directory with archives. A file appears whole, and is flushed first. */
import { open, readFile, readdir, rename, rm } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { CodedError } from '../../../protocol/errors.ts'
import type { ArchivePlace } from '../../usage/archive/place.ts'
import { makeDurableDirectory } from '../system/durable-directory.ts'

/** @param path created with the first file */
export function archiveDirectory(path: string): ArchivePlace {
  const name = resolve(path)
  const coded = (cause: unknown, what: string): CodedError =>
    new CodedError('ARCHIVE_UNAVAILABLE', `${what}: ${cause instanceof Error ? cause.message : String(cause)}`, {
      cause,
    })
  return {
    name,
    async list() {
      try {
        return await readdir(name)
      } catch (error) {
        if (isMissing(error)) return []
        throw coded(error, `${name} cannot be read`)
      }
    },
    async get(file) {
      try {
        return await readFile(join(name, file))
      } catch (error) {
        if (isMissing(error)) return null
        throw coded(error, `${join(name, file)} cannot be read`)
      }
    },
    async put(file, body) {
      const partial = join(name, `${file}.partial`)
      try {
        makeDurableDirectory(name)
        await writeFlushed(partial, body)
        await rename(partial, join(name, file))
        await using directory = await open(name, 'r')
        await directory.sync()
      } catch (error) {
        await rm(partial, { force: true }).catch(() => undefined)
        throw coded(error, `${join(name, file)} cannot be written`)
      }
    },
  }
}

async function writeFlushed(path: string, body: Buffer): Promise<void> {
  await using file = await open(path, 'w', 0o600)
  await file.writeFile(body)
  await file.sync()
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && (error as NodeJS.ErrnoException).code === 'ENOENT'
}
