import { readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { backUpStore } from '../../../src/cloud/storage/sqlite/backup.ts'
import { openDatabase } from '../../../src/cloud/storage/sqlite/database.ts'
import { temporaryDirectory } from '../../agent/harness.ts'

test('a backup of a damaged database names the database, not the copy, and leaves no file', async () => {
  const directory = temporaryDirectory()
  const path = join(directory, 'twin.db')
  const database = openDatabase(path, { check: false })
  database.exec("CREATE TABLE word (text TEXT) STRICT; INSERT INTO word VALUES ('x')")
  const root = Number(database.prepare("SELECT rootpage FROM sqlite_schema WHERE name = 'word'").pluck().get())
  const size = Number(database.pragma('page_size', { simple: true }))
  database.close()
  writeFileSync(path, readFileSync(path).fill(0xff, (root - 1) * size, root * size))
  const message = `${path}: database disk image is malformed`
  const made = backUpStore(path, join(directory, 'copy.db'))
  await expect(made).rejects.toMatchObject({ code: 'DATABASE_CORRUPT', message })
  expect(readdirSync(directory)).toEqual(['twin.db'])
})

test('refuses a directory before it copies', async () => {
  const directory = temporaryDirectory()
  const path = join(directory, 'twin.db')
  openDatabase(path, { check: false }).close()
  for (const to of ['/', directory]) {
    await expect(backUpStore(path, to), to).rejects.toThrow(`Cannot write ${to}: it is a directory.`)
  }
  expect(readdirSync(directory)).toEqual(['twin.db'])
})

test('a backup of an emptied database is refused, and the last one stays', async () => {
  const directory = temporaryDirectory()
  const [path, backup] = [join(directory, 'twin.db'), join(directory, 'copy.db')]
  openDatabase(path, { check: false }).close()
  await backUpStore(path, backup)
  const last = readFileSync(backup)
  writeFileSync(path, '')
  await expect(backUpStore(path, backup)).rejects.toMatchObject({
    code: 'DATABASE_CORRUPT',
    message: `${path} is empty.`,
  })
  expect(readFileSync(backup)).toEqual(last)
})

test('a backup can have the longest name that the file system takes', async () => {
  const directory = temporaryDirectory()
  const path = join(directory, 'twin.db')
  openDatabase(path, { check: false }).close()
  const name = 'b'.repeat(255)
  await backUpStore(path, join(directory, name))
  expect(readdirSync(directory)).toEqual([name, 'twin.db'])
  const made = backUpStore(path, join(directory, `${name}b`))
  await expect(made).rejects.toMatchObject({ code: 'OUTPUT_UNWRITABLE' })
})
