/** The program as the Debian package installs it, with its own runtime. */
import { lstatSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { layApplication } from '../../scripts/package/application.ts'
import { outputOf } from '../../scripts/package/output-of.ts'
import { ARCHITECTURES } from '../../scripts/package/runtime.ts'
import type { Command } from './agent.ts'

/** As the package installs it. */
const HOME = '/usr/lib/tallygate'

export interface Installation {
  readonly command: Command
  readonly node: string
  /** Of all files, bytes. */
  readonly size: number
}

/**
 * @param home an installation; null: builds one
 * @param work an existing folder for what is built
 */
export async function installation(home: string | null, work: string): Promise<Installation> {
  const folder = home ?? (await build(join(work, 'home')))
  const wrapper = join(work, 'tallygate')
  writeFileSync(wrapper, readFileSync('packaging/debian/wrapper.sh', 'utf8').replaceAll(HOME, folder))
  return { command: ['/bin/sh', wrapper], node: join(folder, 'runtime/node'), size: sizeOf(folder) }
}

async function build(target: string): Promise<string> {
  const machine = process.arch === 'x64' ? 'amd64' : process.arch
  const architecture = ARCHITECTURES.find((each) => each === machine)
  if (architecture === undefined) throw new Error(`there is no package for ${process.arch}: give --home`)
  const { version } = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string }
  await outputOf(process.execPath, ['scripts/build.ts'])
  mkdirSync(target)
  await layApplication({ root: process.cwd(), target, architecture, version, cache: '.tallygate/runtimes' })
  return target
}

function sizeOf(path: string): number {
  const entry = lstatSync(path)
  if (!entry.isDirectory()) return entry.size
  return readdirSync(path).reduce((sum, name) => sum + sizeOf(join(path, name)), 0)
}
