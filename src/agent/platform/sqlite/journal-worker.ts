/** The database thread: commits block only this thread. */
import { parentPort, workerData } from 'node:worker_threads'
import { releaseIdleMemory } from '../system/idle-memory.ts'
import { Housekeeping } from './housekeeping.ts'
import type { JournalCall, WorkerOptions } from './journal-calls.ts'
import { JournalHandler } from './journal-handler.ts'
import { openOrSalvage } from './salvage-journal.ts'
import { DiskReserve } from './disk-reserve.ts'
import { PAGE_BYTES } from './open-database.ts'

if (parentPort === null) throw new Error('invariant: this module runs as a worker')
const port = parentPort
const options = workerData as WorkerOptions
const { path, limits, later } = options
const diskReservePath = `${path}-disk-reserve`
const handler = new JournalHandler({
  path,
  open: () => openOrSalvage({ ...options, later: [...later, diskReservePath] }, Date.now),
  diskReserve: new DiskReserve(diskReservePath, limits.diskReservePages * PAGE_BYTES),
})
const timers = {
  after: (ms: number, call: () => void) => {
    const timer = setTimeout(call, ms).unref()
    return () => clearTimeout(timer)
  },
}
const housekeeping = new Housekeeping({
  step: () => handler.tidy(),
  now: () => performance.now(),
  timers,
})
releaseIdleMemory(timers)

port.on('message', (call: JournalCall) => {
  port.postMessage(handler.answerTo(call))
  // Frees its memory. The collector would do so late, because it hardly sees buffers.
  if (call.method === 'append') call.args[0].texts.bytes.buffer.transfer(0)
  if (call.method === 'close') {
    housekeeping.stop()
    port.close()
    return
  }
  handler.answered()
  housekeeping.answered()
})
