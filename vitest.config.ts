// Every test file runs in a process of its own, so that none can lean on what another left behind.
// TALLYGATE_TEST_REPORT names a file that receives the results as JSON as well.
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'
import { SkippedTests } from './test/support/skips.ts'

const report = process.env['TALLYGATE_TEST_REPORT']

// Many tests start the program, whose modules are compiled but once this way: a good third of what such tests take.
process.env['NODE_COMPILE_CACHE'] ??= fileURLToPath(new URL('node_modules/.cache/compiled', import.meta.url))

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    environment: 'node',
    pool: 'forks',
    isolate: true,
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
