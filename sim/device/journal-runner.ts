/**
 * Runs the calls of the journal in virtual time, with the real handler and store. At every call the process may
 * die before or after the commit, the flush may fail, and the disk may be full.
 */
import { CodedError } from '../../src/protocol/errors.ts'
import type { JournalCall } from '../../src/agent/platform/sqlite/journal-handler.ts'
import type { StartRunner } from '../../src/agent/platform/sqlite/journal-runner.ts'
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
  /** Called after a call was run and before its answer. */
  readonly onTaken: (call: JournalCall, error: Error | null) => void
}

export function journalRunner(deps: RunnerDeps): StartRunner {
  const { scheduler, disk } = deps
  return ({ path, limits }) => {
    const handler = handlerOn(disk, path, limits)
    let freeAt = 0
    let ended = false
    const take = (call: JournalCall): void => {
      if (ended || !deps.alive()) return
      const mishap = deps.mishap(call)
      if (mishap === 'DIES_BEFORE') {
        deps.die()
        return
      }
      if (mishap === 'FLUSH_FAILS_BEFORE') {
        call.done(flushFailed(path))
        return
      }
      const error = disk.run(handler, call)
      deps.onTaken(call, error)
      if (mishap === 'DIES_AFTER') {
        deps.die()
        return
      }
      call.done(mishap === 'FLUSH_FAILS_AFTER' ? flushFailed(path) : error)
      if (call.traits.isLast === true) ended = true
    }
    return {
      post: (call) => {
        freeAt = Math.max(freeAt, scheduler.now) + deps.latency()
        scheduler.at(freeAt, () => take(call))
      },
    }
  }
}

export function flushFailed(path: string): CodedError {
  return new CodedError('DISK_FAILED', `${path}: disk I/O error`)
}
