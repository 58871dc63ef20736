/** The trace of a run and its hash: equal hashes mean equal runs. */
import { createHash } from 'node:crypto'

/** Characters to buffer: hashing few long texts is faster than many short ones. */
const WAITING_MAX = 10_000

export class Trace {
  readonly #hash = createHash('sha256')
  readonly #keep: boolean
  readonly #begin: number
  readonly #now: () => number
  readonly lines: string[] = []
  #count = 0
  #waiting = ''

  /** @param keep false: keep only hash and line count */
  constructor(now: () => number, keep: boolean) {
    this.#now = now
    this.#begin = now()
    this.#keep = keep
  }

  get count(): number {
    return this.#count
  }

  /** @param who a device, the cloud, the plan. @param what constant words, then values */
  note(who: string, what: string): void {
    const line = `${((this.#now() - this.#begin) / 1000).toFixed(3).padStart(12)} ${who.padEnd(9)} ${what}`
    this.#count += 1
    this.#waiting += `${line}\n`
    if (this.#waiting.length > WAITING_MAX) this.#take()
    if (this.#keep) this.lines.push(line)
  }

  digest(): string {
    this.#take()
    return this.#hash.copy().digest('hex')
  }

  #take(): void {
    this.#hash.update(this.#waiting)
    this.#waiting = ''
  }
}
