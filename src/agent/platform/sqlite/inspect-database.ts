/** Diagnoses the agent's database from a copy. A damaged or foreign file is a finding, not an error. */
import { stat, statfs } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import Database from 'better-sqlite3'
import { integrityOf } from '../../../platform/sqlite.ts'
import { CodedError, messageOf } from '../../../protocol/errors.ts'
import { unverifiedText } from '../../../protocol/signing.ts'
import type { Identity, SalvageRecord } from '../../ledger/journal.ts'
import { APPLICATION_ID, migrations } from './open-database.ts'
import { foldDatabase } from './pending-batches.ts'
import { orNull } from '../../../platform/or-null.ts'
import { withConsistentSnapshot } from './consistent-snapshot.ts'

export interface InspectedDatabase {
  readonly problem: { readonly code: string; readonly message: string } | null
  /** Result of SQLite's quick_check: `ok` or its findings; null if the file could not be opened. */
  readonly quickCheck: string | null
  readonly schema: number | null
  readonly knownSchema: number
  readonly tables: string | null
  readonly identity: Identity | null
  readonly state: Readonly<Record<string, number | string | null>> | null
  readonly policies: readonly {
    readonly instanceId: string
    readonly revision: number
    readonly confirmedAt: number
    /** From the signed document, unverified; null if unreadable. */
    readonly name: string | null
    readonly issuedAt: number | null
    readonly usableForMs: number | null
    readonly engine: number | null
    readonly oldestEngine: number | null
  }[]
  readonly salvages: readonly SalvageRecord[]
}

export async function inspectDatabase(path: string): Promise<InspectedDatabase> {
  try {
    await requireDiskSpace(path)
    return await withConsistentSnapshot(path, async (copy) => inspect(copy))
  } catch (error) {
    const code = error instanceof CodedError ? error.code : 'DATABASE_CORRUPT'
    return notInspected({ code, message: messageOf(error) })
  }
}

/** Of a database that is not read, for this reason. */
export function notInspected(problem: InspectedDatabase['problem']): InspectedDatabase {
  const nothing = { quickCheck: null, schema: null, tables: null, identity: null, state: null }
  return { ...nothing, knownSchema: migrations().length, problem, policies: [], salvages: [] }
}

/** The copy must not fill the device's disk. */
async function requireDiskSpace(path: string): Promise<void> {
  const size = await sizeOf(path)
  const wal = await sizeOf(`${path}-wal`)
  const { bavail, blocks, bsize } = await statfs(tmpdir())
  const free = bavail * bsize
  // File systems such as ramfs report no size.
  if (blocks === 0 || 2 * (size + wal) <= free) return
  const message = `the copy needs ${size + wal} bytes, but ${tmpdir()} has ${free} free; set TMPDIR to a directory with more space`
  throw new CodedError('LEDGER_UNREADABLE', message)
}

async function sizeOf(path: string): Promise<number> {
  return stat(path).then(
    ({ size }) => size,
    () => 0,
  )
}

const STATE = `SELECT *, last_entry - acked_entry
  + (SELECT coalesce(sum(last_entry - acked_entry), 0) FROM undelivered_ranges) AS backlog,
  (SELECT count(*) FROM account WHERE reserved > used) AS open_reservations FROM state`

function inspect(copy: string): InspectedDatabase {
  const database = new Database(copy)
  try {
    database.pragma('trusted_schema = OFF')
    const id = database.pragma('application_id', { simple: true })
    const quickCheck = integrityOf(database, 'quick_check')
    const schema = database.pragma('user_version', { simple: true }) as number
    const isEmpty = database.pragma('page_count', { simple: true }) === 0
    const foreign = isEmpty ? 'the file is empty' : 'the file is the database of another program'
    // Entries that are pending belong to the state.
    orNull(() => foldDatabase(database))
    const text = orNull(() => database.prepare('SELECT document FROM identity').pluck().get() as string | undefined)
    return {
      problem: id === APPLICATION_ID ? null : { code: 'DATABASE_CORRUPT', message: foreign },
      quickCheck,
      schema,
      knownSchema: migrations().length,
      tables: orNull(() =>
        database.prepare('SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name').pluck().all().join(';\n'),
      ),
      identity: orNull(() => (text === undefined || text === null ? null : (JSON.parse(text) as Identity))),
      state: orNull(() => database.prepare(STATE).get() as Readonly<Record<string, number | string | null>>),
      policies: orNull(() => policiesOf(database)) ?? [],
      salvages: orNull(() => salvagesOf(database)) ?? [],
    }
  } finally {
    database.close()
  }
}

function policiesOf(database: Database.Database): InspectedDatabase['policies'] {
  const rows = database
    .prepare(
      'SELECT instance_id AS instanceId, revision, confirmed_at AS confirmedAt, document FROM policy ORDER BY instance_id',
    )
    .all() as { instanceId: string; revision: number; confirmedAt: number; document: string }[]
  return rows.map(({ document: signed, ...row }) => {
    try {
      const text = unverifiedText(signed) ?? ''
      const document = JSON.parse(text) as Readonly<Record<string, unknown>>
      const { instanceName, issuedAt, usableForMs, engine, oldestEngine } = document
      return {
        ...row,
        name: typeof instanceName === 'string' ? instanceName : null,
        issuedAt: numberOf(issuedAt),
        usableForMs: numberOf(usableForMs),
        engine: numberOf(engine),
        oldestEngine: numberOf(oldestEngine),
      }
    } catch {
      return { ...row, name: null, issuedAt: null, usableForMs: null, engine: null, oldestEngine: null }
    }
  })
}

function numberOf(value: unknown): number | null {
  return typeof value === 'number' ? value : null
}

function salvagesOf(database: Database.Database): readonly SalvageRecord[] {
  return database
    .prepare(
      'SELECT at, file, why, salvaged_entries AS salvagedEntries, lost_entries AS lostEntries FROM salvage ORDER BY at',
    )
    .all() as SalvageRecord[]
}
