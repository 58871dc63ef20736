/**
 * What one seed does, as data: the site, and everything that happens to it, each at its instant. A plan is drawn before
 * anything runs, so that leaving events out of it is all that it takes to look for a shorter one. Which kinds of faults a
 * seed has at all, and how many of them, is drawn first: a run with every fault at once hides what two of them would show.
 */
import type { Mishap } from './device/journal-thread.ts'
import { Random } from './world/random.ts'
import { CALM, type Weather } from './world/network.ts'

/** POSIX ms at which every run begins. */
export const BEGIN = Date.UTC(2026, 2, 2, 6)

const MINUTE = 60_000
const HOUR = 60 * MINUTE

/** After the faults, so long may it take until everything is at rest. */
export const CALM_MS = 45 * MINUTE

export interface LineItemPlan {
  readonly id: string
  /** Whole tokens. */
  readonly quantity: number
  readonly overdraft: number | 'UNLIMITED'
  readonly daily: boolean
  readonly startsAt: number
  readonly endsAt: number
  /** Whole tokens that the action for gold requesters may take; null: there is only the default action. */
  readonly goldAllocation: number | null
  /** Whole tokens per requester and day; null: none. */
  readonly limit: number | null
  /** Whole tokens that each device may spend above its grants while it cannot ask; 0: none. */
  readonly arrearsCap: number
}

export interface SitePlan {
  readonly devices: number
  readonly lineItems: readonly LineItemPlan[]
  readonly grantLifetimeMs: number
  readonly grantHorizonMs: number
  readonly policyUsableMs: number
  readonly syncEveryMs: number
  readonly startingGrant: number
  readonly batch: number
  readonly backoffMaxMs: number
  readonly returnOnStop: boolean
  readonly undecidedClock: 'allow' | 'refuse'
  /** Some boards have no battery. */
  readonly noRtc: readonly boolean[]
  readonly driftPpm: readonly number[]
  readonly wallErrorMs: readonly number[]
  /** Devices that answer ahead of their disk, from blocks that are reserved there. */
  readonly reserved: readonly boolean[]
  /** Most whole tokens of a block. */
  readonly blockMax: number
  /** Silence after which what a device holds is settled. */
  readonly settleAfterMs: number
  readonly settleAs: 'CHARGED' | 'RELEASED'
  /** Of sessions, at the twin and on the devices. */
  readonly sessionIntervalMs: number
}

export interface PlannedRequest {
  readonly item: string
  readonly count: number
  readonly requester: string
  readonly gold: boolean
}

export type Happening =
  | ({ readonly kind: 'request'; readonly device: number; readonly session: number | null } & PlannedRequest)
  | ({ readonly kind: 'cloud-request' } & PlannedRequest)
  | ({ readonly kind: 'cloud-session'; readonly slot: number; readonly close: boolean } & PlannedRequest)
  | { readonly kind: 'kill' | 'power-cut' | 'stop'; readonly device: number; readonly downMs: number }
  | {
      readonly kind: 'trap'
      readonly device: number
      readonly skip: number
      readonly mishap: Mishap
      readonly power: boolean
      readonly downMs: number
    }
  | {
      readonly kind: 'death-after-answer'
      readonly device: number
      /** Answers up to it, 1 for the next. */
      readonly answers: number
      readonly afterMs: number
      readonly power: boolean
      readonly downMs: number
    }
  | { readonly kind: 'disk-full' | 'slow-disk' | 'suspend'; readonly device: number; readonly forMs: number }
  | { readonly kind: 'weather'; readonly device: number; readonly forMs: number; readonly weather: Weather }
  | {
      readonly kind: 'partition'
      readonly device: number
      readonly forMs: number
      readonly up: boolean
      readonly down: boolean
    }
  | { readonly kind: 'clock-step'; readonly device: number; readonly ms: number }
  | { readonly kind: 'snapshot' | 'restore' | 'clone' | 'wipe' | 'revoke' | 'release'; readonly device: number }
  | { readonly kind: 'rotate-key'; readonly device: number; readonly by: 'TECHNICIAN' | 'ADMINISTRATOR' }
  | { readonly kind: 'twin-down'; readonly forMs: number }
  | {
      readonly kind: 'twin-trap'
      readonly skip: number
      readonly when: 'BEFORE' | 'AFTER'
      readonly downMs: number
    }
  | { readonly kind: 'quantity'; readonly lineItem: number; readonly quantity: number }
  | { readonly kind: 'allocation'; readonly lineItem: number; readonly allocation: number | null }
  | { readonly kind: 'limit'; readonly lineItem: number; readonly limit: number | null }
  | { readonly kind: 'end'; readonly lineItem: number; readonly inMs: number }
  | { readonly kind: 'state'; readonly lineItem: number; readonly state: 'DEPLOYED' | 'INACTIVE' }
  | { readonly kind: 'rates'; readonly inMs: number; readonly factor: number }
  | { readonly kind: 'arrears-cap'; readonly lineItem: number; readonly cap: number }
  | { readonly kind: 'hold'; readonly device: number; readonly order: 'LOCK' | 'UNLOCK' | 'TERMINATE' }
  | { readonly kind: 'twin-backup' }
  | { readonly kind: 'twin-restore'; readonly downMs: number; readonly untold?: boolean }
  | ({
      readonly kind: 'device-session'
      readonly device: number
      readonly slot: number
      readonly order: 'REQUEST' | 'HEARTBEAT' | 'HALT' | 'CLOSE'
    } & PlannedRequest)

export interface PlannedEvent {
  /** After the begin, ms. */
  readonly at: number
  readonly what: Happening
}

export interface Plan {
  readonly seed: number
  readonly site: SitePlan
  /** In the order of their instants. */
  readonly events: readonly PlannedEvent[]
  /** How long faults last, ms. */
  readonly faultsMs: number
}

export interface PlanOptions {
  readonly devices: number
  /** Virtual hours with faults. */
  readonly hours: number
  /** Requests of each device. */
  readonly requests: number
  /** Kinds of faults that are never drawn. */
  readonly without?: readonly FaultKind[]
  /** Kinds of faults that are always drawn. */
  readonly always?: readonly FaultKind[]
}

export const DEFAULT_OPTIONS: PlanOptions = { devices: 5, hours: 4, requests: 30 }

export const ITEMS = ['Print', 'Scan', 'Copy'] as const
export const RATES: Readonly<Record<(typeof ITEMS)[number], number>> = { Print: 1, Scan: 0.25, Copy: 2.5 }

type Draw = (random: Random, within: Within) => Happening

interface Within {
  readonly devices: number
  readonly lineItems: number
  readonly faultsMs: number
}

const someDevice = (random: Random, { devices }: Within): number => random.whole(0, devices - 1)
const mishaps: readonly Mishap[] = ['DIES_BEFORE', 'DIES_AFTER']
const flushMishaps: readonly Mishap[] = ['FLUSH_FAILS_BEFORE', 'FLUSH_FAILS_AFTER']
const downMs = (random: Random): number => random.spread(500, 30 * MINUTE)

/** Each kind of fault, and how to draw one of it. */
const faults = {
  kill: (random, within) => ({ kind: 'kill', device: someDevice(random, within), downMs: downMs(random) }),
  'power-cut': (random, within) => ({ kind: 'power-cut', device: someDevice(random, within), downMs: downMs(random) }),
  stop: (random, within) => ({ kind: 'stop', device: someDevice(random, within), downMs: downMs(random) }),
  'death-at-write': (random, within) => ({
    kind: 'trap',
    device: someDevice(random, within),
    skip: random.whole(0, 12),
    mishap: random.pick(mishaps),
    power: random.chance(0.5),
    downMs: downMs(random),
  }),
  'death-after-answer': (random, within) => ({
    kind: 'death-after-answer',
    device: someDevice(random, within),
    answers: random.whole(1, 4),
    afterMs: random.whole(0, 4),
    power: random.chance(0.6),
    downMs: downMs(random),
  }),
  'failed-flush': (random, within) => ({
    kind: 'trap',
    device: someDevice(random, within),
    skip: random.whole(0, 12),
    mishap: random.pick(flushMishaps),
    power: false,
    downMs: downMs(random),
  }),
  'disk-full': (random, within) => ({
    kind: 'disk-full',
    device: someDevice(random, within),
    forMs: random.spread(MINUTE, 2 * HOUR),
  }),
  'slow-disk': (random, within) => ({
    kind: 'slow-disk',
    device: someDevice(random, within),
    forMs: random.spread(MINUTE, 2 * HOUR),
  }),
  weather: (random, within) => ({
    kind: 'weather',
    device: someDevice(random, within),
    forMs: random.spread(MINUTE, within.faultsMs),
    weather: drawWeather(random),
  }),
  partition: (random, within) => {
    const up = random.chance(0.6)
    return {
      kind: 'partition',
      device: someDevice(random, within),
      forMs: random.spread(MINUTE, within.faultsMs),
      up,
      down: !up || random.chance(0.6),
    }
  },
  'clock-step': (random, within) => ({
    kind: 'clock-step',
    device: someDevice(random, within),
    ms: (random.chance(0.5) ? -1 : 1) * random.spread(MINUTE, 20_000 * HOUR),
  }),
  suspend: (random, within) => ({
    kind: 'suspend',
    device: someDevice(random, within),
    forMs: random.spread(MINUTE, 3 * HOUR),
  }),
  snapshot: (random, within) => ({ kind: 'snapshot', device: someDevice(random, within) }),
  restore: (random, within) => ({ kind: 'restore', device: someDevice(random, within) }),
  clone: (random, within) => ({ kind: 'clone', device: someDevice(random, within) }),
  wipe: (random, within) => ({ kind: 'wipe', device: someDevice(random, within) }),
  revoke: (random, within) => ({ kind: 'revoke', device: someDevice(random, within) }),
  release: (random, within) => ({ kind: 'release', device: someDevice(random, within) }),
  'twin-down': (random) => ({ kind: 'twin-down', forMs: random.spread(MINUTE, 2 * HOUR) }),
  'twin-death': (random) => ({
    kind: 'twin-trap',
    skip: random.whole(0, 30),
    when: random.pick(['BEFORE', 'AFTER'] as const),
    downMs: random.spread(1_000, 20 * MINUTE),
  }),
  quantity: (random, within) => ({
    kind: 'quantity',
    lineItem: random.whole(0, within.lineItems - 1),
    quantity: random.spread(5, 2_000),
  }),
  allocation: (random, within) => ({
    kind: 'allocation',
    lineItem: random.whole(0, within.lineItems - 1),
    allocation: random.chance(0.2) ? null : random.spread(2, 500),
  }),
  limit: (random, within) => ({
    kind: 'limit',
    lineItem: random.whole(0, within.lineItems - 1),
    limit: random.chance(0.3) ? null : random.spread(3, 200),
  }),
  end: (random, within) => ({
    kind: 'end',
    lineItem: random.whole(0, within.lineItems - 1),
    inMs: random.spread(10 * MINUTE, 200 * HOUR),
  }),
  state: (random, within) => ({
    kind: 'state',
    lineItem: random.whole(0, within.lineItems - 1),
    state: random.pick(['DEPLOYED', 'INACTIVE'] as const),
  }),
  rates: (random) => ({ kind: 'rates', inMs: random.spread(1_000, 6 * HOUR), factor: random.pick([0.5, 0.999, 2, 3]) }),
  'cloud-request': (random) => ({ kind: 'cloud-request', ...drawRequest(random, -1) }),
  'cloud-session': (random) => ({
    kind: 'cloud-session',
    slot: random.whole(0, 3),
    close: random.chance(0.2),
    ...drawRequest(random, -1),
  }),
  'arrears-cap': (random, within) => ({
    kind: 'arrears-cap',
    lineItem: random.whole(0, within.lineItems - 1),
    cap: random.chance(0.3) ? 0 : random.spread(1, 100),
  }),
  hold: (random, within) => ({
    kind: 'hold',
    device: someDevice(random, within),
    order: random.chance(0.08) ? 'TERMINATE' : random.pick(['LOCK', 'UNLOCK'] as const),
  }),
  'twin-restore': (random) =>
    random.chance(0.5) ? { kind: 'twin-backup' } : { kind: 'twin-restore', downMs: random.spread(MINUTE, 20 * MINUTE) },
  'device-session': (random, within) => ({
    kind: 'device-session',
    device: someDevice(random, within),
    slot: random.whole(0, 1),
    order: random.pick(['REQUEST', 'REQUEST', 'REQUEST', 'HEARTBEAT', 'HEARTBEAT', 'HALT', 'CLOSE'] as const),
    ...drawRequest(random, -1),
  }),
  'rotate-key': (random, within) => ({
    kind: 'rotate-key',
    device: someDevice(random, within),
    by: random.pick(['TECHNICIAN', 'ADMINISTRATOR'] as const),
  }),
  'twin-restore-untold': (random) =>
    random.chance(0.5)
      ? { kind: 'twin-backup' }
      : { kind: 'twin-restore', downMs: random.spread(MINUTE, 20 * MINUTE), untold: true },
} satisfies Record<string, Draw>

export type FaultKind = keyof typeof faults

export const FAULT_KINDS = Object.keys(faults) as FaultKind[]

/** How many of a kind a seed may have, per ten device-hours. */
const often: Partial<Record<FaultKind, number>> = {
  'cloud-request': 20,
  'cloud-session': 12,
  'death-at-write': 6,
  'death-after-answer': 6,
  'device-session': 20,
}
const rare: ReadonlySet<FaultKind> = new Set([
  'revoke',
  'wipe',
  'clone',
  'restore',
  'end',
  'twin-restore',
  'twin-restore-untold',
])

/** Drawn from a stream of their own: a seed that does not have them is what it is without them. */
const apart: ReadonlySet<FaultKind> = new Set(['twin-restore-untold'])

/** Drawn by order only. */
const ordered: ReadonlySet<FaultKind> = new Set(['rotate-key'])

export function drawPlan(seed: number, options: PlanOptions = DEFAULT_OPTIONS): Plan {
  const random = new Random(`plan ${seed}`)
  const faultsMs = options.hours * HOUR
  const site = drawSite(random.stream('site'), options.devices)
  const within: Within = { devices: site.devices, lineItems: site.lineItems.length, faultsMs }
  const events: PlannedEvent[] = []

  const load = random.stream('load')
  for (let device = 0; device < site.devices; device += 1) {
    // Devices differ: some are busy, some are nearly idle.
    const requests = Math.max(1, Math.round(options.requests * load.pick([0.1, 0.5, 1, 1, 2])))
    const inBursts = load.chance(0.6)
    // Blocks are reserved only for accounts that are spent from in a hurry.
    const gapMax = load.pick([30, 500])
    let request = drawRequest(load, device)
    for (let n = 0, at = 0; n < requests; n += 1) {
      const sameBurst = inBursts && load.chance(0.85)
      at = sameBurst ? at + load.whole(0, gapMax) : load.whole(0, faultsMs)
      if (!sameBurst || load.chance(0.2)) request = drawRequest(load, device)
      const session = load.chance(0.5) ? load.whole(0, 2) : null
      events.push({ at: at % faultsMs, what: { kind: 'request', device, session, ...request } })
    }
  }

  const swarm = random.stream('swarm')
  const chosen = FAULT_KINDS.filter((kind) => {
    const likely = rare.has(kind) ? 0.25 : 0.5
    const drawn = apart.has(kind)
      ? random.stream(`swarm ${kind}`).chance(0.15)
      : !ordered.has(kind) && swarm.chance(likely)
    if (options.without?.includes(kind) === true) return false
    return drawn || options.always?.includes(kind) === true
  })
  for (const kind of chosen) {
    const stream = random.stream(kind)
    const most = rare.has(kind) ? 3 : Math.max(2, ((often[kind] ?? 3) * site.devices * options.hours) / 10)
    const count = Math.round(stream.spread(1, most))
    const draw: Draw = faults[kind]
    for (let n = 0; n < count; n += 1) events.push({ at: stream.whole(0, faultsMs), what: draw(stream, within) })
  }
  // A restore needs something to restore.
  if (chosen.includes('restore') && !chosen.includes('snapshot')) {
    const stream = random.stream('snapshots')
    for (let device = 0; device < site.devices; device += 1) {
      events.push({ at: stream.whole(0, faultsMs / 2), what: { kind: 'snapshot', device } })
    }
  }
  return { seed, site, faultsMs, events: events.toSorted((a, b) => a.at - b.at) }
}

function drawSite(random: Random, devices: number): SitePlan {
  const terms = random.stream('terms')
  const scarce = random.chance(0.5)
  const lineItems = Array.from({ length: random.whole(1, 3) }, (_, index): LineItemPlan => ({
    id: `ACT-${index + 1}`,
    quantity: scarce ? random.spread(5, 150) : random.spread(100, 5_000),
    overdraft: random.chance(0.08) ? 'UNLIMITED' : random.chance(0.3) ? random.whole(1, 20) : 0,
    daily: random.chance(0.35),
    // The day of a line item turns during the run.
    startsAt: BEGIN - random.whole(20, 23) * HOUR,
    endsAt: BEGIN + (30 + index) * 24 * HOUR,
    goldAllocation: random.chance(0.5) ? random.spread(3, 200) : null,
    limit: random.chance(0.3) ? random.spread(5, 100) : null,
    arrearsCap: terms.chance(0.25) ? terms.spread(1, 100) : 0,
  }))
  return {
    devices,
    lineItems,
    grantLifetimeMs: random.spread(20 * MINUTE, 7 * 24 * HOUR),
    grantHorizonMs: random.spread(10 * MINUTE, 24 * HOUR),
    policyUsableMs: random.spread(2 * HOUR, 30 * 24 * HOUR),
    syncEveryMs: random.spread(3 * MINUTE, 20 * MINUTE),
    startingGrant: random.spread(1, 100),
    batch: random.spread(1, 100),
    backoffMaxMs: random.spread(20_000, 5 * MINUTE),
    returnOnStop: random.chance(0.4),
    undecidedClock: random.pick(['allow', 'refuse'] as const),
    noRtc: Array.from({ length: devices }, () => random.chance(0.3)),
    driftPpm: Array.from({ length: devices }, () => (random.chance(0.5) ? random.whole(-150, 150) : 0)),
    reserved: Array.from({ length: devices }, () => random.chance(0.4)),
    blockMax: random.spread(1, 50),
    settleAfterMs: terms.chance(0.4) ? terms.spread(20 * MINUTE, 4 * HOUR) : 30 * 24 * HOUR,
    settleAs: terms.chance(0.7) ? 'CHARGED' : 'RELEASED',
    sessionIntervalMs: terms.spread(10 * MINUTE, HOUR),
    wallErrorMs: Array.from({ length: devices }, () => (random.chance(0.3) ? random.whole(-40, 40) * HOUR : 0)),
  }
}

function drawRequest(random: Random, device: number): PlannedRequest {
  return {
    item: random.pick(ITEMS),
    count: random.chance(0.1) ? random.whole(10, 60) : random.whole(1, 5),
    requester: random.chance(0.5) ? 'ada' : `user-${device}`,
    gold: random.chance(0.4),
  }
}

function drawWeather(random: Random): Weather {
  const some = (most: number): number => (random.chance(0.5) ? random.fraction() * most : 0)
  return {
    ...CALM,
    requestsLost: some(0.5),
    answersLost: some(0.7),
    repeated: some(0.5),
    delayMax: random.spread(20, 5_000),
    late: some(0.3),
    lateMax: random.spread(10_000, 2 * HOUR),
    oldAnswers: some(0.4),
    broken: some(0.3),
  }
}
