import { mkdirSync, readFileSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { readLastBackup } from '../../src/agent/platform/system/last-backup.ts'
import { readLastBackup as readOfTwin } from '../../src/cloud/platform/system/last-backup.ts'
import { noteBackup } from '../../src/cli/note-backup.ts'
import { LAST_BACKUP_FILE } from '../../src/protocol/local/last-backup.ts'
import { temporaryDirectory } from '../agent/harness.ts'

test('what is noted is read by both sides, the newest last, and nothing else is left behind', () => {
  const directory = temporaryDirectory()
  expect(readLastBackup(directory)).toBeNull()
  expect(noteBackup(join(directory, 'journal.db'), '/media/one.db', 1_000)).toBeNull()
  expect(noteBackup(join(directory, 'journal.db'), '/media/two\n\u001B[2J.db', 2_000)).toBeNull()
  const note = { at: 2_000, file: '/media/two??[2J.db' }
  expect([readLastBackup(directory), readOfTwin(directory)]).toEqual([note, note])
  expect(readdirSync(directory)).toEqual([LAST_BACKUP_FILE])
})

test('a note that cannot be written is told, with what follows', () => {
  const gone = join(temporaryDirectory(), 'gone', 'journal.db')
  expect(noteBackup(gone, '/media/one.db', 1)).toMatch(
    /^The backup is good, but its time could not be recorded in .*ENOENT/,
  )
})

test('what stands in the place of a note is not followed, neither by who writes nor by who reads', () => {
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

test.each(['', 'null', '{"at":"now","file":"x"}', '{"at":1}', 'x'.repeat(20_000)])('%# is no note', (content) => {
  const directory = temporaryDirectory()
  writeFileSync(join(directory, LAST_BACKUP_FILE), content)
  expect([readLastBackup(directory), readOfTwin(directory)]).toEqual([null, null])
})

test('a directory in its place is none', () => {
  const directory = temporaryDirectory()
  mkdirSync(join(directory, LAST_BACKUP_FILE))
  expect(readLastBackup(directory)).toBeNull()
  expect(noteBackup(join(directory, 'journal.db'), '/media/one.db', 1)).toMatch(/could not be recorded/)
  expect(readdirSync(directory)).toEqual([LAST_BACKUP_FILE])
})
