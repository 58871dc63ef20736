/**
 * Sends rows to the commit worker, one message per event loop turn; the worker commits everything that arrived while it
 * was busy.
 */
import { Worker } from 'node:worker_threads'
import type { FloorOptions } from './options.ts'

export class GroupCommit {
  readonly #worker: Worker
  readonly #row: string
  #turn: (() => void)[] = []
  readonly #waiting: (() => void)[] = []

  constructor(options: FloorOptions) {
    this.#row = 'r'.repeat(options.rowBytes)
    this.#worker = new Worker(new URL('./commit-worker.ts', import.meta.url), { workerData: options })
    this.#worker.on('error', (error) => {
      throw error
    })
    this.#worker.on('message', (count: number) => {
      for (const done of this.#waiting.splice(0, count)) done()
    })
  }

  /** Calls back when one row is durable. */
  record(done: () => void): void {
    this.#turn.push(done)
    if (this.#turn.length === 1) setImmediate(this.#hand)
  }

  readonly #hand = (): void => {
    this.#worker.postMessage(this.#turn.map(() => this.#row))
    this.#waiting.push(...this.#turn)
    this.#turn = []
  }
}
