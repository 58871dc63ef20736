/** The newest usage records, in a limited number: enough for a day of a small cloud, or the last minutes of a large one. */
import { REFUSAL_REASONS, isRefusal } from '../../core/rules/refusal-reasons.ts'
import type { NewestUsage, UsageRecord } from '../storage/records.ts'
import type { Reader } from '../storage/store.ts'
import { newestUsage } from '../usage/newest-usage.ts'

const HOUR_MS = 3_600_000
export const HOURS = 24

/** Records that are read; a row of the store comes whole, so there can be more. */
const RECORDS_MAX = 2_000

/** A step unpacks about half as many. */
const STEPS_MAX = 2

export interface RecentUsage {
  readonly records: readonly UsageRecord[]
  /** The records are complete since then, POSIX ms. */
  readonly since: number
  /** Tokens of each hour, oldest first; the last one ends now. */
  readonly byHour: readonly bigint[]
}

export async function recentUsage(
  { usage }: Pick<Reader, 'usage'>,
  instanceId: string | null,
  now: number,
): Promise<RecentUsage> {
  const deps = { read: (range: NewestUsage) => usage.newest(range), giveWay: () => undefined }
  const all = { instanceId, from: null, to: null, upTo: null, limit: RECORDS_MAX }
  const found = await newestUsage(deps, all, STEPS_MAX)
  const dayAgo = now - HOURS * HOUR_MS
  const since = Math.max(dayAgo, found.rest?.writtenBy ?? dayAgo)
  const records = found.records
    .map(({ record }) => record)
    .filter(({ usageTime }) => usageTime > since && usageTime <= now)
  const byHour = Array.from({ length: HOURS }, () => 0n)
  for (const { usageTime, tokens } of records) {
    const hour = HOURS - 1 - Math.floor((now - usageTime) / HOUR_MS)
    byHour[hour] = (byHour[hour] ?? 0n) + tokens
  }
  return { records, since, byHour }
}

export function statusInWords(status: string): string {
  return isRefusal(status) ? `refused: ${REFUSAL_REASONS[status].label}` : status.toLowerCase().replaceAll('_', ' ')
}

export function requesterOf({ requesterType, requesterValue }: UsageRecord): string {
  return `${requesterType} ${requesterValue}`
}

export function itemOf({ item, version }: UsageRecord): string {
  return version === '' ? item : `${item} ${version}`
}
