// Agent and twin as programs of their own, for the tests of one file: the twin is up and sells, the agent is the test's to start.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Site } from '../../crash/site/site.ts'

/** For `beforeAll`, which ends with `close`. */
export async function provisionedSite(): Promise<{ readonly site: Site; readonly close: () => Promise<void> }> {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-crash-'))
  const site = await Site.make({ directory })
  site.startTwin()
  await site.twinReady()
  await site.provision()
  return {
    site,
    close: async () => {
      await site[Symbol.asyncDispose]()
      rmSync(directory, { recursive: true, force: true })
    },
  }
}
