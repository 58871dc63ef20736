/** `tallygate doctor --fix` never removes or rewrites anything that contains usage. */
import { chmodSync, chownSync, unlinkSync } from 'node:fs'
import Database from 'better-sqlite3'
import { DiskReserve } from '../../agent/platform/sqlite/disk-reserve.ts'
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
  const close = (file: FileObservation, kind: FileObservation['kind'], forbidden: number, mode: number): void => {
    if (file.kind !== kind || (file.mode & forbidden) === 0) return
    attempt(`chmod 0${mode.toString(8)} ${file.path}`, () => chmodSync(file.path, mode))
  }
  close(directory, 'directory', 0o027, 0o700)
  for (const file of [database, log, diskReserve]) close(file, 'file', 0o077, 0o600)
  if (settings.device.keyFile === null) close(key, 'file', 0o077, 0o600)
  else close(key, 'file', 0o007, key.mode & 0o770)
  for (const file of configuration.files) {
    const isSettings = file.path === configuration.file
    close(file, 'file', isSettings ? 0o002 : 0o007, file.mode & (isSettings ? 0o775 : 0o770))
  }

  if (socket.kind === 'socket') {
    const isLeft = isProblem(observations.agent) && observations.isListened === false
    const mode = Number.parseInt(settings.socket.mode, 8)
    if (isLeft) attempt(`remove the socket ${socket.path}, on which no process listens`, () => unlinkSync(socket.path))
    else if (socket.mode !== mode)
      attempt(`chmod ${settings.socket.mode} ${socket.path}`, () => chmodSync(socket.path, mode))
  }
  const { problem, quickCheck } = observations.inspected
  const isSound = database.kind === 'file' && problem === null && quickCheck === 'ok'
  if (!isProblem(observations.agent) || !isSound) return repairs
  if (diskReserve.kind !== 'file' || diskReserve.size < settings.state.diskReserve) {
    attempt(`reserve ${settings.state.diskReserve} bytes in ${diskReserve.path}`, () =>
      underLock(database.path, () => {
        if (!new DiskReserve(diskReserve.path, settings.state.diskReserve).fill())
          throw new Error('there is not enough disk space')
        if (observations.uid === 0) chownSync(diskReserve.path, database.uid, -1)
      }),
    )
  }
  if (log.kind === 'file' && log.size > 0) {
    attempt(`checkpoint the write-ahead log into ${database.path}`, () => underLock(database.path, checkpointLog))
  }
  return repairs
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
