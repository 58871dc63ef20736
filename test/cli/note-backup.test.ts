import { mkdirSync, readFileSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { noteBackup } from '../../src/cli/note-backup.ts'
import { readLastBackup } from '../../src/platform/last-backup.ts'
import { LAST_BACKUP_FILE } from '../../src/protocol/local/last-backup.ts'
import { temporaryDirectory } from '../agent/harness.ts'

test('notes only the newest backup, and leaves no other file behind', () => {
  const directory = temporaryDirectory()
  expect(readLastBackup(directory)).toBeNull()
  expect(noteBackup(join(directory, 'journal.db'), '/media/one.db', 1_000)).toBeNull()
  expect(noteBackup(join(directory, 'journal.db'), '/media/two\n\u001B[2J.db', 2_000)).toBeNull()
  expect(readLastBackup(directory)).toEqual({ at: 2_000, file: '/media/two??[2J.db' })
  expect(readdirSync(directory)).toEqual([LAST_BACKUP_FILE])
})

test('reports a note that cannot be written, and that the backup is good', () => {
  const gone = join(temporaryDirectory(), 'gone', 'journal.db')
  expect(noteBackup(gone, '/media/one.db', 1)).toMatch(
    /^The backup is good, but its time could not be recorded in .*its directory does not exist[.]/,
  )
})

test('neither reads nor writes through a link in the place of the note', () => {
  const directory = temporaryDirectory()
  const victim = join(temporaryDirectory(), 'victim')
  writeFileSync(victim, JSON.stringify({ at: 1, file: '/media/one.db' }))
  const before = readFileSync(victim, 'utf8')
  symlinkSync(victim, join(directory, LAST_BACKUP_FILE))
  expect(readLastBackup(directory)).toBeNull()
  expect(noteBackup(join(directory, 'journal.db'), '/media/two.db', 2)).toBeNull()
  expect(readFileSync(victim, 'utf8')).toBe(before)
  expect(readLastBackup(directory)).toEqual({ at: 2, file: '/media/two.db' })
})

test.each(['', 'null', '{"at":"now","file":"x"}', '{"at":1}', 'x'.repeat(20_000)])(
  'ignores a note that is malformed or too long: %#',
  (content) => {
    const directory = temporaryDirectory()
    writeFileSync(join(directory, LAST_BACKUP_FILE), content)
    expect(readLastBackup(directory)).toBeNull()
  },
)

test('ignores a directory in the place of the note', () => {
  const directory = temporaryDirectory()
  mkdirSync(join(directory, LAST_BACKUP_FILE))
  expect(readLastBackup(directory)).toBeNull()
  expect(noteBackup(join(directory, 'journal.db'), '/media/one.db', 1)).toMatch(/could not be recorded/)
  expect(readdirSync(directory)).toEqual([LAST_BACKUP_FILE])
})
