/** Ends a service once: when it is stopped, or after a failure. */
import { CodedError, messageOf } from '../protocol/errors.ts'
import type { Log } from '../protocol/log.ts'

/** Releases everything. After a failure, the state in memory can no longer be trusted: clients must be cut off at once. */
export type End = (hasFailed: boolean) => Promise<void>

export class Shutdown {
  /** Resolves after a stop; rejects with a CodedError if the service had to end by itself. */
  readonly ended: Promise<void>
  readonly #log: Pick<Log, 'error'>
  readonly #settle = Promise.withResolvers<undefined>()
  #end: End | null = null
  #failure: { readonly error: unknown } | null = null
  #running: Promise<void> | null = null

  constructor(log: Pick<Log, 'error'>) {
    this.#log = log
    this.ended = this.#settle.promise
    // Avoids an unhandled rejection while no caller is attached yet.
    this.ended.catch(() => undefined)
  }

  /** Everything runs. An earlier failure ends the service now. */
  begin(end: End): void {
    this.#end = end
    if (this.#failure !== null) void this.stop()
  }

  fail(error: unknown): void {
    if (this.#failure !== null) return
    this.#failure = { error }
    this.#log.error({ err: error }, 'the service must stop after a failure')
    if (this.#end !== null) void this.stop()
  }

  /** Resolves when everything is released. Idempotent. */
  stop(): Promise<void> {
    return (this.#running ??= this.#finish())
  }

  async #finish(): Promise<void> {
    if (this.#end === null) throw new Error('invariant: the service has begun before it stops')
    try {
      await this.#end(this.#failure !== null)
    } catch (error) {
      this.#log.error({ err: error }, 'an error occurred during the stop')
    }
    if (this.#failure === null) this.#settle.resolve(undefined)
    else this.#settle.reject(asCoded(this.#failure.error))
  }
}

function asCoded(error: unknown): CodedError {
  if (error instanceof CodedError) return error
  if (error instanceof Error && error.cause instanceof CodedError) return error.cause
  return new CodedError('INTERNAL', messageOf(error), { cause: error })
}
