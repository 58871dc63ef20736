/** The journal's SQL statements and row types. The caller owns transactions and decides which statements run together. */
import type Database from 'better-sqlite3'
import type {
  ClockStamp,
  IdempotencyRecord,
  SealedSegment,
  StoredClock,
  StoredGrant,
  StoredPolicy,
} from '../../ledger/journal.ts'

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

export type JournalStatements = ReturnType<typeof prepareStatements>

/** Prepared statements by connection. `LIMIT +?`, because SQLite plans a statement with `LIMIT ?` again at each execution. */
const prepared = new WeakMap<Database.Database, JournalStatements>()

export function statementsOf(database: Database.Database): JournalStatements {
  const statements = prepared.get(database) ?? prepareStatements(database)
  prepared.set(database, statements)
  return statements
}

function prepareStatements(database: { prepare(sql: string): Statement }) {
  return {
    state: database.prepare('SELECT * FROM state'),
    identity: database.prepare('SELECT document FROM identity').pluck(),
    policies: database.prepare('SELECT instance_id, revision, document, confirmed_at FROM policy ORDER BY instance_id'),
    highestEpoch: database
      .prepare('SELECT max(epoch) FROM (SELECT epoch FROM state UNION ALL SELECT epoch FROM undelivered_ranges)')
      .pluck(),
    salvages: database.prepare('SELECT * FROM salvage ORDER BY at'),
    accounts: database.prepare('SELECT * FROM account'),
    account: database.prepare('SELECT * FROM account WHERE id = ?'),
    movedAccounts: database.prepare('SELECT * FROM account WHERE used <> sealed_used OR refunded <> sealed_refunded'),
    returnedAccounts: database.prepare(
      `SELECT * FROM account
         WHERE used = sealed_used AND refunded = sealed_refunded AND returned <> sealed_returned`,
    ),
    answers: database.prepare(
      'SELECT session, n, request_hash, body, status, policy_revision FROM answer ORDER BY entry_id, slot',
    ),
    nextUndeliveredRange: database.prepare(
      'SELECT * FROM undelivered_ranges WHERE end_sealed = 0 ORDER BY epoch LIMIT 1',
    ),
    firstUndeliveredRange: database.prepare('SELECT * FROM undelivered_ranges ORDER BY epoch LIMIT 1'),
    allUndeliveredRanges: database.prepare('SELECT * FROM undelivered_ranges'),
    undeliveredRangesLeft: database
      .prepare('SELECT coalesce(sum(last_entry - acked_entry), 0) FROM undelivered_ranges')
      .pluck(),
    undeliveredRangesUnsealed: database
      .prepare('SELECT coalesce(sum(last_entry - sealed_entry), 0) FROM undelivered_ranges')
      .pluck(),
    undeliveredRangeEndsUnsealed: database
      .prepare('SELECT count(*) FROM undelivered_ranges WHERE end_sealed = 0')
      .pluck(),
    countUndeliveredRange: database.prepare(
      `INSERT INTO undelivered_range_account (epoch, id, used, refunded)
         SELECT (SELECT epoch FROM state), id, used, refunded FROM account WHERE used > 0`,
    ),
    uncountUndeliveredRange: database.prepare(
      `UPDATE undelivered_range_account SET used = used - ?, refunded = refunded - ?
         WHERE epoch = (SELECT epoch FROM state) AND id = ?`,
    ),
    unsealedCounts: database.prepare(
      'SELECT id, used, refunded FROM undelivered_range_account WHERE epoch = ? AND sealed = 0 ORDER BY id',
    ),
    sealCount: database.prepare('UPDATE undelivered_range_account SET sealed = 1 WHERE epoch = ? AND id = ?'),
    unsealCounts: database.prepare('UPDATE undelivered_range_account SET sealed = 0'),
    deleteCounts: database.prepare('DELETE FROM undelivered_range_account WHERE sealed = 1'),
    sealUndeliveredRange: database.prepare(
      `UPDATE undelivered_ranges SET sealed_entry = :entry, sealed_head = :head, end_sealed = :entry = last_entry
         WHERE epoch = :epoch`,
    ),
    ackUndeliveredRanges: database.prepare(
      'UPDATE undelivered_ranges SET acked_entry = sealed_entry, acked_head = sealed_head',
    ),
    unsealUndeliveredRanges: database.prepare(
      'UPDATE undelivered_ranges SET sealed_entry = acked_entry, sealed_head = acked_head, end_sealed = 0',
    ),
    deleteUndeliveredRanges: database.prepare('DELETE FROM undelivered_ranges WHERE end_sealed = 1'),
    insertUndeliveredRange: database.prepare(
      `INSERT INTO undelivered_ranges (epoch, entry_base, acked_entry, acked_head, sealed_entry, sealed_head, last_entry,
           last_head, whole, end_sealed)
         SELECT epoch, entry_base, :entry, :head, :entry, :head, last_entry, entry_head, :whole, 0 FROM state`,
    ),
    proveAccount: database.prepare(
      'UPDATE account SET proof = (SELECT id FROM segment WHERE seq = ? AND epoch = ?) WHERE id = ? AND granted = ?',
    ),
    proveGrant: database.prepare('UPDATE state SET grant_proof = (SELECT id FROM segment WHERE seq = ? AND epoch = ?)'),
    signedAnswers: database.prepare(signedAnswersSql).pluck(),
    proofs: database
      .prepare(
        `SELECT answer FROM segment_document
           WHERE answer IS NOT NULL AND id IN (SELECT proof FROM account WHERE proof IS NOT NULL) ORDER BY id`,
      )
      .pluck(),
    storeReceipt: database.prepare('UPDATE segment SET retain_until = ? WHERE seq = ? AND epoch = ?'),
    storeAnswerOf: database.prepare(
      'UPDATE segment_document SET answer = ? WHERE id = (SELECT id FROM segment WHERE seq = ? AND epoch = ?)',
    ),
    segment: database.prepare('SELECT * FROM segment JOIN segment_document USING (id) WHERE epoch = ? AND seq = ?'),
    segmentEarlier: database.prepare(
      `SELECT * FROM segment JOIN segment_document USING (id)
         WHERE epoch < ? AND (epoch, seq) > (?, ?) AND state = 'ACKNOWLEDGED' ORDER BY epoch, seq LIMIT 1`,
    ),
    segmentsNewestFirst: database.prepare(
      'SELECT seq, hash, document FROM segment JOIN segment_document USING (id) WHERE epoch = ? ORDER BY seq DESC',
    ),
    segmentInFlight: database.prepare(
      "SELECT * FROM segment JOIN segment_document USING (id) WHERE state = 'UNACKNOWLEDGED'",
    ),
    policyOf: database
      .prepare(
        `SELECT document FROM policy WHERE instance_id = :instanceId AND revision = :revision
         UNION ALL SELECT document FROM past_policy WHERE instance_id = :instanceId AND revision = :revision LIMIT 1`,
      )
      .pluck(),
    keepPolicy: database.prepare(
      `INSERT OR IGNORE INTO past_policy (instance_id, revision, document, bytes, last_entry_id)
         SELECT instance_id, revision, document, length(document), ? FROM policy
           WHERE instance_id = ? AND revision <> ?`,
    ),
    // Deletes policies that no kept entry was decided by; all of them if there are no entries.
    deletePolicies: database.prepare(
      'DELETE FROM past_policy WHERE last_entry_id + ? < (SELECT coalesce(min(first_id), 9223372036854775807) FROM block)',
    ),
    deleteLargePolicies: database.prepare(
      `DELETE FROM past_policy WHERE id IN (
         SELECT id FROM (SELECT id, sum(bytes) OVER (ORDER BY id DESC) AS total FROM past_policy) WHERE total > ?)`,
    ),
    saveClock: database.prepare(
      `UPDATE state SET clock_boot_id = ?, clock_since_boot = ?, clock_earliest = ?, clock_latest = ?,
         grant_aged_ms = CASE WHEN grant_term IS NULL THEN NULL ELSE ? END`,
    ),
    returnTokens: database.prepare(
      `UPDATE account SET returned = returned + ? WHERE id = ?
         RETURNING granted, used, refunded, returned, unlimited, allowance`,
    ),
    // A reservation counts as usage, because it may have been answered.
    settleAboveGrant: database.prepare(
      'UPDATE account SET allowance = 0 WHERE allowance > 0 AND max(used, reserved) - refunded + returned <= granted',
    ),
    // Removes returned tokens from the reservation; pending usage is below the remainder.
    shorten: database.prepare(
      'UPDATE account SET reserved = min(reserved, granted - returned + refunded - ?) WHERE id = ? AND unlimited = 0',
    ),
    limit: database.prepare(
      `UPDATE account SET unlimited = 0, allowance = max(allowance, used - refunded + returned - granted),
         reserved = min(reserved, max(used, granted - returned + refunded)) WHERE id = ?`,
    ),
    closeReservations: database.prepare('UPDATE account SET reserved = used WHERE reserved > used'),
    grantAccount: database.prepare(
      `INSERT INTO account (id, granted, exhausted, unlimited, overdraft) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET granted = max(granted, excluded.granted), exhausted = excluded.exhausted,
           unlimited = excluded.unlimited, overdraft = excluded.overdraft`,
    ),
    grant: database.prepare(
      'UPDATE state SET grant_term = ?, grant_lifetime_ms = ?, grant_expires_at = ?, grant_aged_ms = ?',
    ),
    sealAccount: database.prepare(
      'UPDATE account SET sealed_used = ?, sealed_refunded = ?, sealed_returned = ? WHERE id = ?',
    ),
    sealed: database.prepare('UPDATE state SET sealed_entry = ?, sealed_head = ?, last_seq = ?, segment_head = ?'),
    insertSegment: database.prepare(
      `INSERT INTO segment (epoch, seq, hash, final, last_entry_id, state, since, bytes)
         VALUES (?, ?, ?, ?, ?, 'UNACKNOWLEDGED', ?, ?)`,
    ),
    insertDocument: database.prepare('INSERT INTO segment_document (id, document) VALUES (?, ?)'),
    endSegment: database.prepare("UPDATE segment SET state = ?, since = ? WHERE state = 'UNACKNOWLEDGED'"),
    acked: database.prepare(
      'UPDATE state SET acked_entry = sealed_entry, acked_head = sealed_head, resends_earlier = ?',
    ),
    fence: database.prepare('UPDATE state SET fenced = 1'),
    deleteAccounts: database.prepare('DELETE FROM account'),
    attach: database.prepare(
      `UPDATE state SET epoch = :epoch, fenced = 0, entry_base = :base, last_entry = 0, entry_head = :start,
         sealed_entry = 0, sealed_head = :start, acked_entry = 0, acked_head = :start, last_seq = 0, segment_head = :start,
         resends_earlier = :resends, grant_term = NULL,
         grant_lifetime_ms = NULL, grant_expires_at = NULL, grant_aged_ms = NULL, grant_proof = NULL`,
    ),
    saveIdentity: database.prepare(
      'INSERT INTO identity (only, document) VALUES (1, ?) ON CONFLICT (only) DO UPDATE SET document = excluded.document',
    ),
    savePolicy: database.prepare(
      `INSERT INTO policy (instance_id, revision, document, confirmed_at, confirmed_by) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT (instance_id) DO UPDATE SET revision = excluded.revision, document = excluded.document,
           confirmed_at = excluded.confirmed_at, confirmed_by = excluded.confirmed_by`,
    ),
    confirmPolicy: database.prepare(
      `UPDATE policy SET confirmed_at = :time, confirmed_by = :segment
         WHERE instance_id = :instanceId AND revision = :revision`,
    ),
    sessions: database.prepare('SELECT id, ended, since, document, snapshot FROM session ORDER BY since, id'),
    unsealedSessions: database.prepare('SELECT id, snapshot FROM session WHERE unsealed = 1 ORDER BY id LIMIT +?'),
    sealSession: database.prepare('UPDATE session SET unsealed = 0 WHERE id = ?'),
    unsealSessions: database.prepare('UPDATE session SET unsealed = 1'),
    deleteSessions: database.prepare(
      `DELETE FROM session WHERE id IN (
         SELECT id FROM session WHERE ended = 1 AND unsealed = 0 AND since < :before LIMIT +:most)`,
    ),
    deleteOldSessions: database.prepare(
      `DELETE FROM session WHERE id IN (
         SELECT id FROM session WHERE ended = 1 AND unsealed = 0 ORDER BY since DESC, id LIMIT -1 OFFSET ?)`,
    ),
    // Whole blocks.
    deleteEntries: database.prepare(
      `DELETE FROM block WHERE first_id IN (
         SELECT first_id FROM block WHERE first_id <= :last AND first_id + entries - 1 <= :last ORDER BY first_id LIMIT +:most)`,
    ),
    redateSegments: database.prepare("UPDATE segment SET since = :now WHERE since > :now AND state = 'ACKNOWLEDGED'"),
    deleteSegments: database.prepare(
      `DELETE FROM segment WHERE id IN (
         SELECT id FROM segment WHERE state <> 'UNACKNOWLEDGED' AND since < :before
           AND (retain_until IS NULL OR retain_until < :now)
           AND id NOT IN (${LAST_SEGMENT}) AND id NOT IN (SELECT proof FROM account WHERE proof IS NOT NULL)
           AND id NOT IN (${SIGNED_STATE}) ORDER BY since LIMIT +:most)`,
    ),
    segmentBytes: database.prepare("SELECT coalesce(sum(bytes), 0) FROM segment WHERE state = 'ACKNOWLEDGED'").pluck(),
    deleteOldestSegments: database.prepare(
      `DELETE FROM segment WHERE id IN (
         SELECT id FROM (
           SELECT id, sum(bytes) OVER (ORDER BY since, id) - bytes AS before FROM segment WHERE state = 'ACKNOWLEDGED')
         WHERE before < ?) AND NOT (final = 1 AND epoch = (SELECT epoch FROM state))
         AND id NOT IN (SELECT proof FROM account WHERE proof IS NOT NULL) AND id NOT IN (${SIGNED_STATE})`,
    ),
    pages: database.prepare('PRAGMA page_count').pluck(),
    freePages: database.prepare('PRAGMA freelist_count').pluck(),
    // Raw rows: SQLite prepares a PRAGMA on each run, and a row class would be compiled each time.
    checkpointSize: database.prepare('PRAGMA wal_checkpoint(NOOP)').raw(),
    checkpoint: database.prepare('PRAGMA wal_checkpoint(PASSIVE)'),
    truncateLog: database.prepare('PRAGMA wal_checkpoint(TRUNCATE)'),
  }
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
