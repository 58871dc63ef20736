import { readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { backUpStore } from '../../../src/cloud/storage/sqlite/backup.ts'
import { openDatabase } from '../../../src/cloud/storage/sqlite/database.ts'
import { temporaryDirectory } from '../../agent/harness.ts'

test('a backup of a damaged database names the database, not the copy, and leaves no file', () => {
  const directory = temporaryDirectory()
  const path = join(directory, 'twin.db')
  const database = openDatabase(path, { check: false })
  database.exec("CREATE TABLE word (text TEXT) STRICT; INSERT INTO word VALUES ('x')")
  const root = Number(database.prepare("SELECT rootpage FROM sqlite_schema WHERE name = 'word'").pluck().get())
  const size = Number(database.pragma('page_size', { simple: true }))
  database.close()
  writeFileSync(path, readFileSync(path).fill(0xff, (root - 1) * size, root * size))
  const message = `${path}: database disk image is malformed`
  expect(() => backUpStore(path, join(directory, 'copy.db'))).toThrow(
    expect.objectContaining({ code: 'DATABASE_CORRUPT', message }) as Error,
  )
  expect(readdirSync(directory)).toEqual(['twin.db'])
})

test('a backup of an emptied database is refused, and the last one stays', () => {
  const directory = temporaryDirectory()
  const [path, backup] = [join(directory, 'twin.db'), join(directory, 'copy.db')]
  openDatabase(path, { check: false }).close()
  backUpStore(path, backup)
  const last = readFileSync(backup)
  writeFileSync(path, '')
  expect(() => backUpStore(path, backup)).toThrow(
    expect.objectContaining({ code: 'DATABASE_CORRUPT', message: `${path} is empty.` }) as Error,
  )
  expect(readFileSync(backup)).toEqual(last)
})

test('refuses a directory before it copies', () => {
  const directory = temporaryDirectory()
  const path = join(directory, 'twin.db')
  openDatabase(path, { check: false }).close()
  for (const to of ['/', directory]) {
    expect(() => backUpStore(path, to)).toThrow(`Cannot write ${to}: it is a directory.`)
  }
  expect(readdirSync(directory)).toEqual(['twin.db'])
})
