import type { Device } from '../storage/device-records.ts'

export const ATTACH_WINDOW_MS = 60 * 60_000

export interface EdgeTerms {
  readonly grantLifetimeMs: number
  /** How long a grant should last without contact, ms; devices request their burn rate times this. */
  readonly grantHorizonMs: number
  readonly policyUsableMs: number
  readonly syncEveryMs: number
  /** How long a device keeps acknowledged entries, for a cloud restored from a backup, ms. */
  readonly receiptMarginMs: number
  readonly attachesMax: number
  /** Charge interval of sessions, ms; null: the tenant's configuration. */
  readonly sessionIntervalMs: number | null
}

/** Sync intervals without contact after which a device counts as out of contact. */
const SILENT_AFTER_SYNCS = 3

/** A device whose last sync is earlier is overdue: it is not expected to return tokens. POSIX ms. */
export function overdueBefore(now: number, { syncEveryMs }: Pick<EdgeTerms, 'syncEveryMs'>): number {
  return now - SILENT_AFTER_SYNCS * syncEveryMs
}

export function isOverdue(
  { revokedAt, suspension, lastSyncAt }: Pick<Device, 'revokedAt' | 'suspension' | 'lastSyncAt'>,
  now: number,
  terms: Pick<EdgeTerms, 'syncEveryMs'>,
): boolean {
  const isServed = revokedAt === null && suspension === null
  return isServed && lastSyncAt !== null && lastSyncAt < overdueBefore(now, terms)
}

export interface Addresses {
  /** `https://host/prefix/edge/api/v1` */
  readonly edge: string
  /** `https://host/prefix/api` */
  readonly service: string
  /** `mqtt://` or `mqtts://`; null: no push. */
  readonly push: string | null
}
