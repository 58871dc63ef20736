/**
 * Waits for a database server that starts with or after the cloud. Retries only while the server does not respond, for a
 * bounded time; refusals and unsuitable servers fail at once. A stop ends the wait.
 */
import pRetry from 'p-retry'
import { CodedError } from '../../../protocol/errors.ts'
import type { Log } from '../../../protocol/log.ts'

export interface AwaitDatabase {
  /** Time from the first attempt, ms; 0: one attempt. A pending attempt is not cancelled. */
  readonly waitMs: number
  readonly signal: AbortSignal
  readonly log: Pick<Log, 'info' | 'warn'>
}

const FIRST_PAUSE_MS = 250
const PAUSE_MS_MAX = 5_000

/**
 * @param open makes one attempt
 * @throws CodedError of the last attempt, or STOPPING
 */
export async function awaitDatabase<T>(open: () => Promise<T>, { waitMs, signal, log }: AwaitDatabase): Promise<T> {
  let attempts = 0
  const attempt = async (): Promise<T> => {
    attempts += 1
    return open()
  }
  try {
    const opened = await pRetry(attempt, {
      retries: Infinity,
      maxRetryTime: waitMs,
      minTimeout: FIRST_PAUSE_MS,
      maxTimeout: PAUSE_MS_MAX,
      randomize: true,
      signal,
      shouldRetry: ({ error, attemptNumber }) => {
        if (!(error instanceof CodedError) || error.code !== 'DATABASE_UNREACHABLE') return false
        const { code, message: reason } = error
        if (attemptNumber === 1) log.warn({ code, reason, waitMs }, 'the database does not respond; waiting for it')
        return true
      },
    })
    if (attempts > 1) log.warn({ attempts }, 'the database responds')
    return opened
  } catch (error) {
    if (!signal.aborted) throw error
    throw new CodedError('STOPPING', 'The cloud was stopped while it waited for its database.')
  }
}
