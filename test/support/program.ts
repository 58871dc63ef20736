// A program of the machine inside a test: without it the test is skipped with the reason, or fails where servers are required.
import type { TestContext } from 'vitest'
import { onPath } from './servers.ts'

export function programForTest(context: TestContext, name: string): string {
  const path = onPath([name])
  if (path !== undefined) return path
  const reason = `there is no ${name} on the path`
  if (process.env['TALLYGATE_REQUIRE_SERVERS'] === '1') throw new Error(reason)
  return context.skip(reason)
}
