/**
 * Copies of a ledger, made while the agent runs, and what becomes of one that takes the place of a ledger. A restored ledger
 * holds no rights and keeps every entry that the cloud may lack: those of the backup and, where it can still be read, those of
 * the ledger that it replaces. Nothing that it replaces is deleted.
 */
import {
  chmodSync,
  chownSync,
  closeSync,
  existsSync,
  fsyncSync,
  linkSync,
  mkdtempSync,
  openSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import Database from 'better-sqlite3'
import { CodedError } from '../../../protocol/errors.ts'
import type { LedgerBundle } from '../../../protocol/local/ledger-bundle.ts'
import { flushDirectoryOf, openDatabase } from './open-database.ts'
import { readLedger, readLedgerCopy } from './read-ledger.ts'
import { fill, finishRescue } from './rescue.ts'
import { type Salvage, lostOf, salvageOf, salvaged } from './salvage.ts'
import { scratchAt } from '../system/scratch.ts'
import { copyStill } from './still-copy.ts'

/**
 * Writes one file that holds what the ledger held at some moment during the call; a file in its place is replaced at the end.
 * The folder of `to` takes two copies of the ledger meanwhile.
 *
 * @param path database of an agent, which may run
 * @returns what is in the copy, as a bundle that can be verified
 * @throws CodedError LEDGER_UNREADABLE, DATABASE_CORRUPT, DATABASE_NEWER, OUTPUT_UNWRITABLE
 */
export async function backUpLedger(path: string, to: string): Promise<LedgerBundle> {
  const unwritable = (cause: unknown): CodedError =>
    new CodedError('OUTPUT_UNWRITABLE', `${to} cannot be written: ${messageOf(cause)}`, { cause })
  const folder = atPlace(() => mkdtempSync(join(dirname(to), '.tallygate-backup-')), unwritable)
  const isGone = scratchAt(folder)
  try {
    const [copy, whole] = [join(folder, 'journal.db'), join(folder, 'backup.db')]
    await copyStill(path, copy)
    const bundle = await readLedgerCopy(copy, path)
    const database = new Database(copy)
    try {
      // As a SQL literal: a quote in it is doubled.
      atPlace(() => database.exec(`VACUUM INTO '${whole.replaceAll("'", "''")}'`), unwritable)
    } finally {
      database.close()
    }
    requireIntegrity(whole)
    atPlace(() => {
      chmodSync(whole, 0o600)
      flush(whole)
      renameSync(whole, to)
      flushDirectoryOf(to)
    }, unwritable)
    return bundle
  } finally {
    rmSync(folder, { recursive: true, force: true })
    isGone()
  }
}

export interface Restored {
  /** Where the ledger from before is kept; null: there was none. */
  readonly replaced: string | null
  /** Entries that go up as remnants. */
  readonly undelivered: number
  /** Entries that the ledger from before owed and that neither it nor the backup gives; null: nobody knows. */
  readonly lost: number | null
}

/**
 * Puts a backup in the place of a ledger.
 *
 * @param path database of the agent, which must not run
 * @param wall POSIX ms: it names the file that is kept, and decides nothing
 * @throws CodedError STATE_IN_USE, BACKUP_FOREIGN, BLOCK_OPEN, DATABASE_CORRUPT, DATABASE_NEWER, LEDGER_UNREADABLE,
 *   STATE_UNWRITABLE
 */
export async function restoreLedger(backup: string, path: string, wall: number): Promise<Restored> {
  await readLedger(backup)
  requireIntegrity(backup)
  const held = holdFinished(path)
  try {
    const before = salvageOfHeld(held, path)
    const salvage = merged(salvageOfBackup(backup), before)
    const fresh = `${path}.restoring`
    for (const suffix of ['', '-wal', '-shm']) rmSync(`${fresh}${suffix}`, { force: true })
    const database = openDatabase(fresh)
    try {
      fill(database, salvage, null)
    } finally {
      database.close()
    }
    own(fresh, path)
    const replaced = replace(path, fresh, held, wall)
    const undelivered = salvage.undelivered.reduce((sum, { bodies }) => sum + bodies.length, 0)
    return { replaced, undelivered, lost: salvage.lost }
  } finally {
    if (typeof held !== 'string') held.close()
  }
}

/** Returns the new name of the file; what belongs to it goes with it. */
function putAside(path: string, wall: number): string {
  const aside = asideOf(path, wall)
  // The log first: a database that is opened without it, half way through, is only older.
  for (const suffix of ['-journal', '-shm', '-wal', '']) {
    if (existsSync(`${path}${suffix}`)) renameSync(`${path}${suffix}`, `${aside}${suffix}`)
  }
  flushDirectoryOf(path)
  return aside
}

/** A name that nothing has. */
function asideOf(path: string, wall: number): string {
  const stamp = new Date(wall).toISOString().replaceAll(/[:.]/g, '-')
  let aside = `${path}.replaced-${stamp}`
  for (let n = 2; existsSync(aside); n += 1) aside = `${path}.replaced-${stamp}-${n}`
  return aside
}

/** All of it or nothing: what cannot be read must not be found missing later. @throws CodedError DATABASE_CORRUPT */
function salvageOfBackup(backup: string): Salvage {
  const database = new Database(backup, { readonly: true })
  try {
    database.defaultSafeIntegers(true)
    const salvage = salvageOf(database)
    if (salvage.lost === 0) return salvage
    const missing = salvage.lost === null ? 'what it holds' : `${salvage.lost} entries`
    throw new CodedError('DATABASE_CORRUPT', `${backup}: ${missing} cannot be read.`, { facts: { path: backup } })
  } finally {
    database.close()
  }
}

type Held = Database.Database | 'DAMAGED' | 'NONE'

/** No agent can open the ledger while it is held; in one file, so that its name is all that has to change. */
function hold(path: string): Held {
  if (!existsSync(path)) return 'NONE'
  try {
    const database = openDatabase(path)
    database.pragma('journal_mode = DELETE')
    database.exec('BEGIN EXCLUSIVE')
    return database
  } catch (error) {
    if (error instanceof CodedError && error.code === 'DATABASE_CORRUPT') return 'DAMAGED'
    throw error
  }
}

/** Null where there is no ledger. */
function salvageOfHeld(held: Held, path: string): Salvage | null {
  if (held === 'NONE') return null
  // Through the connection that holds it: closing another one of this process would let go of it.
  if (held === 'DAMAGED') return salvaged(path)
  const salvage = salvageOf(held)
  if (!salvage.hasOpenBlocks) return salvage
  throw new CodedError('BLOCK_OPEN', `${path} has reserved rights of which use may not be recorded yet.`, {
    facts: { path },
  })
}

/** A rescue that was not finished is first: at the next start of the agent it would take the place of what is restored. */
function holdFinished(path: string): Held {
  const held = hold(path)
  if (!existsSync(`${path}.rescued`)) return held
  if (typeof held !== 'string') held.close()
  finishRescue(path)
  return hold(path)
}

function replace(path: string, fresh: string, held: Held, wall: number): string | null {
  let aside: string | null = null
  // A log that stays behind would be taken for one of the ledger that comes.
  if (typeof held === 'string') {
    const found = putAside(path, wall)
    if (existsSync(found)) aside = found
  } else {
    aside = asideOf(path, wall)
    linkSync(path, aside)
  }
  renameSync(fresh, path)
  flushDirectoryOf(path)
  return aside
}

/** Of one incarnation the longer account: one is the beginning of the other. The rules of the ledger in place are no older. */
function merged(backup: Salvage, before: Salvage | null): Salvage {
  // Those of a backup may have ended since, or have been charged on.
  if (before === null) return { ...backup, sessions: [] }
  const [one, other] = [backup.identity?.deviceId, before.identity?.deviceId]
  if (one !== undefined && other !== undefined && one !== other) {
    throw new CodedError('BACKUP_FOREIGN', `The backup is of the device ${one}, this ledger of ${other}.`)
  }
  const byIncarnation = new Map(before.undelivered.map((each) => [each.incarnation, each]))
  for (const each of backup.undelivered) {
    const known = byIncarnation.get(each.incarnation)
    if (known !== undefined && lastOf(each) <= lastOf(known)) continue
    byIncarnation.set(each.incarnation, { ...each, lastEntry: Math.max(each.lastEntry, known?.lastEntry ?? 0) })
  }
  const undelivered = [...byIncarnation.values()].toSorted((a, b) => a.incarnation - b.incarnation)
  return {
    identity: before.identity ?? backup.identity,
    policies: before.policies.length > 0 ? before.policies : backup.policies,
    sessions: before.sessions,
    undelivered,
    lost: before.lost === null ? null : lostOf(undelivered),
    hasOpenBlocks: before.hasOpenBlocks,
    answers: before.answers,
  }
}

function lastOf({ ackedEntry, bodies }: Salvage['undelivered'][number]): number {
  return ackedEntry + bodies.length
}

/** A ledger that root restores belongs to whom the directory belongs to. */
function own(fresh: string, path: string): void {
  const { uid, gid } = statSync(dirname(path))
  if (process.getuid?.() === 0) chownSync(fresh, uid, gid)
}

/** @throws CodedError DATABASE_CORRUPT */
function requireIntegrity(path: string): void {
  const corrupt = (why: string, cause?: unknown): CodedError =>
    new CodedError('DATABASE_CORRUPT', `${path}: ${why}`, { cause, facts: { path } })
  let database: Database.Database | undefined
  try {
    database = new Database(path, { readonly: true })
    const verdict = database.pragma('integrity_check(1)', { simple: true })
    if (verdict !== 'ok') throw corrupt(`the integrity check says: ${String(verdict)}`)
  } catch (error) {
    throw error instanceof CodedError ? error : corrupt(messageOf(error), error)
  } finally {
    database?.close()
  }
}

function flush(path: string): void {
  const file = openSync(path, 'r')
  try {
    fsyncSync(file)
  } finally {
    closeSync(file)
  }
}

function atPlace<T>(work: () => T, coded: (cause: unknown) => CodedError): T {
  try {
    return work()
  } catch (cause) {
    throw coded(cause)
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
