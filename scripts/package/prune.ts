/**
 * What of an installed package runs: the rest (types, maps, sources of native parts, binaries for other machines, texts) is left
 * out of what ships to devices. Licenses stay.
 */
import { readdirSync, rmSync, rmdirSync, statSync } from 'node:fs'
import { basename, dirname, join, relative } from 'node:path'

const NO_FILE =
  /\.(md|markdown|map|ts|mts|cts|tsbuildinfo|gyp|c|cc|cpp|h|hpp|flow|yml|yaml|html|sh)$|^\.(?!package)|^(Makefile|CHANGELOG|HISTORY)/i
const LEGAL = /^(licen[cs]e|copying|notice|authors)/i

/** Below the folder of a package, never deeper: a folder of such a name may be code elsewhere. */
const NO_FOLDER = new Set([
  'test',
  'tests',
  '__tests__',
  'doc',
  'docs',
  'example',
  'examples',
  'bench',
  'benchmark',
  'benchmarks',
  'coverage',
  'man',
  'integration',
  '.github',
  '.husky',
])

/** Needed to build native parts only. */
const NO_PACKAGE = ['node-addon-api']

/** By package: what else is not needed. */
const NOT_OF: Readonly<Record<string, readonly string[]>> = {
  'better-sqlite3': ['deps', 'src'],
  '@koromix/koffi-linux-arm64': ['musl_arm64'],
  '@koromix/koffi-linux-x64': ['musl_x64'],
}

/**
 * @param modules a node_modules folder with production dependencies only
 * @param machine as prebuilt binaries name it, for instance `linux-arm64`
 */
export function prune(modules: string, machine: string): void {
  for (const name of ['.bin', '.package-lock.json', '@types', ...NO_PACKAGE])
    rmSync(join(modules, name), { recursive: true, force: true })
  for (const folder of packagesIn(modules)) {
    for (const name of [...NO_FOLDER, ...(NOT_OF[relative(modules, folder)] ?? [])]) {
      rmSync(join(folder, name), { recursive: true, force: true })
    }
    const prebuilds = join(folder, 'prebuilds')
    for (const name of namesIn(prebuilds)) {
      if (name.replace(/\.node$/, '') !== machine) rmSync(join(prebuilds, name), { recursive: true })
    }
  }
  dropFiles(modules)
}

/** The folders of all packages, nested ones included. */
function packagesIn(modules: string): readonly string[] {
  return namesIn(modules).flatMap((name) => {
    const folder = join(modules, name)
    if (name.startsWith('@')) return packagesIn(folder)
    return [folder, ...packagesIn(join(folder, 'node_modules'))]
  })
}

function dropFiles(folder: string): void {
  for (const name of namesIn(folder)) {
    const path = join(folder, name)
    if (statSync(path).isDirectory()) dropFiles(path)
    else if (NO_FILE.test(name) && !LEGAL.test(name)) rmSync(path)
  }
  if (namesIn(folder).length === 0 && basename(dirname(folder)) !== '') rmdirSync(folder)
}

function namesIn(folder: string): readonly string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}
