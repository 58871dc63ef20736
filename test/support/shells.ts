// A shell for tests of its completions: TALLYGATE_TEST_ZSH, TALLYGATE_TEST_FISH, or the shell on the path. Without one a test is
// skipped with the reason, or fails where servers are required.
import { accessSync, constants } from 'node:fs'
import { delimiter, join } from 'node:path'
import type { TestContext } from 'vitest'

export function shellForTest(context: TestContext, name: 'zsh' | 'fish'): string {
  const variable = `TALLYGATE_TEST_${name.toUpperCase()}`
  const folders = (process.env['PATH'] ?? '').split(delimiter)
  const path = process.env[variable] ?? folders.map((folder) => join(folder, name)).find(isExecutable)
  if (path !== undefined) return path
  const reason = `there is no ${name} on the path, and ${variable} is not set`
  if (process.env['TALLYGATE_REQUIRE_SERVERS'] === '1') throw new Error(reason)
  return context.skip(reason)
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}
