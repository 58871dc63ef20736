// `--project unit` runs the tests of single parts, which need no server, no browser and no second process; `clouds` those
// of whole clouds; `whole` the other ones. Files of a project share processes and modules, because loading and compiling
// the modules takes longer than most of them. Only the files of the simulator run in separate processes.
// TALLYGATE_TEST_REPORT names a file that receives the results as JSON as well.
import { existsSync, statfsSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'
import { SkippedTests } from './test/support/skips.ts'

const report = process.env['TALLYGATE_TEST_REPORT']

// Many tests start the program, whose modules are compiled but once this way: a good third of what such tests take.
process.env['NODE_COMPILE_CACHE'] ??= fileURLToPath(new URL('node_modules/.cache/compiled', import.meta.url))

/** Tests that need a server, a browser or a second process say so in their names. */
const ALONE = '**/!(*.postgres|*.mosquitto|*.chromium|*.process).test.ts'
const UNIT = [
  `test/{client,core,protocol,settings}/${ALONE}`,
  `test/agent/{access,diagnostics,keys,ledger,policy,runtime,sessions,sync}/${ALONE}`,
  `test/cloud/{accounts,devices,policy,runtime,service-api,sessions,sync,usage}/${ALONE}`,
]

const MEMORY = '/dev/shm'
const MEMORY_BYTES_MIN = 2 ** 30

/** These tests flush thousands of small databases, and none of them is about the disk: memory flushes at once. */
function temporary(): Record<string, string> {
  if (process.env['TMPDIR'] !== undefined || !existsSync(MEMORY)) return {}
  const { bavail, bsize } = statfsSync(MEMORY)
  return bavail * bsize < MEMORY_BYTES_MIN ? {} : { TMPDIR: MEMORY }
}

/** Whole clouds inside the test's process. */
const CLOUDS = ['test/cloud/http/**/*.test.ts', 'test/{conformance,corpus}/*.test.ts']

/** These replace the signatures of their process. */
const SIMULATOR = ['test/sim/*.test.ts']

const IN_MEMORY = { env: temporary() }

/** The simulator's tests take minutes: what starts last must not be what takes longest. */
class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const isLong = ({ project }: TestSpecification): boolean => project.name === 'simulator'
    const sorted = await super.sort(files)
    return [...sorted.filter(isLong), ...sorted.filter((file) => !isLong(file))]
  }
}

export default defineConfig({
  test: {
    projects: [
      { extends: true, test: { name: 'simulator', include: SIMULATOR, isolate: true } },
      { extends: true, test: { name: 'unit', include: UNIT, ...IN_MEMORY } },
      { extends: true, test: { name: 'clouds', include: CLOUDS, ...IN_MEMORY } },
      {
        extends: true,
        test: { name: 'whole', include: ['test/**/*.test.ts'], exclude: [...SIMULATOR, ...UNIT, ...CLOUDS] },
      },
    ],
    maxWorkers: availableParallelism() + 1,
    sequence: { sequencer: LongestFirst },
    environment: 'node',
    setupFiles: ['test/support/end-children.ts'],
    pool: 'forks',
    // Node runs the sources as the product does. Vite's module runner reads each import at each use: a sixth of the processor time.
    experimental: { viteModuleRunner: false, nodeLoader: false },
    isolate: false,
    testTimeout: 30_000,
    // A hook may have to fetch and start a container.
    hookTimeout: 180_000,
    teardownTimeout: 20_000,
    // What a test waits for comes late on a machine that is busy; a wait that ends well takes no longer for it.
    expect: { poll: { timeout: 10_000 } },
    allowOnly: process.env['CI'] === undefined,
    restoreMocks: true,
    unstubEnvs: true,
    unstubGlobals: true,
    reporters: ['default', new SkippedTests(), ...(report === undefined ? [] : ['json'])],
    ...(report === undefined ? {} : { outputFile: { json: report } }),
  },
})
