import { spawnSync } from 'node:child_process'
import { readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { DiskReserve } from '../../../../src/agent/platform/sqlite/disk-reserve.ts'
import { fillDisk, smallDisk } from '../../../support/mounts.ts'
import { needsStrace } from '../../../support/strace.ts'
import { temporaryDirectory } from '../../harness.ts'

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

const MODULE = new URL('../../../../src/agent/platform/sqlite/disk-reserve.ts', import.meta.url).href

test('a reserve that a quota has no space for is not written', (context) => {
  needsStrace(context)
  const directory = temporaryDirectory()
  const program = `import { DiskReserve } from ${JSON.stringify(MODULE)}
    process.exit(new DiskReserve(${JSON.stringify(join(directory, 'reserve'))}, ${4 * MIB}).fill() ? 1 : 0)`
  const tracing = ['-f', '-qq', '-o', '/dev/null', '-e', 'trace=fallocate', '-e', 'inject=fallocate:error=EDQUOT']
  const node = [process.execPath, '--input-type=module', '--eval', program]
  expect(spawnSync('strace', [...tracing, ...node]).status).toBe(0)
  expect(readdirSync(directory)).toEqual([])
})
