/**
 * The thread that holds the database: it takes one call after another and answers each in turn. A commit stalls this
 * thread and nobody else. What it cannot classify as surely undone is answered as a failure that ends the process.
 */
import { parentPort, workerData } from 'node:worker_threads'
import Database from 'better-sqlite3'
import { CodedError } from '../../../protocol/errors.ts'
import type { Batch, CallFailure, JournalAnswer, JournalCall, WorkerOrder } from './journal-calls.ts'
import { JournalStore } from './journal-store.ts'
import { openDatabase } from './open-database.ts'
import { Slack } from './slack.ts'

if (parentPort === null) throw new Error('invariant: this module runs as a worker')
const port = parentPort
const { path, limits } = workerData as WorkerOrder
const slack = new Slack(`${path}-slack`, limits.slackPages)

/** Opened by the first message, so that a refusal is an answer like any other. */
let store: JournalStore | undefined

port.on('message', (call: JournalCall) => {
  port.postMessage(answerTo(call))
  if (call.call === 'close') port.close()
})

function answerTo(call: JournalCall): JournalAnswer {
  try {
    return { ok: true, value: take(call) }
  } catch (error) {
    return { ok: false, failure: failureOf(error) }
  }
}

function take(call: JournalCall): unknown {
  if (call.call === 'close') return store?.close()
  store ??= new JournalStore(openDatabase(path), limits)
  switch (call.call) {
    case 'append': {
      append(store, call.batch)
      return
    }
    case 'recent':
      return store.recent(call.limit)
    case 'read':
      store.hasSlack = slack.fill()
      return store.read()
    case 'sealed':
      return store.sealed(call.seq)
    case 'prepareSeal':
      return store.prepareSeal(call.order)
    case 'saveClock': {
      store.saveClock(call.stamp)
      return
    }
    default:
      return withSlack(store, call)
  }
}

type ControlCall = Extract<
  JournalCall,
  { call: 'storeSeal' | 'acknowledge' | 'fence' | 'attach' | 'saveIdentity' | 'savePolicy' }
>

/** On a full disk the log may still be folded into the database, and then be written over. */
function withRoom<T>(open: JournalStore, work: () => T): T {
  try {
    return work()
  } catch (error) {
    if (!isFull(error) || !open.foldLog()) throw error
    return work()
  }
}

/** Entries are refused while the space that is set aside is not there; somebody may have made room for it since. */
function append(open: JournalStore, batch: Batch): void {
  try {
    withRoom(open, () => open.append(batch))
  } catch (error) {
    if (open.hasSlack || !slack.fill()) throw error
    open.hasSlack = true
    open.append(batch)
  }
}

/** What must not fail for want of space: it is given the space that was set aside for it. */
function withSlack(open: JournalStore, call: ControlCall): unknown {
  try {
    return withRoom(open, () => control(open, call))
  } catch (error) {
    if (!isFull(error) || !slack.release()) throw error
    open.hasSlack = false
    open.foldLog()
    return control(open, call)
  }
}

function control(open: JournalStore, call: ControlCall): unknown {
  switch (call.call) {
    case 'storeSeal':
      return open.storeSeal(call.document, call.now)
    case 'acknowledge':
      open.acknowledge(call.seq, call.grant, call.confirmation, call.now)
      open.hasSlack = slack.fill()
      return undefined
    case 'fence': {
      open.fence()
      return
    }
    case 'attach': {
      open.attach(call.incarnation, call.now)
      return
    }
    case 'saveIdentity': {
      open.saveIdentity(call.identity)
      return
    }
    case 'savePolicy': {
      open.savePolicy(call.policy, call.trustedKeys)
      return
    }
  }
}

/**
 * Out of space or not writable: SQLite meets these before the commit record is complete and before anything is flushed,
 * so the transaction is rolled back and cannot come back with a recovery.
 */
function isSurelyUndone(error: unknown): boolean {
  return isFull(error) || (error instanceof Database.SqliteError && error.code.startsWith('SQLITE_READONLY'))
}

function isFull(error: unknown): boolean {
  return error instanceof Database.SqliteError && error.code === 'SQLITE_FULL'
}

function failureOf(error: unknown): CallFailure {
  if (error instanceof CodedError) return { code: error.code, message: error.message, facts: error.facts }
  const message = error instanceof Error ? error.message : String(error)
  if (!(error instanceof Database.SqliteError)) return { code: null, message, facts: {} }
  const facts = { path, sqlite: error.code }
  if (isSurelyUndone(error)) return { code: 'NOT_RECORDED', message: `${path}: ${message}`, facts }
  if (error.code.startsWith('SQLITE_IOERR')) return { code: 'DISK_FAILED', message: `${path}: ${message}`, facts }
  if (error.code.startsWith('SQLITE_CORRUPT') || error.code === 'SQLITE_NOTADB') {
    return { code: 'DATABASE_CORRUPT', message: `${path}: ${message}`, facts }
  }
  return { code: null, message: `${message} (${error.code})`, facts }
}
