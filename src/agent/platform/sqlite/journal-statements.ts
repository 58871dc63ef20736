/** The journal's SQL statements and row types. The caller owns transactions and decides which statements run together. */
import type Database from 'better-sqlite3'
import type { ClockStamp, IdempotencyRecord, SealedSegment, StoredGrant, StoredPolicy } from '../../ledger/journal.ts'
import type { StoredClock } from '../../runtime/clock.ts'

export interface StateRow {
  epoch: bigint
  fenced: bigint
  entry_base: bigint
  last_entry: bigint
  entry_head: string
  sealed_entry: bigint
  sealed_head: string
  acked_entry: bigint
  acked_head: string
  last_seq: bigint
  segment_head: string
  resends_earlier: bigint
  slot_generation: bigint
  grant_term: bigint | null
  grant_lifetime_ms: bigint | null
  grant_expires_at: bigint | null
  grant_aged_ms: bigint | null
  clock_boot_id: string | null
  clock_since_boot: bigint | null
  clock_earliest: bigint | null
  clock_latest: bigint | null
}

export interface AccountRow {
  id: string
  granted: bigint
  used: bigint
  refunded: bigint
  returned: bigint
  exhausted: bigint
  unlimited: bigint
  overdraft: bigint
  reserved: bigint
  allowance: bigint
  burned: bigint
  sealed_used: bigint
  sealed_refunded: bigint
  sealed_returned: bigint
}

export interface UndeliveredRangeRow {
  id: bigint
  epoch: bigint
  entry_base: bigint
  acked_entry: bigint
  sealed_entry: bigint
  sealed_head: string
  last_entry: bigint
  last_head: string
  whole: bigint
}

export interface SegmentRow {
  id: bigint
  epoch: bigint
  seq: bigint
  hash: string
  document: string
  answer: string | null
  final: bigint
  state: 'UNACKNOWLEDGED' | 'ACKNOWLEDGED' | 'ABANDONED'
}

export interface SalvageRow {
  at: bigint
  file: string
  why: string
  salvaged_entries: bigint
  lost_entries: bigint | null
}

export interface PolicyRow {
  instance_id: string
  revision: bigint
  document: string
  confirmed_at: bigint
}

export interface SessionRow {
  id: string
  ended: bigint
  since: bigint
  document: string
  snapshot: string
}

export interface AnswerRow {
  session: string
  n: bigint
  request_hash: string
  body: string
  status: bigint
  policy_revision: bigint
}

/** The used part of better-sqlite3's type, whose namespace emitted declarations cannot name. */
interface Statement extends Pick<Database.Statement, 'all' | 'get' | 'iterate' | 'run'> {
  pluck(): this
  raw(): this
}

/** The chain continues after it, and a final one marks the current epoch as closed. */
const LAST_SEGMENT = 'SELECT coalesce(max(id), 0) FROM segment WHERE epoch = (SELECT epoch FROM state)'

/** Segments whose answers prove the grant's lifetime and the age of the rules. */
const SIGNED_STATE = `SELECT grant_proof FROM state WHERE grant_proof IS NOT NULL
  UNION SELECT confirmed_by FROM policy WHERE confirmed_by IS NOT NULL`

export const signedAnswersSql = `SELECT answer FROM segment_document WHERE answer IS NOT NULL AND id IN (
  SELECT proof FROM account WHERE proof IS NOT NULL UNION ${SIGNED_STATE}) ORDER BY id`

/** There is a limit for each requester and period. One without balance needs no proof, because a start gives it none without. */
const NEEDED_PROOFS = `SELECT proof FROM account WHERE proof IS NOT NULL
  AND NOT (id LIKE 'limit/%' AND unlimited = 0 AND used - refunded + returned = granted)`

/** `LIMIT +?`, because SQLite plans a statement with `LIMIT ?` again at each execution. */
const STATEMENTS = {
  state: 'SELECT * FROM state',
  policies: 'SELECT instance_id, revision, document, confirmed_at FROM policy ORDER BY instance_id',
  salvages: 'SELECT * FROM salvage ORDER BY at',
  accounts: 'SELECT * FROM account',
  account: 'SELECT * FROM account WHERE id = ?',
  movedAccounts: 'SELECT * FROM account WHERE used <> sealed_used OR refunded <> sealed_refunded',
  returnedAccounts: `SELECT * FROM account
       WHERE used = sealed_used AND refunded = sealed_refunded AND returned <> sealed_returned`,
  answers: 'SELECT session, n, request_hash, body, status, policy_revision FROM answer ORDER BY entry_id, slot',
  nextUndeliveredRange: 'SELECT * FROM undelivered_ranges WHERE end_sealed = 0 ORDER BY id LIMIT 1',
  firstUndeliveredRange: 'SELECT * FROM undelivered_ranges ORDER BY id LIMIT 1',
  allUndeliveredRanges: 'SELECT * FROM undelivered_ranges',
  countUndeliveredRange: `INSERT INTO undelivered_range_account (epoch, id, used, refunded)
       SELECT (SELECT epoch FROM state), id, used, refunded FROM account WHERE used > 0`,
  uncountUndeliveredRange: `UPDATE undelivered_range_account SET used = used - ?, refunded = refunded - ?
       WHERE epoch = (SELECT epoch FROM state) AND id = ?`,
  unsealedCounts: 'SELECT id, used, refunded FROM undelivered_range_account WHERE epoch = ? AND sealed = 0 ORDER BY id',
  sealCount: 'UPDATE undelivered_range_account SET sealed = 1 WHERE epoch = ? AND id = ?',
  unsealCounts: 'UPDATE undelivered_range_account SET sealed = 0',
  deleteCounts: 'DELETE FROM undelivered_range_account WHERE sealed = 1',
  sealUndeliveredRange: `UPDATE undelivered_ranges SET sealed_entry = :entry, sealed_head = :head, end_sealed = :entry = last_entry
       WHERE id = :id`,
  ackUndeliveredRanges: 'UPDATE undelivered_ranges SET acked_entry = sealed_entry, acked_head = sealed_head',
  unsealUndeliveredRanges:
    'UPDATE undelivered_ranges SET sealed_entry = acked_entry, sealed_head = acked_head, end_sealed = 0',
  deleteUndeliveredRanges: 'DELETE FROM undelivered_ranges WHERE end_sealed = 1',
  insertUndeliveredRange: `INSERT INTO undelivered_ranges (epoch, entry_base, acked_entry, acked_head, sealed_entry, sealed_head, last_entry,
         last_head, whole, end_sealed)
       SELECT epoch, entry_base, :entry, :head, :entry, :head, last_entry, entry_head, :whole, 0 FROM state`,
  proveAccount:
    'UPDATE account SET proof = (SELECT id FROM segment WHERE seq = ? AND epoch = ?) WHERE id = ? AND granted = ?',
  proveGrant: 'UPDATE state SET grant_proof = (SELECT id FROM segment WHERE seq = ? AND epoch = ?)',
  storeReceipt: 'UPDATE segment SET retain_until = ? WHERE seq = ? AND epoch = ?',
  storeAnswerOf:
    'UPDATE segment_document SET answer = ? WHERE id = (SELECT id FROM segment WHERE seq = ? AND epoch = ?)',
  segment: 'SELECT * FROM segment JOIN segment_document USING (id) WHERE epoch = ? AND seq = ?',
  segmentEarlier: `SELECT * FROM segment JOIN segment_document USING (id)
       WHERE epoch < ? AND (epoch, seq) > (?, ?) AND state = 'ACKNOWLEDGED' ORDER BY epoch, seq LIMIT 1`,
  segmentsNewestFirst:
    'SELECT seq, hash, document FROM segment JOIN segment_document USING (id) WHERE epoch = ? ORDER BY seq DESC',
  segmentInFlight: "SELECT * FROM segment JOIN segment_document USING (id) WHERE state = 'UNACKNOWLEDGED'",
  keepPolicy: `INSERT OR IGNORE INTO past_policy (instance_id, revision, document, bytes, last_entry_id)
       SELECT instance_id, revision, document, length(document), ? FROM policy
         WHERE instance_id = ? AND revision <> ?`,
  // Deletes policies that no kept entry was decided by; all of them if there are no entries.
  deletePolicies:
    'DELETE FROM past_policy WHERE last_entry_id + ? < (SELECT coalesce(min(first_id), 9223372036854775807) FROM block)',
  deleteLargePolicies: `DELETE FROM past_policy WHERE id IN (
       SELECT id FROM (SELECT id, sum(bytes) OVER (ORDER BY id DESC) AS total FROM past_policy) WHERE total > ?)`,
  saveClock: `UPDATE state SET clock_boot_id = ?, clock_since_boot = ?, clock_earliest = ?, clock_latest = ?,
       grant_aged_ms = CASE WHEN grant_term IS NULL THEN NULL ELSE ? END`,
  returnTokens: `UPDATE account SET returned = returned + ? WHERE id = ?
       RETURNING granted, used, refunded, returned, unlimited, allowance`,
  // A reservation counts as usage, because it may have been answered.
  settleAboveGrant:
    'UPDATE account SET allowance = 0 WHERE allowance > 0 AND max(used, reserved) - refunded + returned <= granted',
  // Removes returned tokens from the reservation; pending usage is below the remainder.
  shorten:
    'UPDATE account SET reserved = min(reserved, granted - returned + refunded - ?) WHERE id = ? AND unlimited = 0',
  limit: `UPDATE account SET unlimited = 0, allowance = max(allowance, used - refunded + returned - granted),
       reserved = min(reserved, max(used, granted - returned + refunded)) WHERE id = ?`,
  closeReservations: 'UPDATE account SET reserved = used WHERE reserved > used',
  grantAccount: `INSERT INTO account (id, granted, exhausted, unlimited, overdraft) VALUES (?, ?, ?, ?, ?)
       ON CONFLICT (id) DO UPDATE SET granted = max(granted, excluded.granted), exhausted = excluded.exhausted,
         unlimited = excluded.unlimited, overdraft = excluded.overdraft`,
  grant: 'UPDATE state SET grant_term = ?, grant_lifetime_ms = ?, grant_expires_at = ?, grant_aged_ms = ?',
  sealAccount: 'UPDATE account SET sealed_used = ?, sealed_refunded = ?, sealed_returned = ? WHERE id = ?',
  sealed: 'UPDATE state SET sealed_entry = ?, sealed_head = ?, last_seq = ?, segment_head = ?',
  insertSegment: `INSERT INTO segment (epoch, seq, hash, final, last_entry_id, state, since, bytes)
       VALUES (?, ?, ?, ?, ?, 'UNACKNOWLEDGED', ?, ?)`,
  insertDocument: 'INSERT INTO segment_document (id, document) VALUES (?, ?)',
  endSegment: "UPDATE segment SET state = ?, since = ? WHERE state = 'UNACKNOWLEDGED'",
  acked: 'UPDATE state SET acked_entry = sealed_entry, acked_head = sealed_head, resends_earlier = ?',
  fence: 'UPDATE state SET fenced = 1',
  deleteAccounts: 'DELETE FROM account',
  attach: `UPDATE state SET epoch = :epoch, fenced = 0, entry_base = :base, last_entry = 0, entry_head = :start,
       sealed_entry = 0, sealed_head = :start, acked_entry = 0, acked_head = :start, last_seq = 0, segment_head = :start,
       resends_earlier = :resends, grant_term = NULL,
       grant_lifetime_ms = NULL, grant_expires_at = NULL, grant_aged_ms = NULL, grant_proof = NULL`,
  saveIdentity:
    'INSERT INTO identity (only, document) VALUES (1, ?) ON CONFLICT (only) DO UPDATE SET document = excluded.document',
  savePolicy: `INSERT INTO policy (instance_id, revision, document, confirmed_at, confirmed_by) VALUES (?, ?, ?, ?, ?)
       ON CONFLICT (instance_id) DO UPDATE SET revision = excluded.revision, document = excluded.document,
         confirmed_at = excluded.confirmed_at, confirmed_by = excluded.confirmed_by`,
  confirmPolicy: `UPDATE policy SET confirmed_at = :time, confirmed_by = :segment
       WHERE instance_id = :instanceId AND revision = :revision`,
  // A device that is offline for long keeps all that have ended, to report them.
  sessions: `SELECT id, ended, since, document, snapshot FROM session
       WHERE ended = 0 OR id IN (SELECT id FROM session WHERE ended = 1 ORDER BY since DESC, id LIMIT +?) ORDER BY since, id`,
  unsealedSessions: 'SELECT id, snapshot FROM session WHERE unsealed = 1 ORDER BY ended = +:last, id LIMIT +:most',
  sealSession: 'UPDATE session SET unsealed = 0 WHERE id = ?',
  unsealSessions: 'UPDATE session SET unsealed = 1',
  deleteSessions: `DELETE FROM session WHERE id IN (
       SELECT id FROM session WHERE ended = 1 AND unsealed = 0 AND since < :before LIMIT +:most)`,
  deleteOldSessions: `DELETE FROM session WHERE id IN (
       SELECT id FROM session WHERE ended = 1 AND unsealed = 0 ORDER BY since DESC, id LIMIT -1 OFFSET ?)`,
  // Whole blocks.
  deleteEntries: `DELETE FROM block WHERE first_id IN (
       SELECT first_id FROM block WHERE first_id <= :last AND first_id + entries - 1 <= :last ORDER BY first_id LIMIT +:most)`,
  redateSegments: "UPDATE segment SET since = :now WHERE since > :now AND state = 'ACKNOWLEDGED'",
  deleteSegments: `DELETE FROM segment WHERE id IN (
       SELECT id FROM segment WHERE state <> 'UNACKNOWLEDGED' AND since < :before
         AND (retain_until IS NULL OR retain_until < :now)
         AND id NOT IN (${LAST_SEGMENT}) AND id NOT IN (${NEEDED_PROOFS}) AND id NOT IN (${SIGNED_STATE}) ORDER BY since LIMIT +:most)`,
  deleteOldestSegments: `DELETE FROM segment WHERE id IN (
       SELECT id FROM (
         SELECT id, sum(bytes) OVER (ORDER BY since, id) - bytes AS before FROM segment WHERE state = 'ACKNOWLEDGED')
       WHERE before < ?) AND NOT (final = 1 AND epoch = (SELECT epoch FROM state))
       AND id NOT IN (${NEEDED_PROOFS}) AND id NOT IN (${SIGNED_STATE})`,
  checkpoint: 'PRAGMA wal_checkpoint(PASSIVE)',
  truncateLog: 'PRAGMA wal_checkpoint(TRUNCATE)',
}

/** Of one column, whose values are read. */
const SINGLE_VALUES = {
  identity: 'SELECT document FROM identity',
  highestEpoch: 'SELECT max(epoch) FROM (SELECT epoch FROM state UNION ALL SELECT epoch FROM undelivered_ranges)',
  undeliveredRangesLeft: 'SELECT coalesce(sum(last_entry - acked_entry), 0) FROM undelivered_ranges',
  undeliveredRangesUnsealed: 'SELECT coalesce(sum(last_entry - sealed_entry), 0) FROM undelivered_ranges',
  undeliveredRangeEndsUnsealed: 'SELECT count(*) FROM undelivered_ranges WHERE end_sealed = 0',
  signedAnswers: signedAnswersSql,
  proofs: `SELECT answer FROM segment_document
         WHERE answer IS NOT NULL AND id IN (SELECT proof FROM account WHERE proof IS NOT NULL) ORDER BY id`,
  policyOf: `SELECT document FROM policy WHERE instance_id = :instanceId AND revision = :revision
       UNION ALL SELECT document FROM past_policy WHERE instance_id = :instanceId AND revision = :revision LIMIT 1`,
  segmentBytes: "SELECT coalesce(sum(bytes), 0) FROM segment WHERE state = 'ACKNOWLEDGED'",
  pages: 'PRAGMA page_count',
  freePages: 'PRAGMA freelist_count',
}

/** Of raw rows: SQLite prepares a PRAGMA on each run, and a row class would be compiled each time. */
const RAW_ROWS = {
  checkpointSize: 'PRAGMA wal_checkpoint(NOOP)',
}

export type JournalStatements = Readonly<
  Record<keyof typeof STATEMENTS | keyof typeof SINGLE_VALUES | keyof typeof RAW_ROWS, Statement>
>

const statements = new WeakMap<Database.Database, JournalStatements>()

/** Prepared once for each connection. */
export function statementsOf(database: Database.Database): JournalStatements {
  const known = statements.get(database) ?? prepareAll(database)
  statements.set(database, known)
  return known
}

function prepareAll(database: { prepare(sql: string): Statement }): JournalStatements {
  const all = new Map<string, Statement>()
  for (const [name, sql] of Object.entries(STATEMENTS)) all.set(name, database.prepare(sql))
  for (const [name, sql] of Object.entries(SINGLE_VALUES)) all.set(name, database.prepare(sql).pluck())
  for (const [name, sql] of Object.entries(RAW_ROWS)) all.set(name, database.prepare(sql).raw())
  return Object.fromEntries(all) as JournalStatements
}

export type StampValues = [
  bootId: string,
  sinceBoot: number,
  earliest: number,
  latest: number | null,
  grantAgedMs: number,
]

export function stampValues({ clock, grantAgedMs }: ClockStamp): StampValues {
  return [clock.bootId, Math.floor(clock.sinceBoot), clock.earliest, clock.latest, grantAgedMs]
}

export function grantOf(state: StateRow): StoredGrant | null {
  if (state.grant_term === null) return null
  return {
    term: Number(state.grant_term),
    lifetimeMs: Number(state.grant_lifetime_ms),
    expiresAt: Number(state.grant_expires_at),
    agedMs: Number(state.grant_aged_ms),
  }
}

export function clockOf(state: StateRow): StoredClock | null {
  if (state.clock_boot_id === null) return null
  return {
    bootId: state.clock_boot_id,
    sinceBoot: Number(state.clock_since_boot),
    earliest: Number(state.clock_earliest),
    latest: state.clock_latest === null ? null : Number(state.clock_latest),
  }
}

export function policyOf(row: PolicyRow): StoredPolicy {
  return {
    instanceId: row.instance_id,
    revision: Number(row.revision),
    document: row.document,
    confirmedAt: Number(row.confirmed_at),
  }
}

export function answerOf(row: AnswerRow): IdempotencyRecord {
  return {
    session: row.session,
    n: Number(row.n),
    requestHash: row.request_hash,
    answer: row.body,
    ...(row.status === 200n ? {} : { status: Number(row.status) }),
    policyRevision: Number(row.policy_revision),
  }
}

export function segmentOf(row: SegmentRow): SealedSegment {
  return {
    epoch: Number(row.epoch),
    seq: Number(row.seq),
    hash: row.hash,
    document: row.document,
    final: row.final === 1n,
    answer: row.answer,
  }
}
