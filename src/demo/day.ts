/** The requests of one day at the demo's site, drawn from a seed. */
import { type Random, seeded } from './random.ts'

export interface DayRequest {
  /** Time of day, such as `07:00:20`. */
  readonly at: string
  readonly requester: string
  readonly items: readonly Item[]
}

interface Item {
  readonly item: string
  readonly version: string
  readonly count: number
  /** The refusal that this item must get regardless of balances; absent where balances decide. */
  readonly must?: 'ITEM_NOT_RATED' | 'NO_USABLE_LINE_ITEM' | 'DENIED_BY_RULE'
}

/** With this seed, tokens, an allocation and a limit run out during the day. */
const SEED = 20_260_301
const REQUESTS = 2_400

type Weighted = readonly [weight: number, make: (random: Random) => Item]

const OPENS_S = 7 * 3600
const CLOSES_S = 19 * 3600

/** Random decimal amount without binary rounding errors. */
const some = (random: Random, min: number, max: number, digits: number): number =>
  Number(`${random.between(min, max)}e-${digits}`)

const laserCut: Weighted = [5, (random) => ({ item: 'LaserCut', version: '1.0', count: some(random, 20, 900, 2) })]
const engrave: Weighted = [4, (random) => ({ item: 'Engrave', version: '1.0', count: random.between(1, 12) })]
const print: Weighted = [4, (random) => ({ item: 'Print3D', version: '2.0', count: some(random, 50, 2_500, 3) })]
const mill: Weighted = [2, (random) => ({ item: 'Mill', version: '1.0', count: some(random, 1, 12, 1) })]
const scan: Weighted = [3, (random) => ({ item: 'Scan', version: '1.0', count: random.between(1, 9) })]
const inspect: Weighted = [8, (random) => ({ item: 'Inspect', version: '1.0', count: random.between(1, 20) })]
const certificate: Weighted = [1, () => ({ item: 'Certificate', version: '1.0', count: 1 })]
const firing: Weighted = [1, (random) => ({ item: 'Firing', version: '1.0', count: random.between(10, 90) })]
const smallPrint: Weighted = [4, (random) => ({ item: 'Print3D', version: '2.0', count: some(random, 50, 800, 3) })]

const unrated: Weighted = [
  1,
  (random) => ({
    ...random.pick([
      { item: 'Waterjet', version: '1.0' },
      { item: 'LaserCut', version: '9.9' },
      { item: 'Engrave', version: '' },
    ]),
    count: random.between(1, 5),
    must: 'ITEM_NOT_RATED',
  }),
]

/** Rated, but its only line item starts next month. */
const archive: Weighted = [
  1,
  (random) => ({ item: 'Archive', version: '1.0', count: random.between(1, 40), must: 'NO_USABLE_LINE_ITEM' }),
]

const denied = ([weight, make]: Weighted): Weighted => [
  weight,
  (random) => ({ ...make(random), must: 'DENIED_BY_RULE' }),
]

interface Habit {
  readonly weight: number
  /** Share of the day, 0 to 1, before this requester's first request. */
  readonly from?: number
  readonly requests: readonly Weighted[]
}

const HABITS: Readonly<Record<string, Habit>> = {
  'laser-1': { weight: 14, requests: [laserCut, engrave] },
  'laser-2': { weight: 12, requests: [laserCut, engrave] },
  'printer-a': { weight: 10, requests: [print] },
  'printer-b': { weight: 7, requests: [print, scan] },
  'mill-1': { weight: 6, requests: [mill] },
  'kiln-1': { weight: 3, from: 0.4, requests: [firing] },
  'kiln-2': { weight: 1, from: 0.4, requests: [firing] },
  'gauge-7': { weight: 12, requests: [inspect] },
  'anna.keller': { weight: 6, requests: [laserCut, print, scan, archive] },
  'ben.ojo': { weight: 4, requests: [engrave, scan, unrated] },
  'carla.rossi': { weight: 7, requests: [laserCut, engrave, mill, unrated] },
  'emil.novak': { weight: 5, requests: [inspect, certificate, archive] },
  'fay.lind': { weight: 4, requests: [smallPrint, scan] },
  'gus.berg': { weight: 4, requests: [engrave, smallPrint] },
  'hana.sato': { weight: 3, requests: [scan, laserCut] },
  'ivan.petrov': { weight: 2, requests: [denied(laserCut), denied(scan)] },
  'jo.marsh': { weight: 2, requests: [denied(engrave), denied(print)] },
}

export function requestsOfDay(): readonly DayRequest[] {
  const random = seeded(SEED)
  const times = Array.from({ length: REQUESTS }, () => random.between(OPENS_S, CLOSES_S - 1)).sort((a, b) => a - b)
  return times.map((second, index) => request(random, second, index / REQUESTS))
}

function request(random: Random, second: number, progress: number): DayRequest {
  const present = Object.entries(HABITS).filter(([, { from = 0 }]) => progress >= from)
  const [requester, { requests }] = random.weighted(present.map((entry) => [entry[1].weight, entry] as const))
  const items = Array.from({ length: random.weighted([[9, 1] as const, [1, random.between(2, 4)] as const]) }, () =>
    random.weighted(requests)(random),
  )
  return { at: clockText(second), requester, items }
}

function clockText(second: number): string {
  const parts = [second / 3600, (second / 60) % 60, second % 60]
  return parts.map((part) => String(Math.floor(part)).padStart(2, '0')).join(':')
}
