/** Where one start of a contender lives. */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export interface Place {
  /** Empty, on the file system that all contenders share. */
  readonly directory: string
  /** Where to listen; apart, because the path of a socket may not be long. */
  readonly socketPath: string
}

/** Makes a place below `parent`, and removes it whatever becomes of its use. */
export async function withPlace<T>(parent: string, use: (place: Place) => Promise<T>): Promise<T> {
  const directory = join(parent, 'state')
  mkdirSync(directory)
  const sockets = mkdtempSync(join(tmpdir(), 'tallygate-bench-'))
  try {
    return await use({ directory, socketPath: join(sockets, 'socket') })
  } finally {
    rmSync(directory, { recursive: true, force: true })
    rmSync(sockets, { recursive: true, force: true })
  }
}
