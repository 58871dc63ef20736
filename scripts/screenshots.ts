// `npm run screenshots`: writes pictures of the status page to docs/screenshots, by the chromium of this machine.
import { mkdir } from 'node:fs/promises'
import { openStatus } from '../src/agent/platform/status-http/server.ts'
import { SCENES } from '../test/agent/platform/status-http/scenes.ts'
import { findChromium, launchChromium } from '../test/support/chromium.ts'

const FOLDER = new URL('../docs/screenshots/', import.meta.url)

const SHOTS = [
  ['working', 'working-desktop', { width: 1100, height: 760 }, 'light'],
  ['working', 'working-phone', { width: 390, height: 844 }, 'dark'],
  ['offline', 'offline-phone', { width: 390, height: 844 }, 'light'],
  ['refusing', 'refusing-desktop', { width: 1100, height: 760 }, 'dark'],
] as const

const path = findChromium()
if (path === undefined) throw new Error('there is no chromium on the path, and TALLYGATE_TEST_CHROMIUM is not set')
await mkdir(FOLDER, { recursive: true })
const browser = await launchChromium(path)
for (const [scene, name, viewport, colorScheme] of SHOTS) {
  const server = await openStatus({
    port: 0,
    auth: { host: '127.0.0.1', tls: null, token: null },
    report: async () => SCENES[scene],
    readiness: async () => ({ ready: true, checks: [] }),
    onFault: (error) => console.error(error),
  })
  const page = await browser.newPage({ viewport, colorScheme })
  await page.goto(server.origin)
  await page.screenshot({ path: new URL(`${name}.png`, FOLDER).pathname })
  await page.close()
  await server.stop()
  console.log(`docs/screenshots/${name}.png`)
}
await browser.close()
