/**
 * Figures over all devices of an instance or account, which each sync needs for shares and recalls. Those of many
 * devices are used for a time in proportion to their number, so that each costs at most a small, constant part of a processor.
 */
import type { Micro } from '../../../core/pricing/amount.ts'
import type { Returnable } from '../device-records.ts'

const USED_MAX_MS = 60_000

/** Instances, or accounts. */
const REMEMBERED_MAX = 10_000

interface Pace {
  /** Up to this many devices, a figure is read each time. */
  readonly exactMax: number
  /** How long a figure is used, for each device in it, ms. */
  readonly usedMsPerDevice: number
}

const PACE: Pace = { exactMax: 20, usedMsPerDevice: 10 }

/** The number of live devices is used this many times as long: changes by this process are counted at once. */
const LIVE_TIMES = 30

interface Figure<T> {
  readonly value: T
  readonly devices: number
  readonly at: number
}

/** Figures of one kind, by instance or account. Times may start anywhere; a clock that goes back forgets. */
export class Figures<T> {
  readonly #pace: Pace
  readonly #known = new Map<string, Figure<T>>()

  constructor(pace: Pace) {
    this.#pace = pace
  }

  get(id: string, at: number): Figure<T> | undefined {
    const known = this.#known.get(id)
    if (known === undefined) return undefined
    const age = at - known.at
    const usedMs = Math.min(known.devices * this.#pace.usedMsPerDevice, USED_MAX_MS)
    return age >= 0 && age < usedMs ? known : undefined
  }

  /** Also if the transaction is rolled back: until the figure is read again, it is an estimate. */
  change(id: string, to: (known: Figure<T>) => T): void {
    const known = this.#known.get(id)
    if (known !== undefined) this.#known.set(id, { ...known, value: to(known) })
  }

  /** Forgets what was known, and remembers the figure if it is one of many devices. */
  set(id: string, figure: Figure<T>): void {
    this.#known.delete(id)
    if (figure.devices <= this.#pace.exactMax) return
    if (this.#known.size >= REMEMBERED_MAX) this.#known.clear()
    this.#known.set(id, figure)
  }
}

interface Balance {
  readonly deviceId: string
  readonly available: Micro
}

/** Of all that tokens of an account were recalled for. */
export interface Lacking {
  /** What they are short of now. */
  readonly lacking: Micro
  /** The latest recall, POSIX ms. */
  readonly recalledAt: number
}

/** Of one process of the cloud. */
export class FleetFigures {
  /** Live devices of an instance. */
  readonly live: Figures<number>
  /** What all devices could return of an account. */
  readonly returnable: Figures<Returnable>
  /** The largest balances of an account. */
  readonly largest: Figures<readonly Balance[]>
  readonly lacking: Figures<Lacking>

  constructor(pace: Pace = PACE) {
    this.live = new Figures({ ...pace, usedMsPerDevice: pace.usedMsPerDevice * LIVE_TIMES })
    this.returnable = new Figures(pace)
    this.largest = new Figures(pace)
    this.lacking = new Figures(pace)
  }
}
