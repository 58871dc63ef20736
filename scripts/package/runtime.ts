/**
 * The Node that ships with the package: the binary of the same version that the tests run on, for another machine too. Its archive is
 * held against a checksum in the repository, whatever the registry says.
 */
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { outputOf } from './output-of.ts'
import runtime from './runtime.json' with { type: 'json' }

export type Architecture = keyof typeof runtime.packages

export const ARCHITECTURES = Object.keys(runtime.packages) as readonly Architecture[]

/** Path of the archive, fetched at most once into the folder. */
export async function runtimeArchive(folder: string, architecture: Architecture): Promise<string> {
  const { name, integrity } = runtime.packages[architecture]
  const archive = join(folder, `${name}-${runtime.version}.tgz`)
  if (!existsSync(archive)) {
    mkdirSync(folder, { recursive: true })
    await outputOf('npm', ['pack', '--silent', '--pack-destination', folder, `${name}@${runtime.version}`])
  }
  const found = `sha512-${createHash('sha512').update(readFileSync(archive)).digest('base64')}`
  if (found !== integrity) throw new Error(`${archive} has the checksum ${found}, not ${integrity}`)
  return archive
}
