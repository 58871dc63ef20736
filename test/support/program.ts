// A program of the machine inside a test: without it the test is skipped with the reason, or fails where servers are required.
import type { TestContext } from 'vitest'
import { onPath } from './on-path.ts'

/** @param variable may name the program instead of the path */
export function programForTest(context: TestContext, name: string, variable?: string): string {
  const path = (variable === undefined ? undefined : process.env[variable]) ?? onPath([name])
  if (path !== undefined) return path
  return skip(context, `there is no ${name} on the path${variable === undefined ? '' : `, and ${variable} is not set`}`)
}

export function skip(context: TestContext, reason: string): never {
  if (process.env['TALLYGATE_REQUIRE_SERVERS'] === '1') throw new Error(reason)
  return context.skip(reason)
}
