import { statSync } from 'node:fs'
import { orNull } from './or-null.ts'

/** Files that this process has open. If another program removes or replaces one, writes to it are lost when the process ends. */
export class FilesInUse {
  readonly #identities: ReadonlyMap<string, string | null>

  constructor(paths: readonly string[]) {
    this.#identities = new Map(paths.map((path) => [path, identityOf(path)]))
  }

  /** The first that was removed or replaced; null: none. */
  removed(): string | null {
    return [...this.#identities.keys()].find((path) => this.isRemoved(path)) ?? null
  }

  /** Or replaced. */
  isRemoved(path: string): boolean {
    const now = identityOf(path)
    return now !== null && now !== this.#identities.get(path)
  }
}

/** Null: the system does not show it. */
function identityOf(path: string): string | null {
  return orNull(() => {
    const found = statSync(path, { throwIfNoEntry: false })
    return found === undefined ? 'none' : `${found.dev}:${found.ino}`
  })
}
