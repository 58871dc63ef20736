/** Failures of a transaction that serves several requests. */
import { CodedError } from '../../protocol/errors.ts'

/** Whether the transaction was rolled back because a lock was not free in time. */
export function waitedForLocks(error: unknown): boolean {
  return error instanceof CodedError && error.code === 'OVERLOADED' && 'sqlState' in error.details
}

/**
 * False for failures that every request would meet, and if the transaction's outcome is unknown. After other failures
 * it had no effect, so a retry is safe.
 */
export function mayBeOfOneRequest(error: unknown): boolean {
  return !(error instanceof CodedError) || error.code === 'BAD_REQUEST'
}
