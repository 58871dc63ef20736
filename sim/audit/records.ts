import type Sqlite from 'better-sqlite3'
import type { MetaData } from '../request-body.ts'
import { query } from './query.ts'

export interface Entry {
  readonly correlationId: string
  /** Of the request; undefined: it has none. */
  readonly key: string | undefined
  readonly machine: string
  readonly deviceId: string
  readonly epoch: number
  readonly n: number
  readonly tokens: bigint
  /** One for each usage record that it must have: line item, item and micro-tokens. */
  readonly lines: readonly string[]
  /** Lines without a usage record so far. */
  unbilled: string[]
  /** What its response says of each item. */
  readonly answer: string
  acknowledged: boolean
  /** In the volatile log only: a power cut may remove it, and must burn at least as much. */
  volatile: boolean
  readonly postings: readonly { readonly account: string; readonly amount: bigint }[]
  isForgotten: boolean
  /** Its owner lost it, or made delivery impossible. */
  mayBeLost: boolean
}

export interface Caps {
  /** Micro-tokens; null: metered only. */
  line: bigint | null
  allocations: ReadonlyMap<string, bigint>
  limit: bigint | null
  /** All caps that line item and limit ever had: past periods keep theirs. */
  readonly history: Readonly<Record<'line' | 'limit', readonly (bigint | null)[]>>
}

export interface KnownGrant {
  readonly takenAtOn: number
  readonly lifetimeMs: number
  /**
   * Time the device was on without knowing it, ms: up to a minute before a power cut, and the sleep that ended in it.
   */
  hiddenMs: number
}

/** Each with the use of another service that was imported. */
export const ACCOUNTS =
  '(SELECT accounts.*, coalesce(amount, 0) AS imported FROM accounts LEFT JOIN imported_use ON account = id)'

export interface AccountRow {
  id: string
  /** Imported use included. */
  charged: bigint
  imported: bigint
  granted_out: bigint
  billed_by_devices: bigint
  /** Sold before the restore, by the cloud's own record. */
  withheld: bigint
  cap_target: bigint | null
  cap_in_force: bigint | null
}

export interface DeviceAccountRow {
  device_id: string
  epoch: bigint
  account: string
  granted: bigint
  used: bigint
  refunded: bigint
  returned: bigint
  branch_used: bigint
  presumed: bigint
  released: bigint
  overspend: bigint
  branch_overspend: bigint
  unlimited: bigint
}

export interface RulesKnown {
  readonly caps: ReadonlyMap<string, Caps>
  readonly inForce: ReadonlyMap<string, bigint>
  readonly revoked: ReadonlySet<string>
  readonly terminated: ReadonlyMap<string, number>
}

export interface UsageRow {
  seq: bigint
  position: bigint
  usage_time: bigint
  instance_id: string
  correlation_id: string
  activation_id: string | null
  item: string
  tokens: bigint
  /** Of its line item after it; null without a line item. */
  used: bigint | null
  source: string
  operation: string
  status: string
  session_id: string | null
  device_id: string | null
  epoch: bigint | null
}

/** Of a charge or refund of the cloud itself. */
export interface CloudUsageRow extends UsageRow {
  requester_type: string
  requester_value: string
  version: string
  count: string
  rate: string | null
  meta_data: string | null
}

export interface EntryText {
  correlationId: string
  n: number
  kind: string
  instanceId: string
  policyRevision: number
  engine: number
  at: number
  earliest: number
  latest: number | null
  session?: { id: string; event: string }
  requester: { type: string; value: string }
  items: {
    item: string
    version: string
    count: string
    outcome: string
    total: string
    parts: { lineItemId: string; rate: string; charged: string }[]
    metaData?: MetaData
  }[]
  postings: { account: string; amount: string; aboveGrant?: string }[]
}

/** A restored cloud with unknown sales. */
export function sellsNothing(database: Sqlite.Database): boolean {
  const sql = 'SELECT 1 FROM recoveries WHERE ended_at IS NULL AND unproven IS NOT NULL'
  return query(database, sql).get() !== undefined
}

/** Tokens of a pool that devices must not get, micro-tokens: the cloud has not charged them yet. */
export function unfilledReserve(
  database: Sqlite.Database,
  { id, charged, imported }: Pick<AccountRow, 'id' | 'charged' | 'imported'>,
): bigint {
  const own = charged - imported
  const [kind, instanceId, line = ''] = id.split('/')
  if (kind !== 'line') return 0n
  const sql = 'SELECT tokens FROM cloud_reserves WHERE instance_id = ? AND line_item_id = ?'
  const reserve = query(database, sql).pluck().get(instanceId, decodeURIComponent(line)) as bigint | undefined
  return reserve === undefined || reserve < own ? 0n : reserve - own
}

export function lineOf(account: string): string {
  const known = lines.get(account)
  if (known !== undefined) return known
  const line = decodeURIComponent(account.split('/')[2] ?? '')
  if (lines.size >= REMEMBERED_MAX) lines.clear()
  lines.set(account, line)
  return line
}

const lines = new Map<string, string>()
const deviceIds = new Map<string, string>()
const REMEMBERED_MAX = 1_000

export function nameOf({ device_id, epoch, account }: DeviceAccountRow): string {
  return `${device_id} ${epoch} ${account}`
}

export function outOf({ granted, returned }: DeviceAccountRow): bigint {
  return granted - returned
}

export function replace<K, V>(map: Map<K, V>, by: ReadonlyMap<K, V>): void {
  map.clear()
  for (const [key, value] of by) map.set(key, value)
}

export function ownerOf(database: Sqlite.Database): { readonly deviceId: string | null; readonly epoch: number } {
  const identity = query(database, 'SELECT document FROM identity').pluck().get() as string | undefined
  const epoch = query(database, 'SELECT epoch FROM state').pluck().get() as bigint
  return { deviceId: identity === undefined ? null : deviceIdOf(identity), epoch: Number(epoch) }
}

function deviceIdOf(identity: string): string {
  const known = deviceIds.get(identity)
  if (known !== undefined) return known
  const { deviceId } = JSON.parse(identity) as { deviceId: string }
  if (deviceIds.size >= REMEMBERED_MAX) deviceIds.clear()
  deviceIds.set(identity, deviceId)
  return deviceId
}

/** Sums over the data of the invariants: if unchanged, a full check would hardly find anything. */
export function fingerprintOf(database: Sqlite.Database): string {
  return query(
    database,
    `SELECT (SELECT count(*) || ' ' || total(charged) || ' ' || total(granted_out) || ' ' || total(billed_by_devices) || ' ' ||
         total(cap_target) FROM accounts) || ' ' ||
       (SELECT count(*) || ' ' || total(granted) || ' ' || total(used) || ' ' || total(refunded) || ' ' || total(returned) || ' ' ||
         total(branch_used) || ' ' || total(presumed) || ' ' || total(released) FROM device_accounts) || ' ' ||
       (SELECT count(*) FROM evidence) || ' ' || (SELECT count(*) || ' ' || count(fenced_at) || ' ' || count(settled_at) FROM epochs)`,
  )
    .pluck()
    .get() as string
}

/** A line of the bill. */
export function lineText({
  activation_id: line,
  item,
  tokens,
}: Pick<UsageRow, 'activation_id' | 'item' | 'tokens'>): string {
  return `${line ?? 'none'} ${item} ${tokens}`
}

/** Micro-tokens of a response's number of tokens. */
export function microOf(tokens: number): bigint {
  return BigInt(Math.round(tokens * 1_000_000))
}
