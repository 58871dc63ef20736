/** Bundles the entry points. */
import { readFileSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { isBuiltin } from 'node:module'
import { dirname, join, relative } from 'node:path'
import { type OutputChunk, type Plugin, rolldown } from 'rolldown'
import { SCALAR, scriptOfPackage } from '../../src/cloud/http/openapi/scalar-package.ts'

/** Below src and dist. Each gets its own bundle, so that it contains only what it uses of a shared module. */
const ENTRY_POINTS = [
  'cli/main',
  'cli/database-process',
  'cli/service-manager/long-start-worker',
  'demo/stepped-clock',
] as const

/** They load a binary for the machine, from a path beside their code. */
const NATIVE = ['better-sqlite3', 'koffi']

/** Of 5 MB, read only where the file that the build makes of it is missing. */
const REPLACED_BY_FILE = /\/scalar-package\.ts$/

/** A package whose code is in a bundle. */
export interface BundledPackage {
  /** `name@version` */
  readonly id: string
  readonly folder: string
  readonly license: string
}

/** @param target folder of the bundles; existing files are replaced */
export async function bundle(root: string, target: string): Promise<readonly BundledPackage[]> {
  const modules = new Set<string>()
  for (const entry of ENTRY_POINTS) {
    for (const module of await bundleOne(root, target, entry)) modules.add(module)
  }
  modules.add(await writeScalar(root, join(target, 'cloud/http/openapi')))
  return packagesOf(modules)
}

/** @returns a file of the package */
async function writeScalar(root: string, folder: string): Promise<string> {
  await mkdir(folder, { recursive: true })
  await writeFile(join(folder, 'scalar.js.gz'), await scriptOfPackage())
  return join(root, 'node_modules', SCALAR, 'package.json')
}

/** @returns the files that the bundle contains */
async function bundleOne(root: string, target: string, entry: string): Promise<readonly string[]> {
  const source = join(root, 'src')
  const build = await rolldown({
    input: { [entry]: join(source, `${entry}.ts`) },
    platform: 'node',
    external: [...NATIVE, REPLACED_BY_FILE],
    plugins: [ownPlaces(source, target), leanBuiltins(), latin1()],
    // The plugins change no line breaks, so lines in the maps stay right.
    onLog: (level, log, handle) => (log.code === 'SOURCEMAP_BROKEN' ? undefined : handle(level, log)),
  })
  const { output } = await build.write({
    dir: target,
    format: 'esm',
    entryFileNames: '[name].js',
    chunkFileNames: `${dirname(entry)}/chunks/[name]-[hash].js`,
    sourcemap: true,
    sourcemapExcludeSources: true,
    comments: false,
    // Otherwise the code is printed anew after the plugins, without the escapes of latin1.
    minify: false,
  })
  await build.close()
  return output.filter((each): each is OutputChunk => each.type === 'chunk').flatMap(({ moduleIds }) => moduleIds)
}

/** Modules find files by `import.meta.url`: each gets the address that it would have below dist, whichever chunk it is in. */
function ownPlaces(source: string, target: string): Plugin {
  return {
    name: 'own-places',
    transform(code, id) {
      if (!id.startsWith(`${source}/`) || !code.includes('import.meta.url')) return null
      const place = relative(source, id).replace(/\.ts$/, '.js')
      return code.replaceAll('import.meta.url', `__OWN_PLACE__(${JSON.stringify(place)})`)
    },
    renderChunk(code, chunk) {
      const root = relative(join(target, dirname(chunk.fileName)), target)
      return code.replaceAll(/__OWN_PLACE__\("([^"]*)"\)/g, (_call, place: string) => {
        const path = join(root, place)
        return `new URL(${JSON.stringify(path.startsWith('.') ? path : `./${path}`)}, import.meta.url).href`
      })
    },
  }
}

/**
 * An `import` of a module of Node reads every export of it, also those that load more when they are read: `node:http` loads a whole
 * second HTTP client, which takes 7 MiB and 70 ms. This way reads only the exports that are used.
 */
function leanBuiltins(): Plugin {
  const statement = /^import (?:([\w$]+)|\* as ([\w$]+)|(?:([\w$]+), )?\{([^}]*)\}) from "([^".]+)";$/gm
  return {
    name: 'lean-builtins',
    renderChunk(code) {
      return code.replaceAll(
        statement,
        (line: string, ...[whole, space, beside, names, module]: readonly (string | undefined)[]) => {
          if (module === undefined || !isBuiltin(module)) return line
          const from = `globalThis.process.getBuiltinModule(${JSON.stringify(module)})`
          const renamed = names?.replaceAll(/([\w$]+) as ([\w$]+)/g, '$1: $2')
          return [whole, space, beside, renamed === undefined ? undefined : `{${renamed}}`]
            .filter((each) => each !== undefined)
            .map((binding) => `const ${binding} = ${from};`)
            .join(' ')
        },
      )
    },
  }
}

/** One character outside of Latin-1 would make V8 keep the whole file with two bytes for each character. */
function latin1(): Plugin {
  return {
    name: 'latin-1',
    renderChunk: (code) =>
      code.replaceAll(/[\u0100-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`),
  }
}

function packagesOf(modules: Iterable<string>): readonly BundledPackage[] {
  const found = new Map<string, BundledPackage>()
  for (const module of modules) {
    const folder = /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(module.replace(/^\0/, ''))?.[0]
    if (folder === undefined || found.has(folder)) continue
    const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as {
      name: string
      version: string
      license?: string
    }
    if (license === undefined) throw new Error(`${folder}/package.json names no license`)
    found.set(folder, { id: `${name}@${version}`, folder, license })
  }
  return [...found.values()].sort((a, b) => (a.id < b.id ? -1 : 1))
}
