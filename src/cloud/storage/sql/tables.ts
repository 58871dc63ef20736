/** Tables for Kysely. The migrations document the columns. */
import type { Generated, Selectable } from 'kysely'
import type { Action } from '../../../core/rules/policy.ts'
import type { Session } from '../../../core/sessions/session.ts'
import type { SessionCommand } from '../../../protocol/edge/sessions.ts'
import type {
  CloudReserve,
  Device,
  DeviceAccountRecord,
  EnrollmentRecord,
  Epoch,
  Evidence,
  OfflinePolicyRecord,
  Recovery,
  SalesMarkRecord,
  Shortage,
  Suspension,
} from '../device-records.ts'
import type {
  ConfigurationValue,
  ConsumptionLimitRecord,
  DeadLetter,
  EventRecord,
  Instance,
  KeyRecord,
  LineItemRecord,
  PolicyRevision,
  Pool,
  RateTableRecord,
  ResetFrequency,
  SinkState,
  StoredAnswer,
  UsageArchive,
} from '../records.ts'
import type { ColumnsOf } from './columns-of.ts'

/** By creation. */
interface Numbered {
  seq: Generated<bigint>
}

export interface Tables {
  instances: ColumnsOf<Omit<Instance, 'defaultInstance'>> & Numbered & { is_default: bigint }
  policy_revisions: ColumnsOf<PolicyRevision>
  line_items: ColumnsOf<Omit<LineItemRecord, 'start' | 'end' | 'calendar'>> &
    Numbered & {
      start_at: bigint
      end_at: bigint
      calendar_frequency: ResetFrequency
      calendar_first: bigint
      calendar_first_at: bigint
      calendar_next: bigint
    }
  actions: ColumnsOf<Action> & { instance_id: string; line_item_id: string; position: bigint }
  conditions: {
    seq: Generated<bigint>
    instance_id: string
    id: string
    body: string
  }
  rate_tables: ColumnsOf<RateTableRecord> & Numbered
  consumption_limits: ColumnsOf<Omit<ConsumptionLimitRecord, 'limit' | 'first'>> & {
    limit_amount: bigint | null
    first_period: bigint
  }
  public_keys: ColumnsOf<KeyRecord> & Numbered
  configuration: ColumnsOf<ConfigurationValue>
  accounts: ColumnsOf<Omit<Pool, 'account'>> & {
    id: string
    instance_id: string
    line_item_id: string
    limit_period: bigint | null
  }
  imported_use: {
    account: string
    amount: bigint
  }
  forgotten_usage: {
    backup_end: bigint
    lost_up_to: bigint
  }
  usage_archives: ColumnsOf<Omit<UsageArchive, 'usedAhead'>> & { ahead_from: bigint | null; ahead_to: bigint | null }
  usage_archiving: {
    slot: bigint
    holder: string | null
    seen_at: bigint
    place: string | null
    up_to: bigint | null
    finished_at: bigint | null
  }
  usage: {
    seq: Generated<bigint>
    instance_id: string | null
    records: bigint
    refused: bigint
    from_time: bigint
    to_time: bigint
    write_time: bigint
    device_id: string | null
    epoch: bigint | null
    segment: bigint | null
    branch: bigint | null
    first_entry: bigint | null
    last_entry: bigint | null
    body: Buffer
  }
  events: ColumnsOf<EventRecord> & { seq: bigint }
  /** PostgreSQL only, see `row-numbers.ts`. */
  row_numbers: { locked: bigint }
  event_sinks: ColumnsOf<Omit<SinkState, 'deadLetters'>> & { leased_by: string | null; leased_until: bigint }
  dead_letters: ColumnsOf<DeadLetter> & { sink: string; replayed: bigint }
  sessions: ColumnsOf<Session> &
    Numbered & {
      opening: string | null
      wanted: SessionCommand['command'] | null
      next_due: bigint
      renewal_due_before: bigint | null
    }
  outbox: {
    id: Generated<bigint>
    kind: string
    instance_id: string | null
    revision: bigint | null
    device_id: string | null
    reason: string | null
    written: bigint
    claimed_until: bigint
  }
  idempotency_keys: ColumnsOf<StoredAnswer>
  devices: ColumnsOf<Omit<Device, 'nextKey' | 'suspension' | 'labels'>> &
    Numbered & {
      next_public_key: string | null
      next_thumbprint: string | null
      suspension_state: Suspension['state'] | null
      suspended_since: bigint | null
      suspended_by: string | null
      labels: Generated<string>
    }
  audit: {
    seq: Generated<bigint>
    at: bigint
    by_kind: string
    key_id: string | null
    key_name: string | null
    issuer: string | null
    action: string
    instance_id: string | null
    line_item_id: string | null
    device_id: string | null
    session_id: string | null
    detail: string | null
    is_traffic: bigint
  }
  audit_instances: {
    instance_id: string
    seq: bigint
  }
  device_keys: {
    thumbprint: string
    device_id: string
    public_key: string
    registered_at: bigint
  }
  device_instances: {
    instance_id: string
    device_id: string
  }
  device_labels: {
    key: string
    value: string
    device_seq: bigint
  }
  signing_key: {
    slot: bigint
    thumbprint: string
    since: bigint
  }
  cell_name: { name: string }
  cell: {
    slot: bigint
    name: string
    is_control: bigint
    cloud_id: string
  }
  enrollments: ColumnsOf<EnrollmentRecord>
  epochs: ColumnsOf<Epoch>
  segments: {
    device_id: string
    epoch: bigint
    seq: bigint
    hash: string
  }
  last_segments: {
    device_id: string
    epoch: bigint
    seq: bigint
    document: Buffer
    answer: string
  }
  evidence: ColumnsOf<Evidence>
  archived_entries: {
    seq: bigint
    device_id: string
    epoch: bigint
    branch: bigint
    first_entry: bigint
    last_entry: bigint
    hashes: Buffer
  }
  device_accounts: ColumnsOf<DeviceAccountRecord>
  shortages: ColumnsOf<Shortage>
  session_commands: {
    device_id: string
    session_id: string
    wanted: SessionCommand['command']
    at: bigint
  }
  offline_policies: ColumnsOf<OfflinePolicyRecord>
  cloud_reserves: ColumnsOf<CloudReserve>
  recoveries: ColumnsOf<Recovery>
  sales_marks: ColumnsOf<SalesMarkRecord>
  last_restore: {
    slot: bigint
    at: bigint
    dated: bigint
  }
  clock_record: {
    slot: bigint
    at: bigint
    since_boot: bigint
    boot_id: string
  }
  clock_gaps: {
    until: bigint
    since: bigint
  }
  settlement_confirmed: {
    slot: bigint
    quiet_before: bigint
  }
  policy_documents: {
    instance_id: string
    revision: bigint
    document: string
  }
}

export type Row<Name extends keyof Tables> = Selectable<Tables[Name]>
