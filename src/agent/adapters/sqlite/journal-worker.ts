/** The thread that holds the database. A commit stalls this thread and nobody else. */
import { parentPort, workerData } from 'node:worker_threads'
import type { JournalCall, WorkerOrder } from './journal-calls.ts'
import { JournalDesk } from './journal-desk.ts'
import { JournalStore } from './journal-store.ts'
import { openDatabase } from './open-database.ts'
import { Slack } from './slack.ts'

if (parentPort === null) throw new Error('invariant: this module runs as a worker')
const port = parentPort
const { path, limits } = workerData as WorkerOrder
const desk = new JournalDesk({
  path,
  open: () => new JournalStore(openDatabase(path), limits),
  slack: new Slack(`${path}-slack`, limits.slackPages),
})

port.on('message', (call: JournalCall) => {
  port.postMessage(desk.answerTo(call))
  if (call.call === 'close') port.close()
})
