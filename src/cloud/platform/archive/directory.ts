/** A directory with archives. A file appears whole, and is flushed first. */
import { randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { link, open, readFile, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { flush } from '../../../platform/flush.ts'
import { makeDurableDirectory } from '../../../platform/make-directories.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { unreadableReason, unwritableReason } from '../../../protocol/file-reasons.ts'
import type { ArchivePlace } from '../../usage/archive/place.ts'

/** @param path created with the first file */
export function archiveDirectory(path: string, linkFile = link): ArchivePlace {
  const name = resolve(path)
  const unavailable = (cause: unknown, what: string): CodedError =>
    new CodedError('ARCHIVE_UNAVAILABLE', `${what}.`, { cause })
  return {
    name,
    async list() {
      try {
        return await readdir(name)
      } catch (error) {
        if (isMissing(error)) return []
        throw unavailable(error, `${name} cannot be read: ${unlistableReason(error)}`)
      }
    },
    async get(file) {
      try {
        return await readFile(join(name, file))
      } catch (error) {
        if (isMissing(error)) return null
        throw unavailable(error, `${join(name, file)} cannot be read: ${unreadableReason(error)}`)
      }
    },
    async create(file, body) {
      const [partial, whole] = [join(name, `${file}.${randomUUID()}.partial`), join(name, file)]
      try {
        makeDurableDirectory(name)
        flush(name)
        await writeFile(partial, body, { mode: 0o600, flag: 'wx', flush: true })
        const isNew = await linkFile(partial, whole).then(() => true, refusalOf(partial, whole))
        await rm(partial, { force: true })
        await using directory = await open(name, 'r')
        await directory.sync()
        return isNew
      } catch (error) {
        await rm(partial, { force: true }).catch(() => undefined)
        throw unavailable(error, `${whole} cannot be written: ${unwritableReason(error)}`)
      }
    },
  }
}

/** Of file systems without hard links, such as those of Windows. */
const NO_LINKS = new Set(['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS'])

/** Without hard links, two processes that create a file at the same instant both succeed. */
function refusalOf(partial: string, whole: string) {
  return async (error: unknown): Promise<boolean> => {
    const { code = '' } = error as NodeJS.ErrnoException
    if (code !== 'EEXIST' && !NO_LINKS.has(code)) throw error
    if (existsSync(whole)) return false
    await rename(partial, whole)
    return true
  }
}

function unlistableReason(error: unknown): string {
  return (error as NodeJS.ErrnoException).code === 'ENOTDIR' ? 'it is not a directory' : unreadableReason(error)
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && (error as NodeJS.ErrnoException).code === 'ENOENT'
}
