// The check of the arrows between the parts: dependency-cruiser over every source file, with the rules of
// `.dependency-cruiser.mjs`. A cruise that cannot use the installed TypeScript reads nothing and finds nothing wrong,
// so this check compares the files and imports that were read with those that exist, and never passes on less.
import { existsSync, globSync, readFileSync } from 'node:fs'
import { join, sep } from 'node:path'
import ts from 'typescript'
import { z } from 'zod'
import { run, type Outcome } from './run.ts'

const folders = [
  'src',
  'sdk',
  'bin',
  'test',
  'bench',
  'sim',
  'conformance',
  'crash',
  'mutation',
  'scripts',
  'packaging',
]

const Cruise = z.object({
  modules: z.array(z.object({ source: z.string(), dependencies: z.array(z.object({ module: z.string() })) })),
  summary: z.object({
    violations: z.array(
      z.object({
        from: z.string(),
        to: z.string(),
        rule: z.object({ name: z.string() }),
        cycle: z.array(z.object({ name: z.string() })).optional(),
      }),
    ),
    ruleSetUsed: z.object({ forbidden: z.array(z.object({ name: z.string(), comment: z.string().optional() })) }),
  }),
})

/** Checks every import below `root`; the output names each forbidden one, and each file that was not wholly read. */
export async function arrows(root: string): Promise<Outcome> {
  const present = folders.filter((folder) => existsSync(join(root, folder)))
  const cruise = await run(root, 'depcruise', [
    '--config',
    '.dependency-cruiser.mjs',
    '--output-type',
    'json',
    ...present,
  ])
  const report = parseReport(cruise.stdout)
  if (report === undefined) return { ok: false, output: `dependency-cruiser gave no report\n${cruise.output}` }

  const read = new Map(
    report.modules.map(({ source, dependencies }) => [source, new Set(dependencies.map(({ module }) => module))]),
  )
  const exist = present.flatMap((folder) => typescriptFiles(root, folder))
  const unread = exist.filter((file) => {
    const found = read.get(file)
    return found === undefined || !relativeImports(join(root, file)).every((name) => found.has(name))
  })
  const meaning = new Map(report.summary.ruleSetUsed.forbidden.map(({ name, comment }) => [name, comment]))
  const wrong = report.summary.violations.map(
    ({ rule, from, to, cycle }) =>
      `${rule.name}: ${from} → ${cycle === undefined ? to : cycle.map((step) => step.name).join(' → ')}\n  ${meaning.get(rule.name) ?? ''}`,
  )
  if (exist.length === 0) wrong.push('There is no TypeScript file to read.')
  if (unread.length > 0) {
    wrong.push(
      `Read ${exist.length - unread.length} of ${exist.length} TypeScript files, so the arrows are unproven. ` +
        `Can dependency-cruiser use the installed TypeScript? (npx depcruise --info)\nNot read:\n  ${unread.join('\n  ')}`,
    )
  }
  return { ok: wrong.length === 0, output: wrong.join('\n') }
}

function parseReport(stdout: string): z.infer<typeof Cruise> | undefined {
  try {
    return Cruise.parse(JSON.parse(stdout))
  } catch {
    return undefined
  }
}

/** The relative imports of a file, type-only ones included, by another reader than dependency-cruiser's. */
function relativeImports(path: string): string[] {
  return ts
    .preProcessFile(readFileSync(path, 'utf8'))
    .importedFiles.map(({ fileName }) => fileName)
    .filter((name) => name.startsWith('.'))
}

function typescriptFiles(root: string, folder: string): string[] {
  return globSync(`${folder}/**/*.ts`, { cwd: root }).map((file) => file.split(sep).join('/'))
}
