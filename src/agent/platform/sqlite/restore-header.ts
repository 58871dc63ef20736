import { closeSync, fstatSync, openSync, writeSync } from 'node:fs'
import { APPLICATION_ID, PAGE_BYTES } from './open-database.ts'

const MAGIC = 'SQLite format 3\0'
/** Versions for writes and reads: the database has a write-ahead log. */
const WITH_LOG = 2
/** Constants of SQLite's format. */
const FRACTIONS = [64, 32, 32]
const SCHEMA_FORMAT = 4
const UTF_8 = 1

/**
 * Writes values that every ledger may have in its header. SQLite reads no table of a database if one of them is damaged,
 * or adds no entries to it.
 * @param copy of a damaged ledger, or of another file
 */
export function restoreHeader(copy: string): void {
  const file = openSync(copy, 'r+')
  try {
    const pages = Math.floor(fstatSync(file).size / PAGE_BYTES)
    if (pages === 0) return
    const start = Buffer.alloc(24)
    start.write(MAGIC)
    start.writeUInt16BE(PAGE_BYTES, 16)
    start.set([WITH_LOG, WITH_LOG, 0, ...FRACTIONS], 18)
    writeSync(file, start, 0, start.length, 0)
    writeNumber(file, pages, 28)
    // No free pages: with a wrong number, SQLite adds no pages, or overwrites pages that are in use.
    writeNumber(file, 0, 36)
    writeNumber(file, SCHEMA_FORMAT, 44)
    writeNumber(file, UTF_8, 56)
    writeNumber(file, APPLICATION_ID, 68)
  } finally {
    closeSync(file)
  }
}

function writeNumber(file: number, value: number, at: number): void {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  writeSync(file, bytes, 0, bytes.length, at)
}
