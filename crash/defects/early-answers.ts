/**
 * A defect, preloaded: reports entries as committed before the journal's thread gets them, so the agent answers before
 * the commit. Deterministic: calls wait enough event loop turns for the answers to be written.
 */
import { Worker } from 'node:worker_threads'
import type { JournalCall } from '../../src/agent/platform/sqlite/journal-calls.ts'

type Post = (this: Worker, message: JournalCall, ...rest: readonly never[]) => void
type Emit = (this: Worker, event: string | symbol, ...args: unknown[]) => boolean

/** Event loop turns between an early answer and its call: far more than answers need. */
const TURNS = 50

interface Line {
  /** Not yet sent; if `busy`, the first one is sent or answered. */
  readonly waiting: JournalCall[]
  busy: boolean
  given: boolean
}
const lines = new WeakMap<Worker, Line>()

// Both are called with the thread that they belong to.
// oxlint-disable-next-line typescript/unbound-method
const post = Worker.prototype.postMessage as Post
// oxlint-disable-next-line typescript/unbound-method
const emit = Worker.prototype.emit as Emit

function lineOf(worker: Worker): Line {
  let line = lines.get(worker)
  if (line === undefined) lines.set(worker, (line = { waiting: [], busy: false, given: false }))
  return line
}

function next(worker: Worker, line: Line): void {
  const message = line.waiting.shift()
  line.busy = message !== undefined
  if (message === undefined) return
  line.given = message.method === 'append'
  if (!line.given) {
    post.call(worker, message)
    return
  }
  setImmediate(() => {
    emit.call(worker, 'message', { ok: true })
    afterTurns(TURNS, () => post.call(worker, message))
  })
}

function afterTurns(turns: number, then: () => void): void {
  if (turns === 0) then()
  else setImmediate(() => afterTurns(turns - 1, then))
}

const postInTurn: Post = function (message) {
  const line = lineOf(this)
  line.waiting.push(message)
  if (!line.busy) next(this, line)
}
const emitOnce: Emit = function (event, ...args) {
  if (event !== 'message') return emit.call(this, event, ...args)
  const line = lineOf(this)
  const isNews = line.given || emit.call(this, event, ...args)
  next(this, line)
  return isNews
}
Object.assign(Worker.prototype, { postMessage: postInTurn, emit: emitOnce })
