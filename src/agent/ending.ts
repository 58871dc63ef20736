/**
 * How the agent ends: once, in order, whoever asked for it first. A stop drains; a failure that leaves the state in doubt
 * lets go of everyone at once, because what the process believes is worth nothing any more. Either way everything is
 * released before anybody hears of the end.
 */
import { CodedError } from '../protocol/errors.ts'

export interface EndingSteps {
  /** Finish and record what is under way. */
  readonly drain: () => Promise<void>
  /** Let go of whoever waits. */
  readonly abandon: () => Promise<void>
  /** Close everything. */
  readonly release: () => Promise<void>
}

export interface EndingLog {
  error(fields: Record<string, unknown>, message: string): void
}

export class Ending {
  /** Resolves after a stop; rejects with a CodedError when the agent had to end by itself. */
  readonly ended: Promise<void>
  readonly #log: EndingLog
  #resolve: () => void = () => undefined
  #reject: (error: CodedError) => void = () => undefined
  #steps: EndingSteps | null = null
  #failure: { readonly error: unknown } | null = null
  #running: Promise<void> | null = null

  constructor(log: EndingLog) {
    this.#log = log
    this.ended = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
    // Whoever holds the agent hears of its end; there may be nobody yet.
    this.ended.catch(() => undefined)
  }

  /** Everything runs. What has failed before that ends it at once. */
  begin(steps: EndingSteps): void {
    this.#steps = steps
    if (this.#failure !== null) void this.#run(steps)
  }

  fail(error: unknown): void {
    if (this.#failure !== null) return
    this.#failure = { error }
    this.#log.error({ err: error }, 'the agent must end')
    if (this.#steps !== null) void this.#run(this.#steps)
  }

  async stop(): Promise<void> {
    if (this.#steps === null) throw new Error('invariant: what is stopped has begun')
    await this.#run(this.#steps)
  }

  #run(steps: EndingSteps): Promise<void> {
    this.#running ??= this.#finish(steps)
    return this.#running
  }

  async #finish(steps: EndingSteps): Promise<void> {
    await this.#attempt(this.#failure === null ? steps.drain : steps.abandon)
    await this.#attempt(steps.release)
    if (this.#failure === null) this.#resolve()
    else this.#reject(asCoded(this.#failure.error))
  }

  async #attempt(step: () => Promise<void>): Promise<void> {
    try {
      await step()
    } catch (error) {
      this.#log.error({ err: error }, 'the stop met a fault')
    }
  }
}

function asCoded(error: unknown): CodedError {
  if (error instanceof CodedError) return error
  if (error instanceof Error && error.cause instanceof CodedError) return error.cause
  return new CodedError('INTERNAL', error instanceof Error ? error.message : String(error), { cause: error })
}
