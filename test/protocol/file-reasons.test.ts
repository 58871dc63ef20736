import { mkdirSync, readFileSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { unreadableReason, unwritableReason } from '../../src/protocol/file-reasons.ts'
import { temporaryDirectory } from '../agent/harness.ts'

function reason(work: () => void, of: (error: unknown) => string): string {
  try {
    work()
  } catch (error) {
    return of(error)
  }
  throw new Error('nothing failed')
}

test('a file that cannot be read or written has a reason in plain words, without the text of the system', () => {
  const folder = temporaryDirectory()
  const at = (name: string): string => join(folder, name)
  mkdirSync(at('directory'))
  writeFileSync(at('file'), '')
  symlinkSync(at('loop'), at('loop'))
  const paths = ['missing/x', 'directory', 'file/x', 'loop', 'x'.repeat(300)].map(at)
  expect(paths.map((path) => reason(() => readFileSync(path), unreadableReason))).toEqual([
    'there is no such file',
    'it is a directory',
    'a part of its path is not a directory',
    'its symbolic links lead in a circle',
    'its name is too long',
  ])
  expect(paths.map((path) => reason(() => writeFileSync(path, ''), unwritableReason))).toEqual([
    'its directory does not exist',
    'it is a directory',
    'a part of its path is not a directory',
    'its symbolic links lead in a circle',
    'its name is too long',
  ])
  expect(reason(() => writeFileSync('/dev/full', 'x'), unwritableReason)).toBe(
    'the disk is full (no space or no inodes)',
  )
  expect(reason(() => readdirSync(at('file')), unreadableReason)).toBe('a part of its path is not a directory')
  expect(unreadableReason(Object.assign(new Error('EIO: i/o error, read'), { code: 'EIO' }))).toBe('EIO')
})
