/**
 * Deterministic randomness by seed. Each part of a run has its own named stream, so removing one event changes little
 * else.
 */
import { hash } from 'node:crypto'

export class Random {
  readonly #seed: string
  #a: number
  #b: number
  #c: number
  #d: number

  constructor(seed: string) {
    this.#seed = seed
    const digest = Buffer.from(hash('sha256', seed, 'hex'), 'hex')
    this.#a = digest.readUInt32LE(0)
    this.#b = digest.readUInt32LE(4)
    this.#c = digest.readUInt32LE(8)
    this.#d = digest.readUInt32LE(12) | 1
  }

  /** A stream that depends only on seed and name. */
  stream(name: string): Random {
    return new Random(`${this.#seed}/${name}`)
  }

  /** sfc32. */
  #next(): number {
    const t = (((this.#a + this.#b) | 0) + this.#d) | 0
    this.#d = (this.#d + 1) | 0
    this.#a = this.#b ^ (this.#b >>> 9)
    this.#b = (this.#c + (this.#c << 3)) | 0
    this.#c = (this.#c << 21) | (this.#c >>> 11)
    this.#c = (this.#c + t) | 0
    return t >>> 0
  }

  /** Uniform in [0, 1). */
  fraction(): number {
    return this.#next() / 0x1_0000_0000
  }

  /** Uniform over the integers from `least` to `most`, inclusive. */
  whole(least: number, most: number): number {
    return least + Math.floor(this.fraction() * (most - least + 1))
  }

  chance(probability: number): boolean {
    return this.fraction() < probability
  }

  /** Log-uniform: short values often, long ones rarely. */
  spread(least: number, most: number): number {
    return Math.round(least * (most / least) ** this.fraction())
  }

  pick<T>(choices: readonly T[]): T {
    const chosen = choices[this.whole(0, choices.length - 1)]
    if (chosen === undefined) throw new Error('there is something to choose from')
    return chosen
  }

  token(): string {
    return Array.from({ length: 4 }, () => this.#next().toString(16).padStart(8, '0')).join('')
  }

  uuid(): string {
    const text = this.token()
    const variant = ((parseInt(text.slice(16, 18), 16) & 0x3f) | 0x80).toString(16)
    return `${text.slice(0, 8)}-${text.slice(8, 12)}-4${text.slice(13, 16)}-${variant}${text.slice(18, 20)}-${text.slice(20)}`
  }
}
