import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export interface Place {
  /** Empty, on a file system shared by all contenders. */
  readonly directory: string
  /** Separate: socket paths have a short limit. */
  readonly socketPath: string
  readonly volatileDirectory: string
}

const SHARED_MEMORY = '/dev/shm'

/** Creates a place below `parent` and always removes it. */
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
