import { closeSync, fstatSync, openSync, writeSync } from 'node:fs'
import { APPLICATION_ID, PAGE_BYTES, VERSIONS_AT, VERSION_WITH_LOG } from './open-database.ts'

const MAGIC = 'SQLite format 3\0'
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
    start.set([VERSION_WITH_LOG, VERSION_WITH_LOG, 0, ...FRACTIONS], VERSIONS_AT)
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
