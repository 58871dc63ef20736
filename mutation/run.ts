// `npm run mutation`: runs Stryker on each area, or on those that are named, and writes docs/explanation/mutation-testing.md.
import { spawnSync } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { parseArgs } from 'node:util'
import { format, resolveConfig } from 'prettier'
import { orUsage } from '../scripts/or-usage.ts'
import { AREAS, type Area, areaNamed } from './areas.ts'
import { USAGE, page, survivorList } from './page.ts'
import { percent, scoreOf, survivorsPath } from './report.ts'

const PAGE = 'docs/explanation/mutation-testing.md'

const { values, areas } = orUsage(USAGE, () => {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      /** Mutants that are tested at a time. */
      concurrency: { type: 'string', default: '1' },
      /** Only these files of the area: a quick look, which the reports do not keep. */
      file: { type: 'string', multiple: true, default: [] },
      /** Tests mutants again whose result is known. */
      force: { type: 'boolean', default: false },
      /** Writes the page from the last reports. */
      'page-only': { type: 'boolean', default: false },
    },
  })
  return { values, areas: positionals.length === 0 ? AREAS : positionals.map(areaNamed) }
})

function test(area: Area): void {
  const { status, error } = spawnSync('stryker', ['run', 'mutation/stryker.config.ts'], {
    stdio: 'inherit',
    env: {
      ...process.env,
      UV_THREADPOOL_SIZE: '1',
      TALLYGATE_MUTATION_AREA: area.name,
      TALLYGATE_MUTATION_CONCURRENCY: values.concurrency,
      TALLYGATE_MUTATION_FILES: values.file.join(','),
      TALLYGATE_MUTATION_FORCE: values.force ? '1' : '0',
    },
  })
  if (error !== undefined) throw error
  if (status !== 0) process.exit(status ?? 1)
}

if (!values['page-only']) for (const area of areas) test(area)
if (values.file.length === 0) {
  const text = page(AREAS, await readFile(PAGE, 'utf8'))
  await writeFile(PAGE, await format(text, { ...(await resolveConfig(PAGE)), filepath: PAGE }))
  for (const score of AREAS.flatMap((each) => scoreOf(each) ?? [])) {
    const path = survivorsPath(score.area)
    await writeFile(path, survivorList(score))
    console.log(`${score.area.name}: ${percent(score)} of ${score.mutants} mutants. Survivors: ${path}`)
  }
}
