// The tests of one area, for Stryker: fewer cases of each property, and no reports of an ordinary run.
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'
import { BaseSequencer } from 'vitest/node'
import { areaNamed } from './areas.ts'

/** A mutant is found as soon as one test fails: the quick ones have the first try. */
class QuickFirst extends BaseSequencer {
  override async sort(files: Parameters<BaseSequencer['sort']>[0]): ReturnType<BaseSequencer['sort']> {
    return (await super.sort(files)).toReversed()
  }
}

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
    sequence: { sequencer: QuickFirst },
  },
})
