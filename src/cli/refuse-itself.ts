/**
 * A backup must never be written over the database that it is made of, under whatever name: that would destroy it. Nor in the
 * place of what is no file, such as /dev/null.
 */
import { realpathSync, statSync } from 'node:fs'
import { basename, dirname, join, resolve } from 'node:path'
import { CodedError } from '../protocol/errors.ts'
import { isNoFile } from './whole-file.ts'

/** What belongs to a database, beside it. */
const SUFFIXES = ['', '-wal', '-shm', '-journal', '-slack']

/** @throws CodedError USAGE when `to` is the database or one of its files, OUTPUT_UNWRITABLE when it is no file */
export function refuseItself(database: string, to: string): void {
  if (isNoFile(to)) throw new CodedError('OUTPUT_UNWRITABLE', `${to} is no file: a backup cannot take its place.`)
  if (!SUFFIXES.some((suffix) => isSame(`${database}${suffix}`, to))) return
  throw new CodedError('USAGE', `${to} belongs to the database itself: name another file for the backup.`)
}

function isSame(one: string, other: string): boolean {
  if (placeOf(one) === placeOf(other)) return true
  const [a, b] = [one, other].map((path) => statSync(path, { bigint: true, throwIfNoEntry: false }))
  return a !== undefined && a.dev === b?.dev && a.ino === b.ino
}

/** Of a file that need not exist. */
function placeOf(path: string): string {
  for (const place of [() => realpathSync(path), () => join(realpathSync(dirname(path)), basename(path))]) {
    try {
      return place()
    } catch {
      // The next one asks for less.
    }
  }
  return resolve(path)
}
