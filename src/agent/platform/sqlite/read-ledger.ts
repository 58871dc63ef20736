/** The file may be malicious: nothing in it is executed, and its tables must match this version's schema exactly. */
import Database from 'better-sqlite3'
import type { z } from 'zod'
import type { EntryBodyWire } from '../../../protocol/edge/sync.ts'
import { CodedError, firstProblem, messageOf } from '../../../protocol/errors.ts'
import { databaseFailure } from '../../../platform/database-failure.ts'
import { lacksSpace } from '../../../platform/disk-space.ts'
import { type LedgerBundle, ledgerBundle } from '../../../protocol/local/ledger-bundle.ts'
import type { Identity, RecordedEntry } from '../../ledger/journal.ts'
import type { ReadableLedger } from '../../ledger/verify-ledger.ts'
import { ENTRY_ID_MAX, entriesBefore, entriesBetween } from './entry-blocks.ts'
import { type PolicyRow, policyOf, signedAnswersSql } from './journal-statements.ts'
import { APPLICATION_ID, hasSchema, requireKnownSchema } from './open-database.ts'
import { foldDatabase } from './pending-batches.ts'
import { withConsistentSnapshot } from './consistent-snapshot.ts'

type Use<T> = (ledger: ReadableLedger) => Promise<T>

/**
 * Calls `use` with the ledger, which can be read until it resolves.
 * @throws CodedError LEDGER_UNREADABLE if the file is missing, DATABASE_CORRUPT, DATABASE_NEWER
 */
export async function readLedger<T>(path: string, use: Use<T>): Promise<T> {
  return withConsistentSnapshot(path, (copy) => readLedgerCopy(copy, path, use))
}

/** A copy that no other process uses. @param name for messages. @throws CodedError DATABASE_CORRUPT, DATABASE_NEWER */
export async function readLedgerCopy<T>(copy: string, name: string, use: Use<T>): Promise<T> {
  return readCopy(copy, name, (database) => use(ledgerFrom(database)))
}

/** A copy that no other process uses, of the database at `path`. */
export interface LedgerSearch {
  readonly copy: string
  readonly path: string
  readonly correlationId: string
}

/**
 * The newest entry with this correlation id; null: none.
 * @param find calls {@link findInCopy}, also in another process
 * @throws CodedError as {@link readLedger}
 */
export async function findInLedger(
  path: string,
  correlationId: string,
  find: (search: LedgerSearch) => Promise<RecordedEntry | null> = findInCopy,
): Promise<RecordedEntry | null> {
  return withConsistentSnapshot(path, (copy) => find({ copy, path, correlationId }))
}

/** @throws CodedError DATABASE_CORRUPT, DATABASE_NEWER */
export async function findInCopy({ copy, path, correlationId }: LedgerSearch): Promise<RecordedEntry | null> {
  return readCopy(copy, path, async (database) => entryFrom(database, correlationId))
}

async function readCopy<T>(copy: string, path: string, read: (database: Database.Database) => Promise<T>): Promise<T> {
  const corrupt = (why: string, cause?: unknown): CodedError =>
    new CodedError('DATABASE_CORRUPT', `${path}: ${why}`, { cause, details: { path } })
  let database: Database.Database | undefined
  try {
    database = new Database(copy)
    database.pragma('trusted_schema = OFF')
    database.pragma('cell_size_check = ON')
    if (database.pragma('application_id', { simple: true }) !== APPLICATION_ID) {
      throw corrupt('the file is not an agent database')
    }
    // Triggers, views and other tables could run code of the file or keep a reader busy forever.
    if (!hasSchema(database, requireKnownSchema(database, path))) {
      throw corrupt("the tables differ from this version's schema")
    }
    foldDatabase(database)
    return await read(database)
  } catch (error) {
    if (error instanceof CodedError || lacksSpace(error, copy)) throw error
    throw databaseFailure(error, copy) ?? corrupt(messageOf(error), error)
  } finally {
    database?.close()
  }
}

function ledgerFrom(database: Database.Database): ReadableLedger {
  return {
    ...parsed(ledgerBundle, bundleOf(database), 'ledger'),
    entries: { [Symbol.iterator]: () => entriesFrom(database) },
    segments: { [Symbol.iterator]: () => segmentsFrom(database) },
  }
}

function* entriesFrom(database: Database.Database): Generator<LedgerBundle['entries'][number], undefined> {
  for (const { id, n, body } of entriesBetween(database, 0n, ENTRY_ID_MAX)) {
    yield parsed(ledgerBundle.shape.entries.element, { id: Number(id), n: Number(n), body }, 'entry')
  }
}

function* segmentsFrom(database: Database.Database): Generator<LedgerBundle['segments'][number], undefined> {
  const ids = database
    .prepare('SELECT id FROM segment JOIN segment_document USING (id) ORDER BY epoch, seq')
    .pluck()
    .all()
  const segment = database.prepare(
    'SELECT epoch, seq, hash, state, document, answer FROM segment JOIN segment_document USING (id) WHERE id = ?',
  )
  for (const id of ids) yield parsed(ledgerBundle.shape.segments.element, segment.get(id), 'segment')
}

function parsed<S extends z.ZodType>(form: S, value: unknown, name: string): z.output<S> {
  const result = form.safeParse(value)
  if (!result.success) throw new Error(firstProblem(result.error, name))
  return result.data
}

function entryFrom(database: Database.Database, correlationId: string): RecordedEntry | null {
  for (const { body, inputs } of entriesBefore(database, ENTRY_ID_MAX)) {
    if (!body.includes(correlationId)) continue
    const { correlationId: id, instanceId, policyRevision } = JSON.parse(body) as Partial<EntryBodyWire>
    if (id !== correlationId) continue
    const rules = database
      .prepare(
        `SELECT document FROM policy WHERE instance_id = :instanceId AND revision = :policyRevision
         UNION ALL SELECT document FROM past_policy WHERE instance_id = :instanceId AND revision = :policyRevision`,
      )
      .pluck()
      .get({ instanceId, policyRevision }) as string | undefined
    return { body, inputs, rules: rules ?? null, trustedKeys: identityOf(database)?.trustedKeys ?? [] }
  }
  return null
}

function identityOf(database: Database.Database): Partial<Identity> | null {
  const text = database.prepare('SELECT document FROM identity').pluck().get() as string | undefined
  return text === undefined ? null : (JSON.parse(text) as Partial<Identity>)
}

function bundleOf(database: Database.Database): unknown {
  const known = identityOf(database)
  return {
    format: 'tallygate-ledger',
    version: 1,
    deviceId: known?.deviceId ?? null,
    trustedKeys: known?.trustedKeys ?? [],
    formerKeys: known?.formerKeys ?? [],
    grant:
      database
        .prepare(
          `SELECT grant_term AS term, grant_lifetime_ms AS lifetimeMs, grant_expires_at AS expiresAt,
             coalesce(grant_aged_ms, 0) AS agedMs FROM state WHERE grant_term IS NOT NULL`,
        )
        .get() ?? null,
    signedAnswers: database.prepare(signedAnswersSql).pluck().all(),
    policies: database
      .prepare('SELECT * FROM policy ORDER BY instance_id')
      .all()
      .map((row) => policyOf(row as PolicyRow)),
    pastPolicies: database.prepare('SELECT document FROM past_policy ORDER BY id').pluck().all(),
    state: database
      .prepare(
        `SELECT epoch, entry_base AS entryBase, last_entry AS lastEntry, entry_head AS entryHead,
           sealed_entry AS sealedEntry, sealed_head AS sealedHead, acked_entry AS ackedEntry, acked_head AS ackedHead,
           last_seq AS lastSeq, segment_head AS segmentHead FROM state`,
      )
      .get(),
    accounts: database
      .prepare(
        `SELECT account.id AS account, CAST(granted AS TEXT) AS granted, CAST(used AS TEXT) AS used,
           CAST(refunded AS TEXT) AS refunded, CAST(returned AS TEXT) AS returned,
           CAST(allowance AS TEXT) AS allowance, unlimited, exhausted, CAST(overdraft AS TEXT) AS overdraft,
           CAST(sealed_used AS TEXT) AS sealedUsed, CAST(sealed_refunded AS TEXT) AS sealedRefunded,
           CAST(sealed_returned AS TEXT) AS sealedReturned
         FROM account ORDER BY id`,
      )
      .all()
      .map((row) => {
        const { unlimited, exhausted, ...amounts } = row as { unlimited: unknown; exhausted: unknown }
        return { ...amounts, unlimited: unlimited === 1, exhausted: exhausted === 1 }
      }),
    entries: [],
    segments: [],
  }
}
