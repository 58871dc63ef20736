// What Stryker does with one area: `npm run mutation` names it, and what else differs from run to run, in the environment.
import { areaNamed } from './areas.ts'
import { reportPath } from './report.ts'

const { env } = process
const area = areaNamed(env['TALLYGATE_MUTATION_AREA'])
const files = (env['TALLYGATE_MUTATION_FILES'] ?? '').split(',').filter((file) => file !== '')
const isPart = files.length > 0

export default {
  mutate: isPart ? files : area.mutate,
  testRunner: 'one-process',
  plugins: ['./mutation/test-runner.ts', './mutation/ignore-error-text.ts'],
  ignorers: ['error-text'],
  coverageAnalysis: 'perTest',
  // A mutant in a constant of a module would need every test of the area.
  ignoreStatic: true,
  incremental: !isPart,
  incrementalFile: reportPath(area).replace('report.json', 'incremental.json'),
  force: env['TALLYGATE_MUTATION_FORCE'] === '1',
  reporters: isPart ? ['clear-text'] : ['json', 'progress-append-only'],
  clearTextReporter: { allowColor: false, logTests: false, reportTests: false, reportScoreTable: false },
  jsonReporter: { fileName: reportPath(area) },
  tempDirName: '.tallygate/stryker',
  ignorePatterns: ['.tallygate', 'dist'],
  concurrency: Number(env['TALLYGATE_MUTATION_CONCURRENCY'] ?? 1),
  // The test runner ends what never ends (`endless.ts`), by time of the processor: a busy machine makes no difference.
  timeoutMS: 3_600_000,
}
