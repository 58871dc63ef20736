/** A row earlier in the lock sequence is in use. Waiting could deadlock: the transaction restarts. */
export class WouldWait extends Error {
  constructor(cause: unknown) {
    super('a row out of order is in use', { cause })
  }
}

/** SQLSTATE of NOWAIT when it would have to wait. */
const LOCK_NOT_AVAILABLE = '55P03'

export function isLockNotAvailable(error: unknown): boolean {
  return error instanceof Error && (error as { readonly code?: unknown }).code === LOCK_NOT_AVAILABLE
}
