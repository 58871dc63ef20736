/** Draws a seed's plan: each device's load, then the kinds of faults, then their times. */
import { SEGMENT_ENTRIES_MAX } from '../../src/protocol/edge/sync.ts'
import { HOUR, MINUTE, type Plan, type PlannedEvent } from '../plan.ts'
import { Random } from '../world/random.ts'
import { type Draw, FAULT_KINDS, type FaultKind, type Within, drawRequest, faults } from './faults.ts'
import { drawDictionary, drawMore } from './requests.ts'
import { drawSite, plainSite } from './site.ts'

export interface PlanOptions {
  readonly devices: number
  readonly hours: number
  readonly requests: number
  readonly segmentEntriesMax?: number
  readonly without?: readonly FaultKind[]
  readonly always?: readonly FaultKind[]
}

export const DEFAULT_OPTIONS: PlanOptions = { devices: 5, hours: 4, requests: 30 }

/** Maximum per kind and ten device-hours. */
const often: Partial<Record<FaultKind, number>> = {
  'cloud-request': 20,
  'cloud-repeats': 12,
  'session-life': 20,
  'session-command': 8,
  'cloud-session': 12,
  'death-at-write': 6,
  'death-after-answer': 6,
  'device-session': 20,
  'bound-session': 12,
  archive: 8,
  'usage-export': 10,
  import: 12,
  'log-full': 20,
}
const rare: ReadonlySet<FaultKind> = new Set([
  'revoke',
  'wipe',
  'clone',
  'restore',
  'end',
  'twin-restore',
  'twin-restore-untold',
  'obsolete',
  'configuration',
  'twin-clock',
  'node-clock',
  'refused-segments',
  'newer-twin',
  'engine-upgrade',
  'twin-engine-upgrade',
  'damage',
  'crowd',
  'recovery-overridden',
  're-enroll',
])

/** Random streams that are not named after their kind. A known seed depends on the name. */
const STREAM: Partial<Record<FaultKind, string>> = { 'overspend-cap': 'arrears-cap' }

/** Probability of kinds with their own random stream: other seeds stay unchanged. */
const apart: Partial<Record<FaultKind, number>> = {
  'twin-restore-untold': 0.15,
  overdraft: 0.35,
  frequency: 0.25,
  series: 0.25,
  audience: 0.25,
  actions: 0.3,
  'cloud-repeats': 0.4,
  'session-life': 0.4,
  'cloud-reserve': 0.25,
  'node-clock': 0.4,
  'session-command': 0.3,
  obsolete: 0.2,
  configuration: 0.25,
  'bound-session': 0.25,
  'node-down': 0.5,
  'control-cell-down': 0.15,
  'refused-segments': 0.2,
  'newer-twin': 0.2,
  'engine-upgrade': 0.1,
  'twin-engine-upgrade': 0.1,
  damage: 0.12,
  crowd: 0.04,
  'recovery-overridden': 0.15,
  'twin-clock': 0.12,
  'clock-confirmed': 0.4,
  archive: 0.5,
  'usage-export': 0.3,
  'twin-busy': 0.3,
  'rotate-key': 0.2,
  import: 0.2,
  're-enroll': 0.15,
  'settlement-limit': 0.2,
  'slow-archive': 0.2,
  'log-full': 0.3,
}

/** Kinds after which most syncs have transactions for themselves. Plain seeds have none of them. */
const unusual: ReadonlySet<FaultKind> = new Set(['device-session', 'bound-session', 'allocation', 'limit'])

/** Kinds that seeds without a busy cloud do not have: seeds that once failed stay as they were. */
const later: ReadonlySet<FaultKind> = new Set([
  'actions',
  'cloud-repeats',
  'session-life',
  'session-command',
  'cloud-reserve',
  'node-clock',
  'clock-confirmed',
  'usage-export',
  'rotate-key',
  'import',
  're-enroll',
  'settlement-limit',
  'slow-archive',
  'control-cell-down',
  'log-full',
])

export function drawPlan(seed: number, options: PlanOptions = DEFAULT_OPTIONS): Plan {
  const random = new Random(`plan ${seed}`)
  const faultsMs = options.hours * HOUR
  const site = drawSite(random.stream('site'), options.devices)
  const within: Within = { devices: site.devices, lineItems: site.lineItems.length, faultsMs }
  const events: PlannedEvent[] = []

  const load = random.stream('load')
  for (let device = 0; device < site.devices; device += 1) {
    // Some devices are busy, some nearly idle.
    const requests = Math.max(1, Math.round(options.requests * load.pick([0.1, 0.5, 1, 1, 2])))
    const inBursts = load.chance(0.6)
    // Reservations need fast spending.
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
  // Without a busy cloud, a known seed stays as it is.
  const isAsBefore = options.without?.includes('twin-busy') === true
  const isPlain = !isAsBefore && random.stream('plain').chance(0.3)
  const chosen = FAULT_KINDS.filter((kind) => {
    const likely = rare.has(kind) ? 0.25 : 0.5
    const ownChance = apart[kind]
    const drawn = ownChance === undefined ? swarm.chance(likely) : random.stream(`swarm ${kind}`).chance(ownChance)
    if (options.without?.includes(kind) === true) return false
    if (options.always?.includes(kind) === true) return true
    if (isAsBefore && later.has(kind)) return false
    return isPlain ? kind === 'twin-busy' || (drawn && !unusual.has(kind)) : drawn
  })
  for (const kind of chosen) {
    // Drawn with the clocks.
    if (kind === 'clock-confirmed') continue
    const stream = random.stream(STREAM[kind] ?? kind)
    const most =
      kind === 'crowd' ? 1 : rare.has(kind) ? 3 : Math.max(2, ((often[kind] ?? 3) * site.devices * options.hours) / 10)
    const count = Math.round(stream.spread(1, most))
    const draw: Draw = faults[kind]
    for (let n = 0; n < count; n += 1) events.push({ at: stream.whole(0, faultsMs), what: draw(stream, within) })
  }
  if (chosen.includes('restore') && !chosen.includes('snapshot')) {
    const stream = random.stream('snapshots')
    for (let device = 0; device < site.devices; device += 1) {
      events.push({ at: stream.whole(0, faultsMs / 2), what: { kind: 'snapshot', device } })
    }
  }
  drawTwinRestore(random.stream('twin restored'), chosen, faultsMs, events)
  if (chosen.includes('clock-confirmed')) drawConfirmations(random.stream('confirmations'), faultsMs, events)
  const places = random.stream('instances')
  const placed = site.instances === 1 ? events : events.map((event) => inInstance(event, places, site.instances))
  const variety = random.stream('variety')
  const isVaried = !isAsBefore && variety.chance(0.5)
  return {
    seed,
    site: isPlain ? plainSite(site) : site,
    segmentEntriesMax: options.segmentEntriesMax ?? SEGMENT_ENTRIES_MAX,
    faultsMs,
    events: (isVaried ? placed.map((event) => varied(event, variety)) : placed).toSorted((a, b) => a.at - b.at),
  }
}

/** While a clock is wrong, or soon after it is right again. */
function drawConfirmations(random: Random, faultsMs: number, events: PlannedEvent[]): void {
  for (const { at, what } of [...events]) {
    if (what.kind !== 'twin-clock' || what.node !== undefined) continue
    const confirmedAt = at + random.whole(MINUTE, what.forMs + 10 * MINUTE)
    events.push({ at: Math.min(confirmedAt, faultsMs), what: { kind: 'clock-confirmed' } })
  }
}

/** A restored cloud needs a backup followed by a restore. */
function drawTwinRestore(random: Random, chosen: readonly FaultKind[], faultsMs: number, events: PlannedEvent[]): void {
  const kinds = (['twin-restore', 'twin-restore-untold'] as const).filter((kind) => chosen.includes(kind))
  if (kinds.length === 0) return
  const backUpAt = random.whole(faultsMs / 10, faultsMs / 2)
  events.push({ at: backUpAt, what: { kind: 'twin-backup' } })
  const untold = random.pick(kinds) === 'twin-restore-untold'
  const what = {
    kind: 'twin-restore',
    downMs: random.spread(MINUTE, 20 * MINUTE),
    ...(untold ? { untold } : {}),
  } as const
  const at = random.whole(backUpAt, faultsMs)
  events.push({ at, what })
  // During a recovery.
  if (!chosen.includes('recovery-overridden')) return
  const overriddenAt = at + what.downMs + random.spread(1_000, 20 * MINUTE)
  events.push({ at: Math.min(overriddenAt, faultsMs), what: { kind: 'recovery-overridden' } })
}

/** Sends requests to random instances. */
function inInstance(event: PlannedEvent, random: Random, instances: number): PlannedEvent {
  const { what } = event
  if (!('requester' in what)) return event
  return { ...event, what: { ...what, instance: random.whole(0, instances - 1) } }
}

/** Requests several items, and describes the requester. */
function varied(event: PlannedEvent, random: Random): PlannedEvent {
  const { what } = event
  if (!('requester' in what)) return event
  const variety = {
    ...(random.chance(0.5) ? { more: drawMore(random) } : {}),
    ...(random.chance(0.6) ? { dictionary: drawDictionary(random) } : {}),
  }
  return { ...event, what: { ...what, ...variety } }
}
