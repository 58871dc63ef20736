/**
 * Reads the ledger of a device without disturbing it: from a copy of the database and its write-ahead log, because the agent
 * holds the files for itself while it runs. The file may be damaged, or made to harm: nothing of it is run, and its tables are
 * read only when they are exactly those that this version makes.
 */
import { createReadStream } from 'node:fs'
import { copyFile, mkdtemp, open, readFile, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { CodedError, firstProblem } from '../../../protocol/errors.ts'
import { type LedgerBundle, ledgerBundle } from '../../../protocol/local/ledger-bundle.ts'
import { APPLICATION_ID } from './open-database.ts'

/** How often a copy is begun anew because the agent has folded its log into the database meanwhile. */
const ATTEMPTS = 20

/** Bytes of the head of a write-ahead log: they change when it begins anew. */
const LOG_HEAD_BYTES = 32

const TABLES = ['state', 'identity', 'account', 'entry', 'segment', 'segment_document']

/** @throws CodedError LEDGER_UNREADABLE for a file that is not there, DATABASE_CORRUPT, DATABASE_NEWER */
export async function readLedger(path: string): Promise<LedgerBundle> {
  const folder = await mkdtemp(join(tmpdir(), 'tallygate-ledger-'))
  try {
    await copyStill(path, join(folder, 'journal.db'))
    return await readCopy(join(folder, 'journal.db'), path)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/** A copy in which database and log belong together: neither was written over while it was made. */
async function copyStill(path: string, to: string): Promise<void> {
  for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
    try {
      const head = await logHead(path)
      await copyFile(path, to)
      if (head === null) await rm(`${to}-wal`, { force: true })
      else await copyFile(`${path}-wal`, `${to}-wal`)
      if (head === (await logHead(path)) && (await same(path, to))) return
    } catch (cause) {
      throw new CodedError('LEDGER_UNREADABLE', `${path} cannot be read: ${messageOf(cause)}`, {
        cause,
        facts: { path },
      })
    }
  }
  throw new CodedError('LEDGER_UNREADABLE', `${path} does not hold still for long enough to be copied.`, {
    facts: { path },
  })
}

/** Null for none. */
async function logHead(path: string): Promise<string | null> {
  try {
    await using file = await open(`${path}-wal`, 'r')
    const { buffer, bytesRead } = await file.read(Buffer.alloc(LOG_HEAD_BYTES), 0, LOG_HEAD_BYTES, 0)
    return bytesRead === 0 ? null : buffer.toString('hex')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null
    throw error
  }
}

async function same(one: string, other: string): Promise<boolean> {
  const left = createReadStream(one)[Symbol.asyncIterator]()
  const right = createReadStream(other)[Symbol.asyncIterator]()
  for (;;) {
    const [a, b] = [await left.next(), await right.next()]
    if (a.done === true || b.done === true) return a.done === b.done
    if (!(a.value as Buffer).equals(b.value as Buffer)) return false
  }
}

async function readCopy(copy: string, path: string): Promise<LedgerBundle> {
  const corrupt = (why: string, cause?: unknown): CodedError =>
    new CodedError('DATABASE_CORRUPT', `${path}: ${why}`, { cause, facts: { path } })
  let database: Database.Database | undefined
  try {
    database = new Database(copy)
    database.defaultSafeIntegers(false)
    database.pragma('trusted_schema = OFF')
    database.pragma('cell_size_check = ON')
    if (database.pragma('application_id', { simple: true }) !== APPLICATION_ID) {
      throw corrupt('it is not the database of an agent')
    }
    await requireOwnTables(database, path)
    const parsed = ledgerBundle.safeParse(bundleOf(database))
    if (!parsed.success) throw corrupt(firstProblem(parsed.error, 'ledger'))
    return parsed.data
  } catch (error) {
    if (error instanceof CodedError) throw error
    throw corrupt(messageOf(error), error)
  } finally {
    database?.close()
  }
}

/** A view, or a column that computes itself, could keep a reader busy for ever. */
async function requireOwnTables(database: Database.Database, path: string): Promise<void> {
  const folder = new URL('./migrations/', import.meta.url)
  const names = (await readdir(folder)).filter((name) => name.endsWith('.sql')).sort()
  const version = database.pragma('user_version', { simple: true }) as number
  if (version > names.length) {
    throw new CodedError('DATABASE_NEWER', `${path} has schema ${version}; this version knows up to ${names.length}.`, {
      facts: { path },
    })
  }
  const own = new Database(':memory:')
  try {
    for (const name of names.slice(0, version)) own.exec(await readFile(new URL(name, folder), 'utf8'))
    for (const table of TABLES) {
      if (definitionOf(database, table) !== definitionOf(own, table))
        throw new Error(`the table ${table} is not as it was made`)
    }
  } finally {
    own.close()
  }
}

function definitionOf(database: Database.Database, table: string): unknown {
  return database.prepare("SELECT sql FROM sqlite_schema WHERE name = ? AND type = 'table'").pluck().get(table)
}

/** As it stands there; whether it has the form of a bundle is for the schema to say. */
function bundleOf(database: Database.Database): unknown {
  const identity = database.prepare('SELECT document FROM identity').pluck().get() as string | undefined
  const known = identity === undefined ? null : (JSON.parse(identity) as { deviceId?: unknown; trustedKeys?: unknown })
  return {
    format: 'tallygate-ledger',
    version: 1,
    deviceId: known?.deviceId ?? null,
    trustedKeys: known?.trustedKeys ?? [],
    state: database
      .prepare(
        `SELECT incarnation, entry_base AS entryBase, last_entry AS lastEntry, entry_head AS entryHead,
           sealed_entry AS sealedEntry, sealed_head AS sealedHead, acked_entry AS ackedEntry, acked_head AS ackedHead,
           last_seq AS lastSeq, segment_head AS segmentHead FROM state`,
      )
      .get(),
    accounts: database
      .prepare(
        `SELECT account.id AS account, CAST(granted AS TEXT) AS granted, CAST(used AS TEXT) AS used,
           CAST(refunded AS TEXT) AS refunded, CAST(returned AS TEXT) AS returned,
           CAST(allowance AS TEXT) AS allowance, metered,
           CAST(sealed_used AS TEXT) AS sealedUsed, CAST(sealed_refunded AS TEXT) AS sealedRefunded, answer AS proof
         FROM account LEFT JOIN segment_document ON segment_document.id = account.proof ORDER BY account.id`,
      )
      .all()
      .map((row) => ({ ...(row as object), metered: (row as { metered: unknown }).metered === 1 })),
    entries: database.prepare('SELECT id, n, body FROM entry ORDER BY id').all(),
    segments: database
      .prepare(
        `SELECT incarnation, seq, hash, state, document, answer FROM segment JOIN segment_document USING (id)
           ORDER BY incarnation, seq`,
      )
      .all(),
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
