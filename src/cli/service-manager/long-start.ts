/**
 * The check of a large ledger blocks the thread of the agent for minutes. Meanwhile a worker reports the progress to the service
 * manager and to the callers at the socket, so that a person waits, and does not restart the agent. A stop ends the process at
 * once: the start has nothing to finish, and the next one begins the check again.
 */
import { Worker } from 'node:worker_threads'
import { entryPointBeside } from '../../platform/entry-point-beside.ts'
import type { LongStart } from '../../agent/compose.ts'
import { orNull } from '../../platform/or-null.ts'
import type { PassedSocket } from './service-manager.ts'
import { endBySignals } from './unix-calls.ts'

export interface LongStartData extends LongStart {
  /** Of the service manager. Null: there is none. */
  readonly notifyPath: string | null
  readonly passedSocket: PassedSocket | null
  /** How long callers wait before they get a response, ms. */
  readonly patienceMs: number
  /** Shared: {@link WAITING}, then {@link REPORTING} or {@link ENDED}. */
  readonly state: Int32Array
}

export const WAITING = 0
export const REPORTING = 1
const ENDED = 2

/** Less than the commands for people wait for the agent. */
const PATIENCE_MS = 3_000

const WORKER = entryPointBeside(import.meta.url, 'long-start-worker')

/** Reports until the result is called, which leaves the socket to the agent. */
export function reportLongStart(
  start: LongStart,
  { notifyPath, passedSocket }: Pick<LongStartData, 'notifyPath' | 'passedSocket'>,
  patienceMs = PATIENCE_MS,
): () => Promise<void> {
  const state = new Int32Array(new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT))
  const workerData: LongStartData = { ...start, notifyPath, passedSocket, patienceMs, state }
  // The agent also starts without reports: the system may permit no further thread.
  const worker = orNull(() => new Worker(WORKER, { workerData }))
  // It also starts without the library for system calls: a stop then waits for the check.
  const giveSignalsBack = orNull(endBySignals) ?? (() => undefined)
  if (worker === null) {
    return () => {
      giveSignalsBack()
      return Promise.resolve()
    }
  }
  const exited = new Promise<void>((resolve) => {
    worker.once('exit', () => resolve())
  })
  worker.on('error', () => undefined)
  return async () => {
    giveSignalsBack()
    if (Atomics.compareExchange(state, 0, WAITING, ENDED) === WAITING) {
      await worker.terminate()
      return
    }
    worker.postMessage('end')
    await exited
  }
}
