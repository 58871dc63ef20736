/** What happened, line by line, and a hash over all of it: two runs with the same hash have done the same. */
import { createHash } from 'node:crypto'

/** Characters that may wait for the hash: it takes few long texts sooner than many short ones. */
const WAITING_MAX = 10_000

export class Trace {
  readonly #hash = createHash('sha256')
  readonly #keep: boolean
  readonly #begin: number
  readonly #now: () => number
  readonly lines: string[] = []
  #count = 0
  /** Lines that are not in the hash yet. */
  #waiting = ''

  /** @param keep false: only the hash and the number of lines are kept */
  constructor(now: () => number, keep: boolean) {
    this.#now = now
    this.#begin = now()
    this.#keep = keep
  }

  get count(): number {
    return this.#count
  }

  /** @param who a device, the twin, the plan. @param what constant words, then the figures */
  note(who: string, what: string): void {
    const line = `${((this.#now() - this.#begin) / 1000).toFixed(3).padStart(12)} ${who.padEnd(9)} ${what}`
    this.#count += 1
    this.#waiting += `${line}\n`
    if (this.#waiting.length > WAITING_MAX) this.#take()
    if (this.#keep) this.lines.push(line)
  }

  /** Of all lines so far. */
  digest(): string {
    this.#take()
    return this.#hash.copy().digest('hex')
  }

  #take(): void {
    this.#hash.update(this.#waiting)
    this.#waiting = ''
  }
}
