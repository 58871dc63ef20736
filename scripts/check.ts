// `npm run check [-- NAME...]`: everything that must hold of the source itself, one line per check, all output of those
// that fail, exit code 1 if any does. The tests (`npm test`) are apart.
import { availableParallelism } from 'node:os'
import { inspect, parseArgs } from 'node:util'
import { arrows } from './arrows.ts'
import { orUsage } from './or-usage.ts'
import { compiler, run, type Outcome } from './run.ts'

const root = process.cwd()

const checks: Record<string, () => Promise<Outcome>> = {
  format: () => run(root, 'prettier', ['--check', '--log-level', 'warn', '.']),
  lint: () => run(root, 'oxlint', ['--deny-warnings', '--format', 'unix']),
  types: () => run(root, compiler, ['--noEmit', '--pretty', 'false', '-p', '.']),
  arrows: () => arrows(root),
  prose: () =>
    run(root, 'textlint', [
      '--format',
      'unix',
      '*.md',
      'deploy/*.md',
      'docs/**/*.{md,1,5}',
      'sdk/**/*.md',
      'src/**/*.ts',
      'sdk/**/*.ts',
    ]),
  unused: () => run(root, 'knip', ['--no-progress', '--no-config-hints']),
}

const USAGE = `npm run check -- [NAME...]

Checks the source. Names: ${Object.keys(checks).join(', ')} (all).
`

const named = orUsage(USAGE, () => {
  const { positionals } = parseArgs({ allowPositionals: true })
  const unknown = positionals.filter((name) => !Object.hasOwn(checks, name))
  if (unknown.length > 0) throw new Error(`no such check: ${unknown.join(', ')}`)
  return positionals
})

/** Runs one check and prints its result; a failing one's output follows, indented. */
async function judge(name: string, check: () => Promise<Outcome>): Promise<boolean> {
  const start = performance.now()
  const { ok, output } = await check().catch((error: unknown) => ({ ok: false, output: inspect(error) }))
  const seconds = ((performance.now() - start) / 1000).toFixed(1)
  console.log(`${ok ? 'ok  ' : 'FAIL'}  ${name.padEnd(8)} ${seconds.padStart(6)} s`)
  if (!ok) console.log(output.trimEnd().replaceAll(/^/gm, '      '))
  return ok
}

const waiting = Object.entries(checks).filter(([name]) => named.length === 0 || named.includes(name))
const results: boolean[] = []
async function work(): Promise<void> {
  for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) results.push(await judge(...next))
}
await Promise.all(Array.from({ length: Math.min(2, availableParallelism()) }, work))
if (results.includes(false)) process.exitCode = 1
