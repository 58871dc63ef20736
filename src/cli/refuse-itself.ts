/** Writing a backup or an export over its own database, under any name, would destroy it. */
import { type BigIntStats, realpathSync, statSync } from 'node:fs'
import { basename, dirname, join, resolve } from 'node:path'
import { orNull } from '../platform/or-null.ts'
import { CodedError } from '../protocol/errors.ts'
import { isNoFile } from './atomic-write.ts'

const SUFFIXES = ['', '-wal', '-shm', '-journal', '-disk-reserve']

/** @throws CodedError USAGE if `to` is a file of the database, OUTPUT_UNWRITABLE if it is not a regular file */
export function refuseItself(database: string, to: string): void {
  if (isNoFile(to))
    throw new CodedError('OUTPUT_UNWRITABLE', `${to} is not a regular file. Write the backup to a regular file.`)
  if (!SUFFIXES.some((suffix) => isSame(`${database}${suffix}`, to))) return
  throw new CodedError('USAGE', `${to} is a file of the database itself. Write to another file.`)
}

function isSame(one: string, other: string): boolean {
  if (placeOf(one) === placeOf(other)) return true
  const [a, b] = [statsOf(one), statsOf(other)]
  return a !== null && a.dev === b?.dev && a.ino === b.ino
}

/** Null if there is no file, or this user may not look: the copy then reports the reason. */
function statsOf(path: string): BigIntStats | null {
  return orNull(() => statSync(path, { bigint: true }))
}

/** The file need not exist. */
function placeOf(path: string): string {
  const inDirectory = (): string => join(realpathSync(dirname(path)), basename(path))
  return orNull(() => realpathSync(path)) ?? orNull(inDirectory) ?? resolve(path)
}
