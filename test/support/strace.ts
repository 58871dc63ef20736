// Asks for strace inside a test: without it the test is skipped with the reason, or fails where servers are required.
import type { TestContext } from 'vitest'
import { whyNoTrace } from '../../crash/trace/strace.ts'
import { skip } from './program.ts'

export function needsStrace(context: TestContext): void {
  const reason = whyNoTrace()
  if (reason !== undefined) skip(context, reason)
}
