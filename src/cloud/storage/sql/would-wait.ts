/**
 * A row that stands before others which the transaction has locked is in use. To wait for it could close a circle; the
 * transaction gives up what it has and starts over.
 */
export class WouldWait extends Error {
  constructor(cause: unknown) {
    super('a row out of order is in use', { cause })
  }
}

/** `lock_not_available`: what SQL says where NOWAIT would have had to wait. */
const LOCK_NOT_AVAILABLE = '55P03'

export function isLockNotAvailable(error: unknown): boolean {
  return error instanceof Error && (error as { readonly code?: unknown }).code === LOCK_NOT_AVAILABLE
}
