/**
 * A database server that starts with the twin, or after it, is waited for, so that nobody has to order their starts. Only a server that
 * does not answer is: one that refuses, or that the twin cannot rest on, is told at once. The wait is bounded, and ends at once
 * when the twin is asked to stop.
 */
import pRetry from 'p-retry'
import { CodedError } from '../../../protocol/errors.ts'

export interface AwaitDatabase {
  /** From the first attempt on, ms; 0: one attempt. An attempt under way is not cut off. */
  readonly waitMs: number
  readonly signal: AbortSignal
  readonly log: {
    info(fields: Record<string, unknown>, message: string): void
    warn(fields: Record<string, unknown>, message: string): void
  }
}

const FIRST_PAUSE_MS = 250
const PAUSE_MS_MAX = 5_000

/**
 * @param open one attempt
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
        if (attemptNumber === 1)
          log.warn({ code, reason, waitMs }, 'the database does not answer: the twin waits for it')
        return true
      },
    })
    if (attempts > 1) log.info({ attempts }, 'the database answers')
    return opened
  } catch (error) {
    if (!signal.aborted) throw error
    throw new CodedError('STOPPING', 'The twin was asked to stop while it waited for its database.')
  }
}
