/** Refuses requests whose body arrives too slowly, so that their slots become free. */
import type { FastifyRequest } from 'fastify'
import { CodedError } from '../../protocol/errors.ts'
import type { CallerKind } from './operation.ts'

/** In each of these intervals, so many bytes of a body must arrive. */
const PROGRESS_EVERY_MS = 10_000
const PROGRESS_BYTES_MIN = 1_024

/** Maximum time for the whole body of a client or administrator, ms. Segments of devices are longer, on slower lines. */
const BODY_TIMEOUT_MS_MAX = 30_000

const LOOK_EVERY_MS_MAX = 1_000

/**
 * Counts the time in which the server runs: while its machine or process is paused, it cannot read what arrives, and the
 * timer fires once after the pause.
 * @param timeoutMs maximum time for a whole request to arrive
 * @returns a function that ends the watch
 */
export function watchArrival({ raw }: Pick<FastifyRequest, 'raw'>, kind: CallerKind, timeoutMs: number): () => void {
  const wholeMs = kind === 'CLIENT' || kind === 'ADMINISTRATOR' ? Math.min(timeoutMs, BODY_TIMEOUT_MS_MAX) : timeoutMs
  const lookEveryMs = Math.min(wholeMs, LOOK_EVERY_MS_MAX)
  let ranMs = 0
  let progressAtMs = PROGRESS_EVERY_MS
  let received = raw.socket.bytesRead
  const fail = (message: string): void => {
    stop()
    // The reader of the body sends the error as the response.
    if (raw.listenerCount('error') > 0) raw.emit('error', new CodedError('REQUEST_TOO_SLOW', message))
  }
  const look = setInterval(() => {
    ranMs += lookEveryMs
    if (ranMs >= wholeMs) {
      fail(`The body did not arrive within ${wholeMs / 1_000} seconds.`)
      return
    }
    if (ranMs < progressAtMs) return
    const { bytesRead } = raw.socket
    if (bytesRead - received < PROGRESS_BYTES_MIN) {
      fail(`Less than ${PROGRESS_BYTES_MIN} bytes of the body arrived in ${PROGRESS_EVERY_MS / 1_000} seconds.`)
    }
    received = bytesRead
    progressAtMs += PROGRESS_EVERY_MS
  }, lookEveryMs)
  const stop = (): void => clearInterval(look)
  return stop
}
