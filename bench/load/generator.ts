import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import type { LoadOptions, LoadReport } from './closed-loop.ts'

type Reply = { readonly report: LoadReport } | { readonly failure: string }

export class LoadGenerator {
  readonly #child: ChildProcess

  constructor() {
    this.#child = fork(new URL('./process.ts', import.meta.url))
  }

  /** Rejects if the load fails. */
  async run(options: LoadOptions): Promise<LoadReport> {
    const gone = new AbortController()
    const exit = once(this.#child, 'exit', { signal: gone.signal }).then(() => {
      throw new Error('the load generator has ended')
    })
    exit.catch(() => undefined)
    try {
      const answer = once(this.#child, 'message', { signal: gone.signal })
      this.#child.send(options)
      const [reply] = (await Promise.race([answer, exit])) as [Reply]
      if ('failure' in reply) throw new Error(reply.failure)
      return reply.report
    } finally {
      gone.abort()
    }
  }

  stop(): void {
    this.#child.disconnect()
  }
}
