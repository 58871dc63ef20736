/** The database thread: commits block only this thread. */
import { parentPort, workerData } from 'node:worker_threads'
import { Housekeeping } from './housekeeping.ts'
import type { JournalCall, WorkerOrder } from './journal-calls.ts'
import { JournalDesk } from './journal-desk.ts'
import { openOrRescue } from './rescue.ts'
import { Slack } from './slack.ts'

if (parentPort === null) throw new Error('invariant: this module runs as a worker')
const port = parentPort
const { path, limits, later, left } = workerData as WorkerOrder
const slackPath = `${path}-slack`
const desk = new JournalDesk({
  path,
  open: () => openOrRescue(path, limits, [...later, slackPath], Date.now, left),
  slack: new Slack(slackPath, limits.slackPages),
})
const housekeeping = new Housekeeping({
  step: () => desk.tidy(),
  now: () => performance.now(),
  timers: {
    after: (ms, call) => {
      const timer = setTimeout(call, ms).unref()
      return () => clearTimeout(timer)
    },
  },
})

port.on('message', (call: JournalCall) => {
  port.postMessage(desk.answerTo(call))
  if (call.call === 'close') {
    housekeeping.stop()
    port.close()
    return
  }
  desk.answered()
  housekeeping.answered()
})
