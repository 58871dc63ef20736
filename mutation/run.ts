// `npm run mutation`: runs Stryker on each area, or on those that are named, and writes docs/mutation-testing.md.
import { writeFile } from 'node:fs/promises'
import { parseArgs } from 'node:util'
import { Stryker } from '@stryker-mutator/core'
import { format, resolveConfig } from 'prettier'
import { AREAS, type Area, areaNamed } from './areas.ts'
import { page } from './page.ts'
import { percent, reportPath, scoreOf } from './report.ts'

const PAGE = 'docs/mutation-testing.md'

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

async function test(area: Area): Promise<void> {
  process.env['TALLYGATE_MUTATION_AREA'] = area.name
  const isPart = values.file.length > 0
  const directory = `.tallygate/mutation/${isPart ? 'part' : area.name}`
  await new Stryker({
    mutate: [...(isPart ? values.file : area.mutate)],
    testRunner: 'vitest',
    vitest: { configFile: 'mutation/vitest.config.ts', related: false, pool: 'threads' },
    plugins: [import.meta.resolve('@stryker-mutator/vitest-runner'), './mutation/ignore-error-text.ts'],
    ignorers: ['error-text'],
    coverageAnalysis: 'perTest',
    // A mutant in a constant of a module would need every test of the area.
    ignoreStatic: true,
    incremental: !isPart,
    incrementalFile: `${directory}/incremental.json`,
    force: values.force,
    reporters: isPart ? ['json', 'clear-text'] : ['json', 'progress-append-only'],
    clearTextReporter: { allowColor: false, logTests: false, reportTests: false, reportScoreTable: false },
    jsonReporter: { fileName: isPart ? `${directory}/report.json` : reportPath(area) },
    tempDirName: '.tallygate/stryker',
    ignorePatterns: ['.tallygate', 'dist'],
    concurrency: Number(values.concurrency),
    timeoutMS: 5_000,
  }).runMutationTest()
}

const areas = positionals.length === 0 ? AREAS : positionals.map(areaNamed)
if (!values['page-only']) for (const area of areas) await test(area)
if (values.file.length === 0) {
  const scores = AREAS.flatMap((area) => scoreOf(area) ?? [])
  await writeFile(PAGE, await format(page(scores), { ...(await resolveConfig(PAGE)), filepath: PAGE }))
  for (const score of scores) console.log(`${score.area.name}: ${percent(score)} of ${score.mutants} mutants`)
}
