/** Scalar, the script that shows the API documents. */
import { hash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'

export interface ScalarScript {
  /** Compressed by gzip. */
  readonly bytes: Buffer
  /** Differs for every version. */
  readonly version: string
}

/** Reads the file that `npm run build` has written; a clone has none and uses the package. */
export async function loadScalarScript(): Promise<ScalarScript> {
  const file = new URL('./scalar.js.gz', import.meta.url)
  const bytes = existsSync(file) ? await readFile(file) : await (await import('./scalar-package.ts')).scriptOfPackage()
  return { bytes, version: hash('sha256', bytes).slice(0, 16) }
}
