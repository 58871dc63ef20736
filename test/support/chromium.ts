// A real browser for tests, found on the machine: TALLYGATE_TEST_CHROMIUM, or chromium on the path. Without one the tests of
// the scope are skipped with the reason, or fail where servers are required.
import { accessSync, constants } from 'node:fs'
import { delimiter, join } from 'node:path'
import { type Browser, chromium } from 'playwright-core'
import { afterAll, beforeAll, beforeEach } from 'vitest'

const NAMES = ['chromium', 'chromium-browser', 'google-chrome']

/** Undefined: there is none. */
export function findChromium(): string | undefined {
  const given = process.env['TALLYGATE_TEST_CHROMIUM']
  if (given !== undefined) return given
  const folders = (process.env['PATH'] ?? '').split(delimiter)
  return folders.flatMap((folder) => NAMES.map((name) => join(folder, name))).find(isExecutable)
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
    if (path !== undefined) return
    const reason = 'there is no chromium on the path, and TALLYGATE_TEST_CHROMIUM is not set'
    if (process.env['TALLYGATE_REQUIRE_SERVERS'] === '1') throw new Error(reason)
    context.skip(reason)
  })
  return {
    get browser() {
      if (browser === undefined) throw new Error('the browser is there in tests only')
      return browser
    },
  }
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}
