/**
 * A defect, loaded before the program: the journal's thread is said to have committed entries as soon as they are handed to
 * it, so that the agent answers before the commit.
 */
import { Worker } from 'node:worker_threads'

type Post = (this: Worker, message: { readonly call?: string }, ...rest: readonly never[]) => void
type Emit = (this: Worker, event: string | symbol, ...args: unknown[]) => boolean

/** What each thread has still to answer: whether it is an answer that was given already. */
const open = new WeakMap<Worker, boolean[]>()

// Both are called with the thread that they belong to.
// eslint-disable-next-line @typescript-eslint/unbound-method
const post = Worker.prototype.postMessage as Post
// eslint-disable-next-line @typescript-eslint/unbound-method
const emit = Worker.prototype.emit as Emit

const postEarly: Post = function (message, ...rest) {
  const answers = open.get(this) ?? []
  open.set(this, answers)
  // Answers are matched by their order: only the next one can be given early.
  const early = message.call === 'append' && answers.every((given) => given)
  answers.push(early)
  post.call(this, message, ...rest)
  if (early) setImmediate(() => emit.call(this, 'message', { ok: true }))
}
const emitOnce: Emit = function (event, ...args) {
  if (event !== 'message' || open.get(this)?.shift() !== true) return emit.call(this, event, ...args)
  return true
}
Object.assign(Worker.prototype, { postMessage: postEarly, emit: emitOnce })
