// `npm run build`: dist/ as the package ships it. Each entry point is one bundle with what it needs of src and of other packages; the
// command's parts are chunks that are loaded when they are used. Native packages stay outside. Beside them: SQL and other files that
// are read at run time, at the paths that they have in src, the script of the API reference, and licenses of what was bundled.
import { cp, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { bundle } from './build/bundle.ts'
import { noticesOf } from './build/notices.ts'
import { orUsage } from './or-usage.ts'

orUsage('npm run build\n\nWrites dist, as the package ships it. Takes no arguments.\n', () => parseArgs())

const root = process.cwd()

await rm('dist', { recursive: true, force: true })
const packages = await bundle(root, join(root, 'dist'))
await writeFile(
  'dist/third-party.json',
  `${JSON.stringify(
    packages.map(({ id }) => id),
    null,
    2,
  )}\n`,
)
await writeFile('dist/THIRD-PARTY-LICENSES', noticesOf(packages))
await cp('src', 'dist', {
  recursive: true,
  filter: async (path) => !path.endsWith('.ts') || (await stat(path)).isDirectory(),
})
