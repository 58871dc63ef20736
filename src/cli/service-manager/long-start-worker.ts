/** Reports the progress of a start while the thread of the agent is busy: see long-start.ts. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { type ServerResponse, createServer } from 'node:http'
import { parentPort, workerData } from 'node:worker_threads'
import { claimPath } from '../../agent/platform/socket/claim-path.ts'
import { refused, send } from '../../agent/platform/socket/reply.ts'
import { sizeInWords } from '../../core/accounts/in-words.ts'
import { CodedError } from '../../protocol/errors.ts'
import { type LongStartData, REPORTING, WAITING } from './long-start.ts'
import { duplicate, sendDatagram } from './unix-calls.ts'

const { ledgerBytes, socketPath, mode, connectionsMax, notifyPath, passedSocket, patienceMs, state } =
  workerData as LongStartData

const REPORT_EVERY_MS = 5_000

/** Longer than a slow disk needs to read or write something. */
const EXTENSION_US = 60_000_000

/** Within this time, a client that has connected sends its request. */
const LAST_REQUESTS_MS = 100

/** What the main thread has read and written: it checks the ledger. The counters of the process include this thread. */
function counters(): string {
  return readFileSync(`/proc/self/task/${process.pid}/io`, 'utf8')
}

function bytesRead(): number {
  return Number(/^rchar: (\d+)$/m.exec(counters())?.[1] ?? 0)
}

const before = bytesRead()

function sentence(): string {
  // No percentage: the check reads some pages twice, and a damaged ledger is read again to salvage it.
  return `The agent starts: it is checking its ledger of ${sizeInWords(ledgerBytes)}, ${sizeInWords(bytesRead() - before)} read.`
}

function refuse(_request: unknown, response: ServerResponse): void {
  const { headers, ...reply } = refused(new CodedError('AGENT_STARTING', sentence()))
  send(response, { ...reply, headers: ['Connection', 'close', ...headers] })
}

// Node would refuse a missing Host, and an unknown Expect, without a body.
const server = createServer({ requireHostHeader: false }, refuse).on('checkExpectation', refuse)
server.maxConnections = connectionsMax

let removePath = (): void => undefined

async function serve(): Promise<void> {
  if (passedSocket === null) removePath = await claimPath(server, socketPath, mode)
  // The end of the server closes its descriptor; the one of the service manager is for the agent.
  else await once(server.listen({ fd: duplicate(passedSocket.fd) }), 'listening')
}

let last = counters()

/** A check that reads and writes nothing may hang, so it gets no more time. Inside of a long call, only some counters change. */
function report(): void {
  const now = counters()
  const more = now === last ? [] : [`EXTEND_TIMEOUT_USEC=${EXTENSION_US}`]
  last = now
  if (notifyPath !== null) sendDatagram(notifyPath, [...more, `STATUS=${sentence()}`].join('\n'))
}

let timer = setTimeout(() => {
  if (Atomics.compareExchange(state, 0, WAITING, REPORTING) !== WAITING) return
  // The agent reports why its socket cannot be used.
  serve().catch(() => undefined)
  report()
  timer = setInterval(report, REPORT_EVERY_MS)
}, patienceMs)

parentPort?.once('message', () => {
  clearInterval(timer)
  server.close()
  removePath()
  if (notifyPath !== null) sendDatagram(notifyPath, 'STATUS=The agent starts.')
  setTimeout(() => process.exit(), LAST_REQUESTS_MS)
})
