/** Devices as CSV or JSON, with bounded memory. Devices that enroll meanwhile come last, or in the next export. */
import { csvField } from '../../protocol/csv.ts'
import { labelsText } from '../../protocol/edge/labels.ts'
import type { DeviceFilter } from '../storage/device-records.ts'
import { type ViewDevices, reportedState } from './devices.ts'

export const DEVICE_MEDIA_TYPES = {
  csv: 'text/csv; charset=utf-8; header=present',
  json: 'application/json; charset=utf-8',
} as const

export type DeviceFormat = keyof typeof DEVICE_MEDIA_TYPES

const PART = 100

type State = Awaited<ReturnType<typeof reportedState>>

export async function* exportDevices(
  { store, presence, terms, now }: ViewDevices,
  filter: DeviceFilter,
  format: DeviceFormat,
): AsyncGenerator<string> {
  // Sent with the first devices: until then, a failed read can still be answered with its error.
  let head = format === 'csv' ? `${Object.keys(COLUMNS).join(',')}\r\n` : '['
  let isFirst = true
  for (let after: bigint | null = 0n; after !== null;) {
    const from: bigint = after
    const { states, last } = await store.read(async (reader) => {
      const part = await reader.edge.devices.part(filter, from, PART)
      const view = { reader, presence, terms, now: now() }
      const found: State[] = []
      for (const device of part.devices) found.push(await reportedState(view, device))
      return { states: found, last: part.last }
    })
    const lines = format === 'csv' ? states.map(csvLine).join('') : jsonLines(states, isFirst)
    yield head + lines
    head = ''
    isFirst &&= states.length === 0
    after = last
  }
  if (format === 'json') yield '\n]\n'
}

function jsonLines(states: readonly State[], isFirst: boolean): string {
  if (states.length === 0) return ''
  return `${isFirst ? '' : ','}\n${states.map((state) => JSON.stringify(state)).join(',\n')}`
}

function csvLine(state: State): string {
  const fields = Object.values(COLUMNS).map((cellOf) => cellOf(state))
  return `${fields.map((cell) => (typeof cell === 'string' ? csvField(cell) : (cell ?? ''))).join(',')}\r\n`
}

const timeText = (at: number | null): string | null => (at === null ? null : new Date(at).toISOString())

/** By their names. Numbers are not texts, so a negative one is no formula. */
const COLUMNS: Readonly<Record<string, (state: State) => string | number | null>> = {
  ID: ({ id }) => id,
  NAME: ({ name }) => name,
  LABELS: ({ labels }) => labelsText(labels),
  INSTANCES: ({ instanceIds }) => instanceIds.join(' '),
  STATE: ({ revokedAt, suspension, status }) => (revokedAt !== null ? 'REVOKED' : (suspension?.state ?? status)),
  COPIED: ({ forked }) => (forked ? 'yes' : 'no'),
  OVERDUE: ({ overdue }) => (overdue ? 'yes' : 'no'),
  ENROLLED: ({ enrolledAt }) => timeText(enrolledAt),
  LAST_SYNC: ({ lastSyncAt }) => timeText(lastSyncAt),
  LIVE_UPDATES: ({ presence }) => (presence === null ? null : presence.online ? 'connected' : 'not connected'),
  RULES: ({ policies }) => policies.map(({ applied, newest }) => `${applied} of ${newest}`).join(' '),
  BACKLOG: ({ backlog }) => backlog,
  CLOCK_OFFSET_MS: ({ clock }) => clock?.offsetMs ?? null,
  SOFTWARE: ({ software }) => software,
}
