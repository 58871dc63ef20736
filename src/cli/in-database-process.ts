/**
 * SQLite copies, checks and reads a database without a break. In another process, it leaves this one to signals, which end
 * the work at once, and this process then removes its temporary files.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { readFileSync } from 'node:fs'
import type { LedgerCopy } from '../agent/platform/sqlite/backup.ts'
import type { LedgerSearch } from '../agent/platform/sqlite/read-ledger.ts'
import type { Replacement } from '../agent/platform/sqlite/restore-ledger.ts'
import type { StoreCopy } from '../cloud/storage/sqlite/backup.ts'
import { entryPointBeside } from '../platform/entry-point-beside.ts'
import { orNull } from '../platform/or-null.ts'
import { CodedError, type ErrorCode } from '../protocol/errors.ts'

export type DatabaseTask =
  | { readonly ledger: LedgerCopy }
  | { readonly store: StoreCopy }
  | { readonly search: LedgerSearch }
  | { readonly replacement: Replacement }
  /** Path of the database of a cloud. */
  | { readonly check: string }

export type DatabaseAnswer = { readonly result: unknown } | { readonly failure: DatabaseFailure }

interface DatabaseFailure {
  readonly message: string
  /** Of a {@link CodedError}, or of the system or SQLite. */
  readonly code: unknown
  /** Of a {@link CodedError}; otherwise null. */
  readonly details: Record<string, unknown> | null
  readonly stack: string | undefined
}

const PROGRAM = entryPointBeside(import.meta.url, 'database-process')

/** @throws CodedError of the work; INTERNAL if the process ends before its answer */
export async function inDatabaseProcess<T>(task: DatabaseTask): Promise<T> {
  const child = fork(PROGRAM, [String(process.pid)], {
    serialization: 'advanced',
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  })
  const end = (): void => killAtOnce(child)
  // Before temporary files are removed: otherwise the process could make one again.
  process.prependListener('exit', end)
  try {
    const answer = await new Promise<DatabaseAnswer>((resolve, reject) => {
      child.once('message', (message) => resolve(message as DatabaseAnswer))
      child.on('error', reject)
      child.once('exit', (code, signal) => reject(endedEarly(signal ?? `exit code ${code}`)))
      // A process that ends before it reads the task has its own event.
      child.once('spawn', () => child.send(task, () => undefined))
    })
    if ('result' in answer) return answer.result as T
    throw errorOf(answer.failure)
  } finally {
    process.off('exit', end)
  }
}

function endedEarly(by: string): CodedError {
  const message = `The process that works on the database ended early (${by}).`
  const remedy =
    'If memory ran out (`journalctl -k` shows processes that the system ended), free some. Then run the command again.'
  return new CodedError('INTERNAL', message, { details: { remedy } })
}

function errorOf({ message, code, details, stack }: DatabaseFailure): Error {
  if (details === null) return Object.assign(new Error(message), { code, stack })
  return new CodedError(code as ErrorCode, message, { details, cause: Object.assign(new Error(message), { stack }) })
}

/** Returns once the process cannot do anything any more. */
function killAtOnce(child: ChildProcess): void {
  if (!child.kill('SIGKILL')) return
  while (isAlive(child.pid)) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1)
}

/** One that ended stays a zombie until Node has noticed it. */
function isAlive(pid: number | undefined): boolean {
  const stat = orNull(() => readFileSync(`/proc/${pid}/stat`, 'utf8'))
  return stat !== null && !/\) [ZX] /.test(stat)
}
