// The tests of one area, for Stryker: fewer cases of each property, and no reports of an ordinary run.
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'
import { areaNamed } from './areas.ts'

export default defineConfig({
  resolve: {
    alias: [{ find: /^fast-check$/, replacement: fileURLToPath(new URL('fast-check.ts', import.meta.url)) }],
  },
  test: {
    include: [...areaNamed(process.env['TALLYGATE_MUTATION_AREA']).tests],
    environment: 'node',
    env: { TALLYGATE_TEST_SAME_THREAD: '1' },
    testTimeout: 30_000,
    restoreMocks: true,
    unstubEnvs: true,
    unstubGlobals: true,
    isolate: false,
  },
})
