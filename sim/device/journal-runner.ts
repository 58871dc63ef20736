/**
 * Runs the calls of the journal in virtual time, with the real handler and store. At every call the process may
 * die before or after the commit, the flush may fail, and the disk may be full.
 */
import { CodedError } from '../../src/protocol/errors.ts'
import type {
  JournalAnswer,
  JournalCall,
  OnAnswer,
  StartRunner,
} from '../../src/agent/platform/sqlite/journal-calls.ts'
import type { Scheduler } from '../world/scheduler.ts'
import { type Disk, handlerOn } from './disk.ts'

export type Mishap = 'DIES_BEFORE' | 'DIES_AFTER' | 'FLUSH_FAILS_BEFORE' | 'FLUSH_FAILS_AFTER'

export interface RunnerDeps {
  readonly scheduler: Scheduler
  readonly disk: Disk
  readonly latency: () => number
  readonly mishap: (call: JournalCall) => Mishap | null
  readonly alive: () => boolean
  readonly die: () => void
  /** Called after a call took effect and before its answer. */
  readonly onTaken: (call: JournalCall, answer: JournalAnswer) => void
}

export function journalRunner(deps: RunnerDeps): StartRunner {
  const { scheduler, disk } = deps
  return ({ path, limits }) => {
    const handler = handlerOn(disk, path, limits)
    let freeAt = 0
    let ended = false
    const take = (call: JournalCall, onAnswer: OnAnswer): void => {
      if (ended || !deps.alive()) return
      const mishap = deps.mishap(call)
      if (mishap === 'DIES_BEFORE') {
        deps.die()
        return
      }
      if (mishap === 'FLUSH_FAILS_BEFORE') {
        onAnswer(flushFailed(path))
        return
      }
      // The database outlives the process: only the connection is closed.
      const answer = call.method === 'close' ? ({ ok: true, value: undefined } as const) : handler.answerTo(call)
      handler.answered()
      deps.onTaken(call, answer)
      if (mishap === 'DIES_AFTER') {
        deps.die()
        return
      }
      onAnswer(mishap === 'FLUSH_FAILS_AFTER' ? flushFailed(path) : answer)
      if (call.method === 'close') ended = true
    }
    return {
      post: (call, onAnswer) => {
        freeAt = Math.max(freeAt, scheduler.now) + deps.latency()
        scheduler.at(freeAt, () => take(call, onAnswer))
      },
    }
  }
}

export function flushFailed(path: string): JournalAnswer {
  return { ok: false, error: new CodedError('DISK_FAILED', `${path}: disk I/O error`) }
}
