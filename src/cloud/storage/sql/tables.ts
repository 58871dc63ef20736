/** Tables for Kysely. Integers are `bigint`, flags `0n` or `1n`, JSON is text. The migrations document the columns. */
import type { Generated, Selectable } from 'kysely'
import type { EdgeTables } from './edge-tables.ts'

export interface Tables extends EdgeTables {
  instances: {
    seq: Generated<bigint>
    id: string
    short_name: string
    account_id: string
    is_default: bigint
    created: bigint
    modified: bigint
  }
  policy_revisions: {
    instance_id: string
    revision: bigint
    bumped_at: bigint
    listed_at: bigint
    calendar_due: bigint | null
    engine: bigint
  }
  line_items: {
    seq: Generated<bigint>
    instance_id: string
    id: string
    state: string
    quantity: bigint
    start_at: bigint
    end_at: bigint
    elastic: bigint
    rate_table_series: string | null
    overdraft_type: string | null
    overdraft_limit: bigint | null
    reset_frequency: string | null
    given: string
    calendar_frequency: string
    calendar_first: bigint
    calendar_first_at: bigint
    calendar_next: bigint
    created: bigint
    modified: bigint
    deleted: bigint | null
  }
  actions: {
    instance_id: string
    line_item_id: string
    position: bigint
    id: string
    name: string | null
    condition_id: string | null
    effect: string
    allocation: bigint | null
  }
  conditions: {
    seq: Generated<bigint>
    instance_id: string
    id: string
    body: string
  }
  rate_tables: {
    seq: Generated<bigint>
    series: string
    version: string
    effective_from: bigint
    created: bigint
    items: string
  }
  consumption_limits: {
    instance_id: string
    line_item_id: string
    limit_amount: bigint | null
    frequency: string
    next_reset: bigint
    first_period: bigint
  }
  public_keys: {
    seq: Generated<bigint>
    type: string
    id: string
    name: string | null
    roles: string | null
    instances: string | null
    pem: string
    active_from: bigint
    previous: string | null
    retires_at: bigint | null
    created: bigint
    modified: bigint
  }
  configuration: {
    name: string
    value: string
    modified: bigint
    updated_by: string
  }
  accounts: {
    id: string
    instance_id: string
    line_item_id: string
    limit_period: bigint | null
    charged: bigint
    granted_out: bigint
    claimed: bigint
    billed_by_devices: bigint
    sold: bigint
    withheld: bigint
    cap_target: bigint | null
    cap_in_force: bigint | null
    cap_highest: bigint
  }
  imported_use: {
    account: string
    amount: bigint
  }
  forgotten_usage: {
    backup_end: bigint
    lost_up_to: bigint
  }
  usage_archives: {
    up_to: bigint
    after: bigint
    records: bigint
    latest_use: bigint
    ahead_from: bigint | null
    ahead_to: bigint | null
    place: string
    manifest: string
    sha256: string
    archived_at: bigint
  }
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
  events: {
    seq: bigint
    id: string
    type: string
    at: bigint
    instance_id: string | null
    device_id: string | null
    data: string
  }
  /** PostgreSQL only, see `row-numbers.ts`. */
  row_numbers: { locked: bigint }
  event_sinks: {
    name: string
    position: bigint
    leased_by: string | null
    leased_until: bigint
    delivered_at: bigint | null
    failing_since: bigint | null
    problem: string | null
    retry_at: bigint | null
  }
  dead_letters: {
    sink: string
    position: bigint
    event_id: string
    type: string
    problem: string
    at: bigint
    replayed: bigint
  }
  sessions: {
    seq: Generated<bigint>
    id: string
    instance_id: string
    device_id: string | null
    opening: string | null
    kept_by: string | null
    wanted: string | null
    state: string
    created: bigint
    requester: string | null
    charge: string | null
    interval_ms: bigint
    heartbeat_due: bigint | null
    last_heartbeat: bigint
    last_access_request: bigint
    since: bigint
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
  idempotency_keys: {
    scope: string
    request_hash: string
    answer: string
    created: bigint
  }
}

export type Row<Name extends keyof Tables> = Selectable<Tables[Name]>
