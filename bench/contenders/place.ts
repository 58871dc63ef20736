/** Where one start of a contender lives. */
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export interface Place {
  /** Empty, on the file system that all contenders share. */
  readonly directory: string
  /** Where to listen; apart, because the path of a socket may not be long. */
  readonly socketPath: string
  /** On tmpfs, where there is one: what is in it does not outlive the machine. */
  readonly volatileDirectory: string
}

const SHARED_MEMORY = '/dev/shm'

/** Makes a place below `parent`, and removes it whatever becomes of its use. */
export async function withPlace<T>(parent: string, use: (place: Place) => Promise<T>): Promise<T> {
  const directory = join(parent, 'state')
  mkdirSync(directory)
  const sockets = mkdtempSync(join(tmpdir(), 'tallygate-bench-'))
  const volatileParent = existsSync(SHARED_MEMORY) ? SHARED_MEMORY : tmpdir()
  const volatileDirectory = mkdtempSync(join(volatileParent, 'tallygate-bench-'))
  try {
    return await use({ directory, socketPath: join(sockets, 'socket'), volatileDirectory })
  } finally {
    rmSync(volatileDirectory, { recursive: true, force: true })
    rmSync(directory, { recursive: true, force: true })
    rmSync(sockets, { recursive: true, force: true })
  }
}
