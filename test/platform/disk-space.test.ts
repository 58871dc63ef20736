import fs, { writeFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { join } from 'node:path'
import { expect, it, onTestFinished, vi } from 'vitest'
import { hasSpace } from '../../src/platform/disk-space.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { smallDisk, unlimitedDisk } from '../support/mounts.ts'

const MIB = 1024 * 1024

it('finds the space of a disk without inodes', ({ skip }) => {
  const path = join(smallDisk(skip, '4m,nr_inodes=2'), 'last')
  writeFileSync(path, '')
  expect(hasSpace(path, 3 * MIB)).toBe(true)
  expect(hasSpace(path, 5 * MIB)).toBe(false)
})

it.each([
  ['root', 0, true],
  ['another user', 1_000, false],
])('counts the space that a disk keeps for root if the user is %s', (_user, id, isEnough) => {
  const path = join(temporaryDirectory(), 'file')
  const stats = Object.assign(fs.statfsSync(temporaryDirectory()), { bsize: MIB, bfree: 4, bavail: 0 })
  vi.spyOn(process, 'geteuid').mockReturnValue(id)
  vi.spyOn(fs, 'statfsSync').mockReturnValue(stats)
  syncBuiltinESMExports()
  onTestFinished(() => {
    vi.restoreAllMocks()
    syncBuiltinESMExports()
  })
  expect(hasSpace(path, MIB)).toBe(isEnough)
  expect(hasSpace(path, 8 * MIB)).toBe(false)
})

it('finds the space of a file system that reports no size', ({ skip }) => {
  const path = join(unlimitedDisk(skip), 'file')
  expect(hasSpace(path, MIB)).toBe(true)
})
