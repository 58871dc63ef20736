/** Temporary files of a command. They are removed when it finishes or exits early, but not when it is killed. */
import { rmSync } from 'node:fs'

const scratch = new Set<string>()

const clear = (): void => {
  for (const path of scratch) rmSync(path, { recursive: true, force: true })
}

/** Removes the path at process exit. Call the returned function once the path is gone or final. */
export function scratchAt(path: string): () => void {
  if (scratch.size === 0) process.once('exit', clear)
  scratch.add(path)
  return () => {
    scratch.delete(path)
    if (scratch.size === 0) process.off('exit', clear)
  }
}
