// `npm run build`: dist/ as the package ships it, compiled JavaScript with declarations and, beside it, every file of src
// that is not TypeScript (SQL, fixtures, JSON). Node runs no TypeScript below node_modules, so an installed package needs it.
import { cp, rm, stat } from 'node:fs/promises'
import { compiler, run } from './run.ts'

const root = process.cwd()

await rm('dist', { recursive: true, force: true })
const { ok, output } = await run(root, compiler, ['--pretty', 'false', '-p', 'tsconfig.build.json'])
if (!ok) {
  console.error(output.trimEnd())
  process.exit(1)
}
await cp('src', 'dist', {
  recursive: true,
  filter: async (path) => !path.endsWith('.ts') || (await stat(path)).isDirectory(),
})
