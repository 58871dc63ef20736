import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { hasSpace } from '../../src/platform/disk-space.ts'
import { smallDisk } from '../support/mounts.ts'

const MIB = 1024 * 1024

it('finds the space of a disk without inodes', ({ skip }) => {
  const path = join(smallDisk(skip, '4m,nr_inodes=2'), 'last')
  writeFileSync(path, '')
  expect(hasSpace(path, 3 * MIB)).toBe(true)
  expect(hasSpace(path, 5 * MIB)).toBe(false)
})
