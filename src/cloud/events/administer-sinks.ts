import type { DeadLetterListWire, EventSinkStateWire } from '../../protocol/edge/events.ts'
import { CodedError } from '../../protocol/errors.ts'
import { recordChange } from '../storage/audit.ts'
import { type EventFilter, USAGE_ROW_POSITIONS, rowOfPosition } from '../storage/records.ts'
import type { Reader, Store, Transaction } from '../storage/store.ts'
import { usageArchivedError } from '../usage/export-usage.ts'
import { type OutgoingEvent, changeEvent, usageEvent } from './outgoing-event.ts'
import type { Sink } from './sink.ts'

export interface AdministerSinks {
  readonly store: Store
  readonly tenantId: string
  readonly sinks: readonly Pick<Sink, 'name' | 'kind' | 'address' | 'groups'>[]
}

export interface EventPage {
  readonly events: readonly OutgoingEvent[]
  readonly next: bigint | null
}

/** Newest first, without usage. */
export async function listEvents(
  { store, tenantId }: Pick<AdministerSinks, 'store' | 'tenantId'>,
  filter: EventFilter,
  limit: number,
): Promise<EventPage> {
  const found = await store.read((reader) => reader.events.list(filter, limit + 1))
  const events = found.slice(0, limit).map((each) => changeEvent(tenantId, each))
  return { events, next: found.length > limit ? (events.at(-1)?.position ?? null) : null }
}

/** @throws CodedError NOT_FOUND */
export async function findEvent(
  { store, tenantId }: Pick<AdministerSinks, 'store' | 'tenantId'>,
  id: string,
): Promise<OutgoingEvent> {
  const found = await store.read(async (reader) => {
    const change = await reader.events.get(id)
    if (change !== undefined) return changeEvent(tenantId, change)
    for (const row of await rowsOf(reader, id)) {
      const range = { after: (row - 1n) * USAGE_ROW_POSITIONS, upTo: row * USAGE_ROW_POSITIONS }
      const { records } = await reader.usage.range({ ...range, ...ANY, limit: 1, entries: true })
      const event = records.map((each) => usageEvent(tenantId, each)).find((each) => each.id === id)
      if (event !== undefined) return event
    }
    return undefined
  })
  if (found === undefined) throw new CodedError('NOT_FOUND', `There is no event ${id}.`)
  return found
}

const ANY = { instanceId: null, from: null, to: null }

/** Rows of the usage record that can have it. */
async function rowsOf(reader: Reader, id: string): Promise<readonly bigint[]> {
  const { position } = /^usage\/[^/]+\/(?<position>\d{1,19})$/.exec(id)?.groups ?? {}
  if (position !== undefined) return [rowOfPosition(BigInt(position))]
  const { device, epoch, entry } =
    /^(?<device>[^/]+)\/(?<epoch>\d{1,15})\/(?<entry>\d{1,15})\/[0-9a-f]+\/\d+$/.exec(id)?.groups ?? {}
  if (device === undefined) return []
  return reader.events.deliveriesOf(device, BigInt(epoch ?? 0), BigInt(entry ?? 0))
}

export async function showSinks({ store, sinks }: Omit<AdministerSinks, 'tenantId'>): Promise<EventSinkStateWire[]> {
  return store.read((reader) => sinkStates(reader, sinks))
}

export async function sinkStates(reader: Reader, sinks: AdministerSinks['sinks']): Promise<EventSinkStateWire[]> {
  const end = await reader.usage.end()
  const states: EventSinkStateWire[] = []
  for (const { position, ...state } of await reader.eventSinks.list()) {
    const sink = sinks.find(({ name }) => name === state.name)
    const settings = sink === undefined ? null : { kind: sink.kind, address: sink.address, types: [...sink.groups] }
    const behind = position < end || (await reader.eventSinks.nextReplayed(state.name)) !== undefined
    states.push({ ...state, settings, position: String(position), behind })
  }
  return states
}

/** @throws CodedError NOT_FOUND */
export async function sinkState(
  reader: Reader,
  sinks: AdministerSinks['sinks'],
  name: string,
): Promise<EventSinkStateWire> {
  const state = (await sinkStates(reader, sinks)).find((each) => each.name === name)
  if (state === undefined) throw noSink(name)
  return state
}

/** @throws CodedError NOT_FOUND */
export async function listDeadLetters(
  { store }: Pick<AdministerSinks, 'store'>,
  sink: string,
  after: bigint,
  limit: number,
): Promise<DeadLetterListWire> {
  const found = await store.read(async (reader) => {
    if ((await reader.eventSinks.next(sink)) === null) throw noSink(sink)
    return reader.eventSinks.deadLetters(sink, after, limit + 1)
  })
  const deadLetters = found.slice(0, limit).map((each) => ({ ...each, position: String(each.position) }))
  return { deadLetters, next: found.length > limit ? (deadLetters.at(-1)?.position ?? null) : null }
}

/** @throws CodedError NOT_FOUND, CURSOR_UNKNOWN for a position that no event has reached, USAGE_ARCHIVED */
export async function replayAfter(
  { store }: Pick<AdministerSinks, 'store'>,
  sink: string,
  after: bigint,
  at: number,
): Promise<void> {
  await store.transaction(async (tx) => {
    await lockSink(tx, sink)
    const end = await tx.usage.settled()
    if (after > end) throw new CodedError('CURSOR_UNKNOWN', `after is ${after}, but the newest event is ${end}.`)
    const archive = await tx.usageArchives.later(after, { from: null, to: null })
    if (archive !== null) throw usageArchivedError(after, archive)
    await tx.eventSinks.moveTo(sink, after)
    await tx.eventSinks.retry(sink)
    await recordChange(tx, at, { action: 'REPLAY_EVENTS', detail: { sink, after: String(after) } })
  })
}

/** @throws CodedError NOT_FOUND */
export async function replayDeadLetters(
  { store }: Pick<AdministerSinks, 'store'>,
  sink: string,
  at: number,
): Promise<void> {
  await store.transaction(async (tx) => {
    await lockSink(tx, sink)
    await tx.eventSinks.replayDeadLetters(sink)
    await tx.eventSinks.retry(sink)
    await recordChange(tx, at, { action: 'REPLAY_EVENTS', detail: { sink, deadLetters: true } })
  })
}

/** Lets the sink be tried now, without the pause after the last attempt. @throws CodedError NOT_FOUND */
export async function retrySink({ store }: Pick<AdministerSinks, 'store'>, sink: string, at: number): Promise<void> {
  await store.transaction(async (tx) => {
    await lockSink(tx, sink)
    await tx.eventSinks.retry(sink)
    await recordChange(tx, at, { action: 'RETRY_EVENT_SINK', detail: { sink } })
  })
}

/** @throws CodedError NOT_FOUND */
export async function discardDeadLetters(
  { store }: Pick<AdministerSinks, 'store'>,
  sink: string,
  at: number,
): Promise<void> {
  await store.transaction(async (tx) => {
    await lockSink(tx, sink)
    const count = await tx.eventSinks.countDeadLetters(sink)
    await tx.eventSinks.discardDeadLetters(sink)
    // With too many of them, it sends nothing.
    await tx.eventSinks.retry(sink)
    await recordChange(tx, at, { action: 'DISCARD_DEAD_LETTERS', detail: { sink, count } })
  })
}

/** A sink that the settings still have begins with the next event. @throws CodedError NOT_FOUND */
export async function forgetSink({ store }: Pick<AdministerSinks, 'store'>, sink: string, at: number): Promise<void> {
  await store.transaction(async (tx) => {
    const { position } = (await tx.eventSinks.next(sink)) ?? {}
    if (position === undefined) throw noSink(sink)
    await tx.eventSinks.forget(sink)
    await recordChange(tx, at, { action: 'FORGET_EVENT_SINK', detail: { sink, position: String(position) } })
  })
}

async function lockSink(tx: Transaction, sink: string): Promise<void> {
  if ((await tx.eventSinks.lockPosition(sink)) === null) throw noSink(sink)
}

function noSink(sink: string): CodedError {
  return new CodedError('NOT_FOUND', `There is no sink ${sink}.`)
}
