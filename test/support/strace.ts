// Asks for strace inside a test: without it the test is skipped with the reason, or fails where servers are required.
import type { TestContext } from 'vitest'
import { whyNoTrace } from '../../crash/trace/strace.ts'

export function needsStrace(context: TestContext): void {
  const reason = whyNoTrace()
  if (reason === undefined) return
  if (process.env['TALLYGATE_REQUIRE_SERVERS'] === '1') throw new Error(reason)
  context.skip(reason)
}
