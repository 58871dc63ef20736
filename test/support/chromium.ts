// A real browser for tests, found on the machine: TALLYGATE_TEST_CHROMIUM, or chromium on the path. Without one the tests of
// the scope are skipped with the reason, or fail where servers are required.
import { type Browser, chromium } from 'playwright-core'
import { afterAll, beforeAll, beforeEach } from 'vitest'
import { onPath } from './on-path.ts'
import { skip } from './program.ts'

/** Undefined: there is none. */
export function findChromium(): string | undefined {
  return process.env['TALLYGATE_TEST_CHROMIUM'] ?? onPath(['chromium', 'chromium-browser', 'google-chrome'])
}

/** @throws Error when the browser does not start */
export async function launchChromium(executablePath: string): Promise<Browser> {
  // Tests and builds run as root in containers, where the sandbox of the browser cannot; it only sees pages of this project.
  return chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-dev-shm-usage'] })
}

/** A browser for the calling file; to be read in tests. */
export function browserForTests(): { readonly browser: Browser } {
  const path = findChromium()
  let browser: Browser | undefined
  beforeAll(async () => {
    if (path !== undefined) browser = await launchChromium(path)
  }, 60_000)
  afterAll(async () => {
    await browser?.close()
  })
  beforeEach((context) => {
    if (path === undefined) skip(context, 'there is no chromium on the path, and TALLYGATE_TEST_CHROMIUM is not set')
  })
  return {
    get browser() {
      if (browser === undefined) throw new Error('the browser is there in tests only')
      return browser
    },
  }
}
