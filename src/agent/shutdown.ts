/** Ends the agent once. After a failure, the in-memory state can no longer be trusted: clients are cut off at once. */
import { CodedError, messageOf } from '../protocol/errors.ts'

export interface ShutdownSteps {
  readonly drain: () => Promise<void>
  readonly abandon: () => Promise<void>
  readonly release: () => Promise<void>
}

export interface ShutdownLog {
  error(fields: Record<string, unknown>, message: string): void
}

export class Shutdown {
  /** Resolves after a stop; rejects with a CodedError if the agent had to end by itself. */
  readonly ended: Promise<void>
  readonly #log: ShutdownLog
  readonly #end = Promise.withResolvers<undefined>()
  #steps: ShutdownSteps | null = null
  #failure: { readonly error: unknown } | null = null
  #running: Promise<void> | null = null

  constructor(log: ShutdownLog) {
    this.#log = log
    this.ended = this.#end.promise
    // Avoids an unhandled rejection while no caller is attached yet.
    this.ended.catch(() => undefined)
  }

  /** Everything runs. An earlier failure ends the agent now. */
  begin(steps: ShutdownSteps): void {
    this.#steps = steps
    if (this.#failure !== null) void this.#run(steps)
  }

  fail(error: unknown): void {
    if (this.#failure !== null) return
    this.#failure = { error }
    this.#log.error({ err: error }, 'the agent must stop after a failure')
    if (this.#steps !== null) void this.#run(this.#steps)
  }

  async stop(): Promise<void> {
    if (this.#steps === null) throw new Error('invariant: the agent has begun before it stops')
    await this.#run(this.#steps)
  }

  #run(steps: ShutdownSteps): Promise<void> {
    return (this.#running ??= this.#finish(steps))
  }

  async #finish(steps: ShutdownSteps): Promise<void> {
    await this.#attempt(this.#failure === null ? steps.drain : steps.abandon)
    await this.#attempt(steps.release)
    if (this.#failure === null) this.#end.resolve(undefined)
    else this.#end.reject(asCoded(this.#failure.error))
  }

  async #attempt(step: () => Promise<void>): Promise<void> {
    try {
      await step()
    } catch (error) {
      this.#log.error({ err: error }, 'an error occurred during the stop')
    }
  }
}

function asCoded(error: unknown): CodedError {
  if (error instanceof CodedError) return error
  if (error instanceof Error && error.cause instanceof CodedError) return error.cause
  return new CodedError('INTERNAL', messageOf(error), { cause: error })
}
