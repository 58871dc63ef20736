/**
 * The thread that holds the database. A commit stalls this thread and nobody else. Housekeeping has the moments in which
 * nobody asks for anything, in small steps between which a call goes first.
 */
import { parentPort, workerData } from 'node:worker_threads'
import type { JournalCall, WorkerOrder } from './journal-calls.ts'
import { JournalDesk } from './journal-desk.ts'
import { openOrRescue } from './rescue.ts'
import { Slack } from './slack.ts'

if (parentPort === null) throw new Error('invariant: this module runs as a worker')
const port = parentPort
const { path, limits } = workerData as WorkerOrder
const desk = new JournalDesk({
  path,
  open: () => openOrRescue(path, limits, Date.now),
  slack: new Slack(`${path}-slack`, limits.slackPages),
})

/** So long without a call means that the next one is not just coming. */
const IDLE_MS = 100

/** Housekeeping is tried again after so long without a call, for what was in its way. */
const TIDY_AGAIN_MS = 60_000

let timer: NodeJS.Timeout | undefined

function tidyIn(ms: number): void {
  timer = setTimeout(() => tidyIn(desk.tidy() ? 0 : TIDY_AGAIN_MS), ms)
  timer.unref()
}

port.on('message', (call: JournalCall) => {
  clearTimeout(timer)
  port.postMessage(desk.answerTo(call))
  if (call.call === 'close') port.close()
  else tidyIn(IDLE_MS)
})
