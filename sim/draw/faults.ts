import type { Mishap } from '../device/journal-runner.ts'
import { LOG_CALLS } from '../device/volatile-memory.ts'
import { HOUR, type Happening, ITEMS, MINUTE, type PlannedRequest } from '../plan.ts'
import { CALM, type Weather } from '../world/network.ts'
import type { Random } from '../world/random.ts'
import { drawActions } from './requests.ts'

export type Draw = (random: Random, within: Within) => Happening

export interface Within {
  readonly devices: number
  readonly lineItems: number
  readonly faultsMs: number
}

const someDevice = (random: Random, { devices }: Within): number => random.whole(0, devices - 1)
const mishaps: readonly Mishap[] = ['DIES_BEFORE', 'DIES_AFTER']
const flushMishaps: readonly Mishap[] = ['FLUSH_FAILS_BEFORE', 'FLUSH_FAILS_AFTER']
const downMs = (random: Random): number => random.spread(500, 30 * MINUTE)

export const faults = {
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
    power: random.chance(0.4),
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
  'cloud-repeats': (random) => ({
    kind: 'cloud-request',
    repeatAfterMs: Array.from({ length: random.whole(1, 3) }, () => random.spread(1, 3 * HOUR)),
    ...drawRequest(random, -1),
  }),
  'cloud-session': (random) => ({
    kind: 'cloud-session',
    slot: random.whole(0, 3),
    close: random.chance(0.2),
    ...drawRequest(random, -1),
  }),
  'session-life': (random) => ({
    kind: 'cloud-session',
    slot: random.whole(0, 3),
    close: random.chance(0.1),
    order: random.pick(['REQUEST', 'REQUEST', 'REQUEST', 'HALT', 'LOCK', 'UNLOCK', 'UNLOCK', 'TERMINATE'] as const),
    endsOnDeny: random.chance(0.5),
    ...(random.chance(0.7)
      ? { heartbeats: { count: random.whole(1, 10), everyMs: random.spread(2 * MINUTE, 25 * MINUTE) } }
      : {}),
    ...drawRequest(random, -1),
  }),
  'session-command': (random, within) => ({
    kind: 'session-command',
    device: someDevice(random, within),
    slot: random.whole(0, 3),
    command: random.pick(['LOCK', 'UNLOCK', 'UNLOCK', 'TERMINATE'] as const),
  }),
  'overspend-cap': (random, within) => ({
    kind: 'overspend-cap',
    lineItem: random.whole(0, within.lineItems - 1),
    cap: random.chance(0.3) ? 0 : random.spread(1, 100),
  }),
  'cloud-reserve': (random, within) => ({
    kind: 'cloud-reserve',
    lineItem: random.whole(0, within.lineItems - 1),
    tokens: random.chance(0.2) ? 0 : random.spread(2, 200),
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
  're-enroll': (random, within) => ({
    kind: 're-enroll',
    device: someDevice(random, within),
    afterMs: random.spread(2_000, HOUR),
    isOld: random.chance(0.3),
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
  overdraft: (random, within) => ({
    kind: 'overdraft',
    lineItem: random.whole(0, within.lineItems - 1),
    overdraft: random.chance(0.4) ? 'UNLIMITED' : random.chance(0.5) ? 0 : random.whole(1, 100),
  }),
  frequency: (random, within) => ({
    kind: 'frequency',
    lineItem: random.whole(0, within.lineItems - 1),
    frequency: random.pick(['NONE', 'DAILY', 'DAILY', 'WEEKLY', 'MONTHLY', 'YEARLY'] as const),
  }),
  series: (random, within) =>
    random.chance(0.4)
      ? {
          kind: 'series',
          lineItem: random.whole(0, within.lineItems - 1),
          series: random.pick([null, 'S'] as const),
        }
      : {
          kind: 'rates',
          inMs: random.spread(1_000, 6 * HOUR),
          factor: random.pick([0.5, 0.999, 2, 3]),
          series: random.pick([null, 'S'] as const),
          areFormulas: random.chance(0.6),
        },
  audience: (random, within) => ({
    kind: 'audience',
    lineItem: random.whole(0, within.lineItems - 1),
    audience: random.pick(['ALL', 'ALL', 'GOLD', 'NOT_GOLD'] as const),
  }),
  actions: (random, within) => ({
    kind: 'actions',
    lineItem: random.whole(0, within.lineItems - 1),
    actions: drawActions(random),
  }),
  obsolete: (random, within) => ({
    kind: 'obsolete',
    lineItem: random.whole(0, within.lineItems - 1),
    deleteInMs: random.spread(MINUTE, 2 * HOUR),
    mapInMs: random.spread(MINUTE, 2 * HOUR),
  }),
  configuration: (random) =>
    random.chance(0.5)
      ? { kind: 'configuration', name: 'timezone.tolerant', value: String(random.chance(0.5)) }
      : { kind: 'configuration', name: 'session.charge.period', value: `PT${random.whole(10, 90)}M` },
  'bound-session': (random, within) => ({
    kind: 'device-session',
    device: someDevice(random, within),
    slot: random.whole(2, 3),
    order: random.pick(['REQUEST', 'REQUEST', 'REQUEST', 'HEARTBEAT', 'HALT', 'DISCONNECT'] as const),
    isBound: true,
    ...drawRequest(random, -1),
  }),
  'refused-segments': (random, within) => ({
    kind: 'refused-segments',
    device: someDevice(random, within),
    forMs: random.spread(MINUTE, 4 * HOUR),
  }),
  'newer-twin': (random, within) => ({
    kind: 'newer-twin',
    device: someDevice(random, within),
    forMs: random.spread(MINUTE, 4 * HOUR),
  }),
  'engine-upgrade': (random, within) => ({
    kind: 'engine-upgrade',
    device: someDevice(random, within),
    isStrict: random.chance(0.3),
    forMs: random.spread(MINUTE, 2 * HOUR),
  }),
  'twin-engine-upgrade': (random) => ({
    kind: 'twin-engine-upgrade',
    isStrict: random.chance(0.3),
    forMs: random.spread(MINUTE, 2 * HOUR),
  }),
  damage: (random, within) => ({
    kind: 'damage',
    device: someDevice(random, within),
    damage: random.pick(['FILE', 'ENTRY', 'ENTRY', 'COUNTERS', 'COUNTERS'] as const),
  }),
  crowd: (random, within) => {
    const isLong = random.chance(0.6)
    return {
      kind: 'crowd',
      device: someDevice(random, within),
      requests: isLong ? random.whole(1_050, 1_300) : random.whole(100, 400),
      requesters: isLong ? random.whole(1, 3) : random.whole(50, 300),
      ...drawRequest(random, -1),
      count: 1,
    }
  },
  'recovery-overridden': () => ({ kind: 'recovery-overridden' }),
  'node-down': (random) => ({ kind: 'node-down', forMs: random.spread(MINUTE, 2 * HOUR) }),
  'control-cell-down': (random) => ({ kind: 'control-cell-down', forMs: random.spread(MINUTE, 2 * HOUR) }),
  archive: () => ({ kind: 'archive' }),
  'slow-archive': (random) => ({ kind: 'archive', pieceMs: random.spread(1_000, 4 * MINUTE) }),
  'usage-export': (random, within) => {
    if (random.chance(0.6)) return { kind: 'usage-export' }
    const instance = random.chance(0.5) ? random.whole(0, 1) : null
    if (random.chance(0.5)) return { kind: 'usage-report', instance, pastDays: random.whole(0, 2) }
    const fromMs = random.whole(-HOUR, within.faultsMs)
    return { kind: 'usage-part', instance, fromMs, toMs: fromMs + random.spread(MINUTE, within.faultsMs) }
  },
  'twin-clock': (random) => ({
    kind: 'twin-clock',
    ms: (random.chance(0.4) ? -1 : 1) * random.spread(MINUTE, 2_000 * HOUR),
    forMs: random.spread(MINUTE, 3 * HOUR),
  }),
  'node-clock': (random) => ({
    kind: 'twin-clock',
    node: random.whole(0, 1),
    ms: (random.chance(0.5) ? -1 : 1) * random.spread(1_000, random.chance(0.7) ? 4 * MINUTE : 40 * HOUR),
    forMs: random.spread(10 * MINUTE, 3 * HOUR),
  }),
  import: (random, within) => ({
    kind: 'import',
    lineItem: random.whole(0, within.lineItems - 1),
    more: random.chance(0.2) ? -random.whole(1, 40) : random.spread(1, 100),
    addUsed: random.chance(0.6),
    lowerUsed: random.chance(0.6),
  }),
  'settlement-limit': (random) => ({
    kind: random.chance(0.5) ? ('settlement-limit' as const) : ('settlement-confirmed' as const),
  }),
  'clock-confirmed': () => ({ kind: 'clock-confirmed' }),
  'twin-busy': (random) => ({
    kind: 'twin-busy',
    waitMs: random.spread(500, 15_000),
    forMs: random.spread(30 * MINUTE, 4 * HOUR),
  }),
  'log-full': (random, within) => {
    const some = LOG_CALLS.filter(() => random.chance(0.3))
    return {
      kind: 'log-full',
      device: someDevice(random, within),
      calls: some.length === 0 ? LOG_CALLS : some,
      forMs: random.spread(MINUTE, HOUR),
      isDiskFull: random.chance(0.6),
      refusals: random.chance(0.7) ? random.whole(1, 3) : null,
      downMs: random.spread(500, MINUTE),
    }
  },
} satisfies Record<string, Draw>

export type FaultKind = keyof typeof faults

export const FAULT_KINDS = Object.keys(faults) as FaultKind[]

export function drawRequest(random: Random, device: number): PlannedRequest {
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
