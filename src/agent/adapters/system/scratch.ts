/**
 * What a command keeps on the disk only while it works: copies of a ledger, files that are not whole yet. It is gone when
 * the work ends, and also when the process is ended in the middle of it, unless by a kill.
 */
import { rmSync } from 'node:fs'

const scratch = new Set<string>()

const clear = (): void => {
  for (const path of scratch) rmSync(path, { recursive: true, force: true })
}

/** Has the path removed with the process; call what is returned as soon as it is gone, or has become something to stay. */
export function scratchAt(path: string): () => void {
  if (scratch.size === 0) process.once('exit', clear)
  scratch.add(path)
  return () => {
    scratch.delete(path)
    if (scratch.size === 0) process.off('exit', clear)
  }
}
