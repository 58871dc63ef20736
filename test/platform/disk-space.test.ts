import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { hasSpace } from '../../src/platform/disk-space.ts'
import { diskOfRoot, fillDisk, smallDisk } from '../support/mounts.ts'

const MIB = 1024 * 1024

it('finds the space of a disk without inodes', ({ skip }) => {
  const path = join(smallDisk(skip, '4m,nr_inodes=2'), 'last')
  writeFileSync(path, '')
  expect(hasSpace(path, 3 * MIB)).toBe(true)
  expect(hasSpace(path, 5 * MIB)).toBe(false)
})

it('finds the space that a disk keeps for root', ({ skip }) => {
  const directory = diskOfRoot(skip)
  fillDisk(directory)
  expect(hasSpace(join(directory, 'file'), MIB)).toBe(process.geteuid?.() === 0)
  expect(hasSpace(join(directory, 'file'), 8 * MIB)).toBe(false)
})
