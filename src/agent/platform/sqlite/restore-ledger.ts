/**
 * Restore of a backup. The restored ledger has no tokens and keeps every entry that the cloud may lack, from the backup and
 * from the replaced ledger if readable. Nothing replaced is deleted.
 */
import { existsSync, linkSync, renameSync, utimesSync } from 'node:fs'
import { dirname } from 'node:path'
import Database from 'better-sqlite3'
import { counted } from '../../../core/accounts/in-words.ts'
import { actAsOwnerOf } from '../../../platform/act-as-owner-of.ts'
import { lacksSpace } from '../../../platform/disk-space.ts'
import { CodedError, messageOf } from '../../../protocol/errors.ts'
import type { BootLog } from '../../ledger/volatile-log.ts'
import { withConsistentSnapshot } from './consistent-snapshot.ts'
import { loggedChain, mayBeOf } from './logged-chain.ts'
import { flushDirectoryOf, openDatabase, refusalOf } from './open-database.ts'
import { foldDatabase } from './pending-batches.ts'
import {
  type Bodies,
  type Salvage,
  type Undelivered,
  headAt,
  lastOf,
  lostOf,
  remove,
  salvageOf,
  salvaged,
} from './read-damaged.ts'
import { readLedgerCopy } from './read-ledger.ts'
import { requireIntegrity } from './require-integrity.ts'
import {
  asideOf,
  closeWhole,
  filled,
  finishSalvage,
  isSalvageUnfinished,
  lockLedger,
  refuseEmptied,
} from './salvage-journal.ts'

export interface Restored {
  /** Path of the replaced ledger; null: there was none. */
  readonly replaced: string | null
  readonly undelivered: number
  /** Undelivered entries of the replaced ledger found in neither; null: unknown. */
  readonly lost: number | null
  /** Of the device, as the restored ledger names it; null: not enrolled. */
  readonly keyId: string | null
}

export interface Replacement {
  /** Of the backup, used by no other process. */
  readonly copy: string
  readonly backup: string
  readonly path: string
  readonly wall: number
  readonly left: BootLog | null
}

export interface RestoreOptions {
  /** Entries that the agent answered and may not have written to its ledger; null: none. */
  readonly left?: BootLog | null
  /** Calls {@link replaceLedger}, also in another process. */
  readonly replace?: (replacement: Replacement) => Promise<Restored>
}

/**
 * @param path the agent's database; the agent must be stopped
 * @param wall POSIX ms; used only for the name of the kept file
 * @throws CodedError STATE_IN_USE, BACKUP_UNUSABLE, BACKUP_FOREIGN, RESERVATION_OPEN, DATABASE_CORRUPT, DATABASE_NEWER,
 * LEDGER_UNREADABLE, STATE_UNWRITABLE
 */
export async function restoreLedger(
  backup: string,
  path: string,
  wall: number,
  { left = null, replace = replaceLedger }: RestoreOptions = {},
): Promise<Restored> {
  return withConsistentSnapshot(backup, (copy) => replace({ copy, backup, path, wall, left }))
}

/** @throws CodedError as {@link restoreLedger} */
export async function replaceLedger({ copy, backup, path, wall, left }: Replacement): Promise<Restored> {
  await requireBackup(copy, backup)
  const database = new Database(copy, { readonly: true })
  try {
    const saved = salvageOfBackup(database, backup)
    using _rights = actAsOwnerOf(dirname(path))
    return replaceWith(saved, path, wall, left !== null && mayBeOf(left.log, saved.identity) ? left : null)
  } catch (error) {
    throw refusalOf(error, path)
  } finally {
    database.close()
  }
}

/** Its own code: the remedy of a damaged ledger is to restore a backup. @throws CodedError BACKUP_UNUSABLE */
async function requireBackup(copy: string, backup: string): Promise<void> {
  try {
    await readLedgerCopy(copy, backup, async () => undefined)
    requireIntegrity(copy, backup)
  } catch (error) {
    if (!(error instanceof CodedError) || error.code !== 'DATABASE_CORRUPT') throw error
    throw new CodedError('BACKUP_UNUSABLE', error.message, { cause: error, details: error.details })
  }
}

function replaceWith(saved: Salvage, path: string, wall: number, left: BootLog | null): Restored {
  using _lock = lockLedger(path)
  const opened = lockFinished(path)
  const fresh = `${path}.restoring`
  try {
    remove(fresh)
    const { salvage, made } = withSalvage(opened, path, left, (before) => {
      const both = merged(saved, before)
      return { salvage: both, made: filled(fresh, both, null) }
    })
    closeWhole(made)
    const replaced = replace(path, fresh, opened, wall)
    const undelivered = salvage.undelivered.reduce((sum, { bodies }) => sum + bodies.length, 0)
    return { replaced, undelivered, lost: salvage.lost, keyId: salvage.identity?.keyId ?? null }
  } finally {
    remove(fresh)
    if (typeof opened !== 'string') opened.close()
  }
}

/** Of a copy without pending entries, which can be read until it is closed. @throws CodedError BACKUP_UNUSABLE if an entry cannot be read */
function salvageOfBackup(copy: Database.Database, backup: string): Salvage {
  copy.defaultSafeIntegers(true)
  // Other rights may not look for its log again.
  copy.exec('BEGIN')
  const salvage = salvageOf(copy)
  if (salvage.lost === 0) return salvage
  const missing = salvage.lost === null ? 'its content' : counted(salvage.lost, 'entry', 'entries')
  throw new CodedError('BACKUP_UNUSABLE', `${backup}: ${missing} cannot be read.`, { details: { path: backup } })
}

type OpenedLedger = Database.Database | 'DAMAGED' | 'NONE'

/** Locks the ledger against agents and checkpoints it, so that one rename replaces it. */
function lock(path: string): OpenedLedger {
  let database: Database.Database | undefined
  try {
    // SQLite would delete its log. Empty alone, it is what is left of a ledger, too.
    refuseEmptied(path, [path])
    if (!existsSync(path)) return 'NONE'
    database = openDatabase(path)
    foldLocked(database, path)
    database.pragma('journal_mode = DELETE')
    database.exec('BEGIN EXCLUSIVE')
    return database
  } catch (error) {
    database?.close()
    if (error instanceof CodedError && error.code === 'DATABASE_CORRUPT') return 'DAMAGED'
    throw error
  }
}

function foldLocked(database: Database.Database, path: string): void {
  try {
    foldDatabase(database)
  } catch (cause) {
    if (lacksSpace(cause, path)) throw cause
    throw new CodedError('DATABASE_CORRUPT', `${path}: ${messageOf(cause)}`, { cause, details: { path } })
  }
}

function withSalvage<T>(
  opened: OpenedLedger,
  path: string,
  left: BootLog | null,
  use: (before: Salvage | null) => T,
): T {
  if (opened === 'NONE' && left === null) return use(null)
  if (typeof opened === 'string') return salvaged(path, left, use)
  // Reuses the locking connection: closing another one in this process would release the lock.
  const salvage = salvageOf(opened, loggedChain(left))
  if (!salvage.hasOpenReservations) return use(salvage)
  throw new CodedError('RESERVATION_OPEN', `${path} has open reservations whose usage may not be recorded yet.`, {
    details: { path },
  })
}

/** Finishes an interrupted salvage first: otherwise the agent's next start would replace the restored ledger. */
function lockFinished(path: string): OpenedLedger {
  const opened = lock(path)
  if (!isSalvageUnfinished(path)) return opened
  if (typeof opened !== 'string') opened.close()
  finishSalvage(path)
  return lock(path)
}

function replace(path: string, fresh: string, opened: OpenedLedger, wall: number): string | null {
  if (typeof opened !== 'string') {
    const aside = asideOf(path, 'replaced', wall)
    linkSync(path, aside)
    renameSync(fresh, path)
    flushDirectoryOf(path)
    return aside
  }
  // A log left behind would be applied to the new ledger: several renames, which the next start of the agent can finish.
  utimesSync(fresh, wall / 1_000, wall / 1_000)
  renameSync(fresh, `${path}.salvaged`)
  flushDirectoryOf(path)
  const aside = finishSalvage(path)
  return existsSync(aside) ? aside : null
}

/**
 * Takes all undelivered entries, and the rules of the current ledger, which are no older.
 * @throws CodedError BACKUP_FOREIGN
 */
function merged(backup: Salvage, before: Salvage | null): Salvage {
  // Sessions of a backup may have ended or been charged since.
  if (before === null) return { ...backup, sessions: [] }
  const [one, other] = [backup.identity?.deviceId, before.identity?.deviceId]
  if (one !== undefined && other !== undefined && one !== other) {
    throw new CodedError('BACKUP_FOREIGN', `The backup belongs to device ${one}, but this ledger to device ${other}.`)
  }
  const known = before.undelivered.filter(isProven)
  requireSameChains(backup.undelivered, known)
  const undelivered = backup.undelivered.reduce(withList, known)
  return {
    identity: before.identity ?? backup.identity,
    policies: before.policies.length > 0 ? before.policies : backup.policies,
    sessions: before.sessions,
    undelivered,
    lost: before.lost === null ? null : lostOf(before.undelivered, undelivered),
    hasOpenReservations: before.hasOpenReservations,
    answers: newestAnswers([...backup.answers, ...before.answers]),
  }
}

/** The last request of each application session, least recent first. A damaged ledger may lack those that the backup has. */
function newestAnswers(answers: Salvage['answers']): Salvage['answers'] {
  const newest = new Map<string, Salvage['answers'][number]>()
  for (const answer of answers) {
    if ((newest.get(answer.session)?.n ?? 0) > answer.n) continue
    newest.delete(answer.session)
    newest.set(answer.session, answer)
  }
  return [...newest.values()]
}

/** Without entries, the head that they follow may be damaged. */
function isProven({ bodies, isWhole }: Undelivered): boolean {
  return bodies.length > 0 || isWhole
}

/** An epoch can have several chains: it is enough that one is the same. @throws CodedError BACKUP_FOREIGN */
function requireSameChains(backup: readonly Undelivered[], before: readonly Undelivered[]): void {
  for (const [epoch, lists] of Map.groupBy(backup, (each) => each.epoch)) {
    const fits = new Set(lists.flatMap((each) => before.map((known) => fitOf(each, known))))
    if (fits.has('JOINS') || !fits.has('CONTRADICTS')) continue
    const message = `The backup and this ledger have different undelivered entries of epoch ${epoch}: they are of two copies of the device.`
    throw new CodedError('BACKUP_FOREIGN', message, { details: { epoch } })
  }
}

/** Joins it with those that it continues or overlaps. */
function withList(lists: readonly Undelivered[], added: Undelivered): readonly Undelivered[] {
  const others: Undelivered[] = []
  let all = added
  for (const each of lists) {
    if (fitOf(each, all) === 'JOINS') all = joined(each, all)
    else others.push(each)
  }
  return [...others, all]
}

/** `APART`: they cannot be compared. */
function fitOf(one: Undelivered, other: Undelivered): 'JOINS' | 'CONTRADICTS' | 'APART' {
  const [first, second] = inOrder(one, other)
  if (first.epoch !== second.epoch || lastOf(first) < second.ackedEntry) return 'APART'
  const n = Math.min(lastOf(first), lastOf(second))
  if (headAt(first, n) === headAt(second, n)) return 'JOINS'
  return first.bodies.length === 0 || second.bodies.length === 0 ? 'APART' : 'CONTRADICTS'
}

function inOrder(one: Undelivered, other: Undelivered): readonly [Undelivered, Undelivered] {
  return one.ackedEntry <= other.ackedEntry ? [one, other] : [other, one]
}

/** Entries before those of the other list may be delivered: the cloud bills nothing twice. */
function joined(one: Undelivered, other: Undelivered): Undelivered {
  const [first, second] = inOrder(one, other)
  if (lastOf(second) < lastOf(first)) return first
  const between = second.ackedEntry - first.ackedEntry
  const bodies: Bodies = {
    length: between + second.bodies.length,
    *[Symbol.iterator]() {
      yield* Iterator.from(first.bodies).take(between)
      yield* second.bodies
    },
  }
  const isWhole = second.isWhole || (first.isWhole && lastOf(first) === lastOf(second))
  return { ...second, ackedEntry: first.ackedEntry, ackedHead: first.ackedHead, bodies, isWhole }
}
