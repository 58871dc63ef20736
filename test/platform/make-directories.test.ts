import { statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { makeDirectories } from '../../src/platform/make-directories.ts'
import { temporaryDirectory } from '../agent/harness.ts'

it('makes missing parents with the same mode, and returns the first directory that it made', () => {
  const root = temporaryDirectory()
  const path = join(root, 'one', 'two', 'three')
  expect(makeDirectories(path, 0o700)).toBe(join(root, 'one'))
  for (const made of [path, join(root, 'one', 'two'), join(root, 'one')]) {
    expect(statSync(made).mode & 0o777).toBe(0o700)
  }
  expect(makeDirectories(path, 0o700)).toBeUndefined()
})

it('fails in a directory that accepts no entries, and behind a file', () => {
  expect(() => makeDirectories('/proc/tallygate/one')).toThrow('ENOENT')
  const file = join(temporaryDirectory(), 'file')
  writeFileSync(file, '')
  expect(() => makeDirectories(join(file, 'one'))).toThrow('EEXIST')
})
