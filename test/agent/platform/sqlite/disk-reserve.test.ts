import { statSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { DiskReserve } from '../../../../src/agent/platform/sqlite/disk-reserve.ts'
import { fillDisk, smallDisk } from '../../../support/mounts.ts'

const MIB = 1024 * 1024

test.for([3, 5])('a reserve of %i MiB takes the space of one of 4 MiB on a full disk', (mib, { skip }) => {
  const directory = smallDisk(skip, '8m')
  const path = join(directory, 'reserve')
  expect(new DiskReserve(path, 4 * MIB).fill()).toBe(true)
  fillDisk(directory, 1.5 * MIB)
  expect(new DiskReserve(path, mib * MIB).fill()).toBe(true)
  expect(statSync(path).size).toBe(mib * MIB)
  expect(new DiskReserve(path, 7 * MIB).fill()).toBe(false)
  expect(statSync(path).size).toBe(mib * MIB)
})
