/** `tallygate doctor --fix` never removes or rewrites anything that contains usage. */
import { chmodSync, statSync, unlinkSync } from 'node:fs'
import { dirname } from 'node:path'
import Database from 'better-sqlite3'
import { DiskReserve } from '../../agent/platform/sqlite/disk-reserve.ts'
import { userOf } from '../../agent/platform/system/names.ts'
import { actAsOwnerOf } from '../../platform/act-as-owner-of.ts'
import type { Choice } from './sources.ts'
import { type Observations, type FileObservation, isProblem } from './observations.ts'

export interface Repair {
  readonly what: string
  readonly done: boolean
  readonly problem: string
}

const LOCK_PATIENCE_MS = 200

interface Step {
  readonly what: string
  /** The file or directory to repair, as its owner. */
  readonly target: string
  readonly work: () => void
}

export function repair(observations: Observations): readonly Repair[] {
  const steps = [
    ...permissionSteps(observations),
    ...socketSteps(observations),
    ...(mayWorkOnLedger(observations) ? ledgerSteps(observations) : []),
  ]
  return steps.map((step) => attempt(step, observations))
}

function attempt({ what, target, work }: Step, { directory, configuration }: Observations): Repair {
  const of = target === directory.path ? target : dirname(target)
  try {
    if (!configuration.filesOfMachine.includes(target)) refuseForeign(of, configuration.choice)
    using _rights = actAsOwnerOf(of)
    work()
    return { what, done: true, problem: '' }
  } catch (error) {
    return { what, done: false, problem: (error as Error).message }
  }
}

/** Permissions that a file or directory may not have, and the mode it gets if it has one of them. */
interface Limit {
  readonly kind: 'file' | 'directory'
  readonly forbidden: number
  readonly mode: number
}

const OWN_DIRECTORY: Limit = { kind: 'directory', forbidden: 0o027, mode: 0o700 }
const OWN_FILE: Limit = { kind: 'file', forbidden: 0o077, mode: 0o600 }

function permissionSteps(observations: Observations): readonly Step[] {
  const { directory, key, database, log, diskReserve, settings, configuration } = observations
  const keyLimit = settings.device.keyFile === null ? OWN_FILE : without(0o007, key)
  return [
    ...chmodSteps(directory, OWN_DIRECTORY),
    ...[database, log, diskReserve].flatMap((file) => chmodSteps(file, OWN_FILE)),
    ...chmodSteps(key, keyLimit),
    ...configuration.files.flatMap((file) =>
      chmodSteps(file, without(file.path === configuration.file ? 0o002 : 0o007, file)),
    ),
  ]
}

function without(forbidden: number, { mode }: FileObservation): Limit {
  return { kind: 'file', forbidden, mode: mode & ~forbidden }
}

function chmodSteps(file: FileObservation, { kind, forbidden, mode }: Limit): readonly Step[] {
  return file.kind === kind && (file.mode & forbidden) !== 0 ? [chmodStep(file.path, mode)] : []
}

function chmodStep(path: string, mode: number): Step {
  return { what: `chmod 0${mode.toString(8)} ${path}`, target: path, work: () => chmodSync(path, mode) }
}

function socketSteps({ socket, agent, isListened, settings }: Observations): readonly Step[] {
  const { path } = socket
  if (socket.kind !== 'socket') return []
  if (isProblem(agent) && isListened === false) {
    const what = `remove the socket ${path}, on which no process listens`
    return [{ what, target: path, work: () => unlinkSync(path) }]
  }
  const mode = Number.parseInt(settings.socket.mode, 8)
  return socket.mode === mode ? [] : [chmodStep(path, mode)]
}

/** Only while no agent responds, and only on a sound database. */
function mayWorkOnLedger({ agent, database, inspected }: Observations): boolean {
  const isSound = database.kind === 'file' && inspected.problem === null && inspected.quickCheck === 'ok'
  return isProblem(agent) && isSound
}

function ledgerSteps({ database, log, diskReserve, settings }: Observations): readonly Step[] {
  const reserved = settings.state.diskReserve
  const isReserved = diskReserve.kind === 'file' && diskReserve.size >= reserved
  const reserve: Step = {
    what: `reserve ${reserved} bytes in ${diskReserve.path}`,
    target: diskReserve.path,
    work: () =>
      underLock(database.path, () => {
        if (!new DiskReserve(diskReserve.path, reserved).fill()) throw new Error('there is not enough disk space')
      }),
  }
  const checkpoint: Step = {
    what: `checkpoint the write-ahead log into ${database.path}`,
    target: database.path,
    work: () => underLock(database.path, checkpointLog),
  }
  return [...(isReserved ? [] : [reserve]), ...(log.kind === 'file' && log.size > 0 ? [checkpoint] : [])]
}

/** The user of the process could name any file of root in its settings. */
function refuseForeign(directory: string, { process }: Choice): void {
  if (process === null || process.user === userOf(0)) return
  const { uid } = statSync(directory)
  const owner = userOf(uid) ?? String(uid)
  if (owner === process.user) return
  throw new Error(
    `${directory} belongs to ${owner}, but the settings are those of process ${process.pid} of ${process.user}. Give them to this command in TALLYGATE_AGENT_CONFIG, or repair it yourself`,
  )
}

/** Takes the same lock as the agent; throws if another process has the lock. */
function underLock(path: string, work: (database: Database.Database) => void): void {
  const database = new Database(path, { fileMustExist: true, timeout: LOCK_PATIENCE_MS })
  try {
    database.pragma('locking_mode = EXCLUSIVE')
    database.pragma('synchronous = FULL')
    // The first read takes the lock and keeps it.
    database.prepare('SELECT count(*) FROM sqlite_schema').get()
    work(database)
  } catch (error) {
    const isHeld = error instanceof Database.SqliteError && error.code.startsWith('SQLITE_BUSY')
    throw isHeld ? new Error('another process has locked the database', { cause: error }) : error
  } finally {
    database.close()
  }
}

function checkpointLog(database: Database.Database): void {
  const [result] = database.pragma('wal_checkpoint(TRUNCATE)') as { busy: number }[]
  if (result?.busy !== 0) throw new Error('another process reads the database')
}
