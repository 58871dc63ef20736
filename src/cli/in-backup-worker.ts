/**
 * SQLite copies and checks a database without a break. In another thread, it leaves the main thread to signals: they end the
 * process at once, and its temporary files are removed.
 */
import { Worker } from 'node:worker_threads'
import type { LedgerCopy } from '../agent/platform/sqlite/backup.ts'
import type { StoreCopy } from '../cloud/storage/sqlite/backup.ts'
import { entryPointBeside } from '../platform/entry-point-beside.ts'
import { libcCall } from '../platform/libc-call.ts'
import { orNull } from '../platform/or-null.ts'
import { CodedError, type ErrorCode } from '../protocol/errors.ts'

export type BackupTask = { readonly ledger: LedgerCopy } | { readonly store: StoreCopy }

export type BackupAnswer =
  | { readonly result: unknown }
  | {
      readonly failure: {
        readonly code: ErrorCode
        readonly message: string
        readonly details: Record<string, unknown>
        readonly cause: unknown
      }
    }

const WORKER = entryPointBeside(import.meta.url, 'backup-worker')

/** @throws CodedError of the work */
export async function inBackupWorker<T>(task: BackupTask): Promise<T> {
  // Loaded beforehand: meanwhile, the thread could make a file again that the exit has removed.
  const exit = orNull(() => libcCall('void _exit(int code)'))
  // Node would wait until the thread has ended its call of SQLite.
  const endAtOnce = (code: number): void => void exit?.(code)
  const worker = new Worker(WORKER, { workerData: task })
  process.on('exit', endAtOnce)
  try {
    const answer = await new Promise<BackupAnswer>((resolve, reject) => {
      worker.once('message', resolve)
      worker.once('error', reject)
    })
    if ('result' in answer) return answer.result as T
    const { code, message, ...options } = answer.failure
    throw new CodedError(code, message, options)
  } finally {
    process.off('exit', endAtOnce)
  }
}
