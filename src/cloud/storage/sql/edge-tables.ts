/** The migrations document the columns. */
import type { Generated } from 'kysely'
import type { SessionCommand } from '../../../protocol/edge/sessions.ts'

export interface EdgeTables {
  devices: {
    seq: Generated<bigint>
    id: string
    name: string | null
    public_key: string
    thumbprint: string
    key_since: bigint
    next_public_key: string | null
    next_thumbprint: string | null
    replace_key: string | null
    enrolled_at: bigint
    revoked_at: bigint | null
    revoked_by: string | null
    suspension_state: string | null
    suspended_since: bigint | null
    suspended_by: string | null
    last_sync_at: bigint | null
    software: string | null
    epoch: bigint
    backlog: bigint
    applied_policies: string
    release_requested: bigint
    clock: string | null
    instance_ids: string
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
  enrollments: {
    jti: string
    thumbprint: string
    device_id: string
    at: bigint
  }
  epochs: {
    device_id: string
    number: bigint
    status: string
    created_at: bigint
    fenced_at: bigint | null
    fence_reason: string | null
    quiet_since: bigint
    settlement: string | null
    settled_at: bigint | null
    forked: bigint
    rejected: bigint
    grants_forgotten: bigint
    carried_on: bigint
    last_seq: bigint
    last_hash: string
    last_entry: bigint
    entry_head: string
    term: bigint
    recovery: bigint
    nonce: string | null
    attach_answer: string | null
  }
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
  evidence: {
    device_id: string
    epoch: bigint
    hash: string
    kind: string
    seq: bigint
    recorded_hash: string | null
    recorded_document: string | null
    problem: string | null
    document: string
    received_at: bigint
  }
  archived_entries: {
    seq: bigint
    device_id: string
    epoch: bigint
    branch: bigint
    first_entry: bigint
    last_entry: bigint
    hashes: Buffer
  }
  device_accounts: {
    device_id: string
    epoch: bigint
    account: string
    granted: bigint
    used: bigint
    refunded: bigint
    returned: bigint
    branch_used: bigint
    overspend: bigint
    branch_overspend: bigint
    presumed: bigint
    released: bigint
    unlimited: bigint
    metered: bigint
    was_metered: bigint
  }
  shortages: {
    account: string
    who: string
    lacking: bigint
    enough: bigint
    keep: bigint | null
    since: bigint
    at: bigint
    recalled_at: bigint | null
    notified_at: bigint | null
  }
  session_commands: {
    device_id: string
    session_id: string
    wanted: SessionCommand['command']
    at: bigint
  }
  offline_policies: {
    instance_id: string
    line_item_id: string
    overspend_cap: bigint
    overspend_cap_max: bigint
  }
  cloud_reserves: {
    instance_id: string
    line_item_id: string
    tokens: bigint
  }
  recoveries: {
    instance_id: string
    number: bigint
    since: bigint
    unproven: 'MARK' | 'NODE' | null
    ended_at: bigint | null
  }
  sales_marks: {
    id: string
    turn: bigint
    seen_at: bigint
    awaited: bigint
    accepted: bigint
  }
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
