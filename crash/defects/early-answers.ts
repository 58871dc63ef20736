/**
 * A defect, preloaded: reports entries as committed before they are, so the agent answers before the commit. Deterministic: a
 * commit waits for enough event loop turns for the answers to be written, or for the next call.
 */
import { type JournalCall, JournalHandler } from '../../src/agent/platform/sqlite/journal-handler.ts'

/** Event loop turns between an early answer and its commit: far more than answers need. */
const TURNS = 50

// They are called with the handler that they belong to.
// oxlint-disable-next-line typescript/unbound-method
const { run, takeUnflushed } = JournalHandler.prototype

let postponed: (() => void) | undefined

JournalHandler.prototype.run = function (this: JournalHandler, call: JournalCall): Error | null {
  postponed?.()
  if (call.name !== 'append') return run.call(this, call)
  const commit = (): void => {
    if (postponed !== commit) return
    postponed = undefined
    run.call(this, call)
  }
  postponed = commit
  afterTurns(TURNS, commit)
  return null
}

// No flush comes between an early answer and its commit: it could begin after the commit and end before the answer.
JournalHandler.prototype.takeUnflushed = function (this: JournalHandler): boolean {
  return postponed === undefined && takeUnflushed.call(this)
}

function afterTurns(turns: number, then: () => void): void {
  if (turns === 0) then()
  else setImmediate(() => afterTurns(turns - 1, then))
}
