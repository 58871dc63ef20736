/** Copies the running cloud's database as of one moment without blocking it. Key files are separate. */
import { randomUUID } from 'node:crypto'
import { chmodSync, closeSync, openSync, renameSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import Sqlite from 'better-sqlite3'
import { integrityOf } from '../../../platform/sqlite.ts'
import { flush } from '../../../platform/flush.ts'
import { refuseDirectory } from '../../../platform/refuse-directory.ts'
import { scratchAt } from '../../../platform/scratch.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { unwritableReason } from '../../../protocol/file-reasons.ts'
import { coded, openReader } from './database.ts'

/** The caller of {@link copyStore} removes the partial file and its journal. */
export interface StoreCopy {
  readonly path: string
  readonly to: string
  readonly partial: string
}

/**
 * @param path an existing database
 * @param to target file, replaced once the copy is complete
 * @param copy calls {@link copyStore}, also in another process
 * @throws CodedError STATE_UNWRITABLE, DATABASE_CORRUPT, OUTPUT_UNWRITABLE
 */
export async function backUpStore(
  path: string,
  to: string,
  copy: (files: StoreCopy) => Promise<void> | void = copyStore,
): Promise<void> {
  // A short name: with a suffix, the name of `to` can be too long.
  const partial = join(dirname(to), `.tallygate-backup-${randomUUID()}`)
  unlessWritable({ path, to }, () => refuseDirectory(to))
  const files = [partial, `${partial}-journal`]
  const areGone = files.map(scratchAt)
  try {
    await copy({ path, to, partial })
  } finally {
    for (const file of files) rmSync(file, { force: true })
    for (const isGone of areGone) isGone()
  }
}

/** @throws CodedError as {@link backUpStore} */
export function copyStore({ path, to, partial }: StoreCopy): void {
  const database = openReader(path)
  try {
    if (database.pragma('application_id', { simple: true }) === 0n)
      throw new CodedError('DATABASE_CORRUPT', `${path} is empty.`)
    unlessWritable({ path, to }, () => {
      rmSync(partial, { force: true })
      closeSync(openSync(partial, 'wx', 0o600))
      database.pragma('query_only = OFF')
      // SQL literal: quotes are doubled.
      database.exec(`VACUUM INTO '${partial.replaceAll("'", "''")}'`)
    })
    verify(partial, path)
    unlessWritable({ path, to }, () => {
      chmodSync(partial, 0o600)
      flush(partial)
      renameSync(partial, to)
      flush(dirname(to))
    })
  } finally {
    database.close()
  }
}

/** @param path the database in messages: the copy is removed */
function verify(partial: string, path: string): void {
  const copy = new Sqlite(partial, { readonly: true })
  try {
    const result = integrityOf(copy, 'integrity_check')
    if (result !== 'ok') throw new CodedError('DATABASE_CORRUPT', `${path}: the integrity check reports: ${result}`)
    const [wrong] = copy.pragma('foreign_key_check') as readonly unknown[]
    if (wrong !== undefined)
      throw new CodedError('DATABASE_CORRUPT', `${path}: ${JSON.stringify(wrong)} refers to a missing row`)
  } finally {
    copy.close()
  }
}

function unlessWritable({ path, to }: { readonly path: string; readonly to: string }, work: () => void): void {
  try {
    work()
  } catch (cause) {
    const known = coded(cause, path)
    if (known instanceof CodedError && known.code === 'DATABASE_CORRUPT') throw known
    throw new CodedError('OUTPUT_UNWRITABLE', `Cannot write ${to}: ${unwritableReason(cause)}.`, { cause })
  }
}
