import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import { CodedError, messageOf } from '../protocol/errors.ts'
import type { DatabaseAnswer, DatabaseTask } from './in-database-process.ts'

async function resultOf(task: DatabaseTask): Promise<unknown> {
  if ('ledger' in task) {
    const { copyLedger } = await import('../agent/platform/sqlite/backup.ts')
    return copyLedger(task.ledger)
  }
  if ('search' in task) {
    const { findInCopy } = await import('../agent/platform/sqlite/read-ledger.ts')
    return findInCopy(task.search)
  }
  if ('replacement' in task) {
    const { replaceLedger } = await import('../agent/platform/sqlite/restore-ledger.ts')
    return replaceLedger(task.replacement)
  }
  if ('check' in task) {
    const { openDatabase } = await import('../cloud/storage/sqlite/database.ts')
    openDatabase(task.check, { check: true }).close()
    return null
  }
  const { copyStore } = await import('../cloud/storage/sqlite/backup.ts')
  copyStore(task.store)
  return null
}

async function answerTo(task: DatabaseTask): Promise<DatabaseAnswer> {
  try {
    return { result: await resultOf(task) }
  } catch (error) {
    const { code, stack } = error as { readonly code?: unknown; readonly stack?: string }
    const details = error instanceof CodedError ? { ...error.details } : null
    return { failure: { message: messageOf(error), code, details, stack } }
  }
}

/** In another thread, because SQLite blocks this one: ends the process once the command is gone, and could not use the result. */
const WATCH = `
const parent = require('node:worker_threads').workerData
setInterval(() => process.ppid === parent || process.kill(process.pid, 'SIGKILL'), 100)
`
new Worker(WATCH, { eval: true, workerData: Number(process.argv[2]) }).unref()

const [task] = (await once(process, 'message')) as [DatabaseTask]
const answer = await answerTo(task)
process.send?.(answer, () => process.disconnect?.())
