import { parentPort, workerData } from 'node:worker_threads'
import { CodedError } from '../protocol/errors.ts'
import type { BackupAnswer, BackupTask } from './in-backup-worker.ts'

async function answerTo(task: BackupTask): Promise<BackupAnswer> {
  try {
    if ('ledger' in task) {
      const { copyLedger } = await import('../agent/platform/sqlite/backup.ts')
      return { result: await copyLedger(task.ledger) }
    }
    const { copyStore } = await import('../cloud/storage/sqlite/backup.ts')
    copyStore(task.store)
    return { result: null }
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    const { code, message, details } = error
    return { failure: { code, message, details: { ...details }, cause: error } }
  }
}

parentPort?.postMessage(await answerTo(workerData as BackupTask))
