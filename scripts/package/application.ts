/** The program as it is installed: its bundles, native packages for one machine and the runtime beside it. */
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { outputOf } from './output-of.ts'
import { prune } from './prune.ts'
import { type Architecture, runtimeArchive } from './runtime.ts'
import { strip } from './strip.ts'

export interface ApplicationOptions {
  /** Folder of the repository; `npm run build` has made dist in it. */
  readonly root: string
  readonly target: string
  readonly architecture: Architecture
  readonly version: string
  /** Where archives of runtimes are kept between builds. */
  readonly cache: string
}

/** As npm and prebuilt binaries name the processor. */
const CPU: Readonly<Record<Architecture, string>> = { amd64: 'x64', arm64: 'arm64' }

/** Fills the folder `target`. */
export async function layApplication({
  root,
  target,
  architecture,
  version,
  cache,
}: ApplicationOptions): Promise<void> {
  mkdirSync(join(target, 'runtime'), { recursive: true })
  for (const name of ['bin', 'dist', 'LICENSE', 'package-lock.json'])
    cpSync(join(root, name), join(target, name), { recursive: true })
  const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as Record<string, unknown>
  writeFileSync(join(target, 'package.json'), `${JSON.stringify({ ...manifest, version }, null, 2)}\n`)
  const cpu = CPU[architecture]
  const only = ['--omit=dev', '--ignore-scripts', '--os=linux', `--cpu=${cpu}`, '--libc=glibc']
  await outputOf('npm', ['ci', '--prefer-offline', '--no-audit', '--no-fund', ...only], { cwd: target })
  prune(join(target, 'node_modules'), `linux-${cpu}`)
  rmSync(join(target, 'package-lock.json'))
  const archive = await runtimeArchive(cache, architecture)
  const members = ['package/bin/node', 'package/LICENSE']
  await outputOf('tar', [
    '-xzf',
    archive,
    '-C',
    join(target, 'runtime'),
    '--no-same-owner',
    '--transform=s,.*/,,',
    ...members,
  ])
  strip(join(target, 'runtime/node'))
}
