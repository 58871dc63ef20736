/**
 * When clocks of the cloud were wrong, and by how much the time of each machine was wrong because of it. Each
 * time that a machine learns is one that a clock of the cloud showed between request and response.
 */
import { Violation } from './violation.ts'

/** What the product's clock says. Null: no upper end. */
export interface Reading {
  readonly earliest: number
  readonly latest: number | null
}

/** The cloud's signed time, and readings of the boot-time clock, ms. */
export interface Evidence {
  readonly time: number
  readonly sentAt: number
  readonly receivedAt: number
  /** When it is learned. */
  readonly learnedAt: number
}

/** Steps of the boot-time clock, ms. */
const EXACT_MS = 25

/** Of the boot-time clock. */
const DRIFT_MAX = 200 / 1_000_000

/** Less than the delay of a message, ms. */
const BARELY_MS = 5_000

interface Errors {
  readonly since: number
  /** By node, ms. */
  readonly ofNodes: readonly number[]
}

interface WrongBy {
  readonly since: number
  readonly ms: number
}

export class Clocks {
  readonly #now: () => number
  readonly #errors: Errors[] = [{ since: -Infinity, ofNodes: [0] }]
  /** Distance of the true time from the interval of a machine, since when. */
  readonly #wrongBy = new Map<string, WrongBy[]>()

  constructor(now: () => number) {
    this.#now = now
  }

  /** @param ofNodes what the clocks of the cloud's nodes are ahead by, ms */
  set(ofNodes: readonly number[]): void {
    this.#errors.push({ since: this.#now(), ofNodes: [...ofNodes] })
  }

  /** Null: a clock of the cloud is wrong. */
  get rightSince(): number | null {
    const last = this.#errors.findLastIndex(({ ofNodes }) => ofNodes.some((ms) => ms !== 0))
    return this.#errors[last + 1]?.since ?? null
  }

  /** What the clock of the cloud that is furthest ahead is ahead by, ms. */
  get aheadMs(): number {
    return Math.max(0, ...(this.#errors.at(-1)?.ofNodes ?? []))
  }

  /** Whether no clock of the cloud has been wrong since. */
  wereRightSince(instant: number): boolean {
    const { rightSince } = this
    return rightSince !== null && rightSince <= instant
  }

  /** @param evidence that it has just learned; null: it has just started, with the time of its disk */
  know(machine: string, reading: Reading, evidence: Evidence | null): void {
    if (evidence === null) this.#started(machine, reading)
    else this.#learned(machine, evidence, reading)
  }

  #started(machine: string, reading: Reading): void {
    const ms = this.#distance(reading)
    if (ms > 0 && !this.#wrongBy.has(machine)) {
      throw new Violation('TIME', `${machine} starts with a time that is wrong by ${ms} ms`)
    }
    this.#keep(machine, ms)
  }

  /** Whether the clocks of the cloud are right, and the machine has known the time since. */
  areRight(machine: string): boolean {
    return this.rightSince !== null && this.wrongByMs(machine) < BARELY_MS
  }

  /** A disk is copied with its time. */
  copied(from: string, to: string): void {
    const wrongBy = this.#wrongBy.get(from)
    if (wrongBy !== undefined) this.#wrongBy.set(to, [...wrongBy])
  }

  #learned(machine: string, { time, sentAt, receivedAt, learnedAt }: Evidence, reading: Reading): void {
    const now = this.#now()
    const exactMs = EXACT_MS + (learnedAt - sentAt) * DRIFT_MAX
    const [from, until] = [now - (learnedAt - sentAt) - exactMs, now - (learnedAt - receivedAt) + exactMs]
    const isWithin = (instant: number): boolean => from <= instant && instant <= until
    const errors = this.#errors.filter((_, index) => (this.#errors[index + 1]?.since ?? Infinity) >= from)
    const signers = errors.flatMap(({ ofNodes }) => ofNodes).filter((ms) => isWithin(time - ms))
    if (signers.length === 0) {
      throw new Violation('TIME', `${machine} learns the time ${time} at ${now}, which no clock of the cloud has shown`)
    }
    const most = isWithin(time) ? Math.min(until - from, this.wrongByMs(machine)) : Infinity
    const ms = this.#distance(reading)
    if (ms > most) {
      throw new Violation(
        'TIME',
        `${machine} is wrong by ${ms} ms after it has learned it within ${Math.ceil(until - from)} ms`,
      )
    }
    this.#keep(machine, ms)
  }

  /** The most by which the time of a machine was wrong within the last ms. */
  wrongByMs(machine: string, withinMs = 0): number {
    const all = this.#wrongBy.get(machine) ?? []
    const from = this.#now() - withinMs
    const recent = all.filter((_, index) => (all[index + 1]?.since ?? Infinity) >= from)
    return Math.max(0, ...recent.map(({ ms }) => ms))
  }

  #distance({ earliest, latest }: Reading): number {
    const now = this.#now()
    return Math.max(0, earliest - now, latest === null ? 0 : now - latest)
  }

  /** @param distance at a reading that may lag behind the boot-time clock */
  #keep(machine: string, distance: number): void {
    const ms = distance === 0 ? 0 : distance + EXACT_MS
    const all = this.#wrongBy.get(machine) ?? []
    if (ms === (all.at(-1)?.ms ?? 0)) return
    this.#wrongBy.set(machine, [...all, { since: this.#now(), ms }])
  }
}
