import { expect, test } from 'vitest'
import { inDatabaseProcess } from '../../src/cli/in-database-process.ts'

test.each([
  ['cannot be started', '/nonexistent', /ENOENT/],
  ['ends before it reads its task', '/bin/true', /ended early \(exit code 0\)/],
])('a process that %s is an error of the command', async (_name, program, message) => {
  const own = process.execPath
  process.execPath = program
  try {
    await expect(inDatabaseProcess({ check: '/nonexistent/twin.db' })).rejects.toThrow(message)
  } finally {
    process.execPath = own
  }
})
