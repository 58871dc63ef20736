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

export function repair(observations: Observations): readonly Repair[] {
  const { directory, key, database, log, diskReserve, socket, settings, configuration } = observations
  const repairs: Repair[] = []
  const attempt = (what: string, work: () => void): void => {
    try {
      work()
      repairs.push({ what, done: true, problem: '' })
    } catch (error) {
      repairs.push({ what, done: false, problem: (error as Error).message })
    }
  }
  const attemptAsOwner = (what: string, target: string, work: () => void): void =>
    attempt(what, () => {
      const of = target === directory.path ? target : dirname(target)
      if (!configuration.filesOfMachine.includes(target)) refuseForeign(of, configuration.choice)
      using _rights = actAsOwnerOf(of)
      work()
    })
  const close = (
    file: FileObservation,
    { kind, forbidden, mode }: { kind: FileObservation['kind']; forbidden: number; mode: number },
  ): void => {
    if (file.kind !== kind || (file.mode & forbidden) === 0) return
    attemptAsOwner(`chmod 0${mode.toString(8)} ${file.path}`, file.path, () => chmodSync(file.path, mode))
  }
  const own = { forbidden: 0o077, mode: 0o600 }
  close(directory, { kind: 'directory', forbidden: 0o027, mode: 0o700 })
  for (const file of [database, log, diskReserve]) close(file, { kind: 'file', ...own })
  if (settings.device.keyFile === null) close(key, { kind: 'file', ...own })
  else close(key, { kind: 'file', forbidden: 0o007, mode: key.mode & 0o770 })
  for (const file of configuration.files) {
    const isSettings = file.path === configuration.file
    const [forbidden, kept] = isSettings ? [0o002, 0o775] : [0o007, 0o770]
    close(file, { kind: 'file', forbidden, mode: file.mode & kept })
  }

  if (socket.kind === 'socket') {
    const isLeft = isProblem(observations.agent) && observations.isListened === false
    const mode = Number.parseInt(settings.socket.mode, 8)
    if (isLeft)
      attemptAsOwner(`remove the socket ${socket.path}, on which no process listens`, socket.path, () =>
        unlinkSync(socket.path),
      )
    else if (socket.mode !== mode)
      attemptAsOwner(`chmod ${settings.socket.mode} ${socket.path}`, socket.path, () => chmodSync(socket.path, mode))
  }
  const { problem, quickCheck } = observations.inspected
  const isSound = database.kind === 'file' && problem === null && quickCheck === 'ok'
  if (!isProblem(observations.agent) || !isSound) return repairs
  if (diskReserve.kind !== 'file' || diskReserve.size < settings.state.diskReserve) {
    attemptAsOwner(`reserve ${settings.state.diskReserve} bytes in ${diskReserve.path}`, diskReserve.path, () =>
      underLock(database.path, () => {
        if (!new DiskReserve(diskReserve.path, settings.state.diskReserve).fill())
          throw new Error('there is not enough disk space')
      }),
    )
  }
  if (log.kind === 'file' && log.size > 0) {
    attemptAsOwner(`checkpoint the write-ahead log into ${database.path}`, database.path, () =>
      underLock(database.path, checkpointLog),
    )
  }
  return repairs
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
