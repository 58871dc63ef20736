// `npm run screenshots`: writes pictures of the status page and of the console to docs/screenshots, by the chromium of this
// machine.
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs, promisify } from 'node:util'
import type { Page } from 'playwright-core'
import { orUsage } from './or-usage.ts'
import { openStatus } from '../src/agent/platform/status-http/server.ts'
import { SCENES } from '../test/agent/platform/status-http/scenes.ts'
import { consoleCode } from '../test/cloud/console/browse.ts'
import { furnish } from '../test/cloud/console/scene.ts'
import { openTwin } from '../test/cloud/harness.ts'
import { findChromium, launchChromium } from '../test/support/chromium.ts'

const USAGE = `npm run screenshots

Writes pictures of the status page and of the console to docs/screenshots, with the Chromium of this machine. Takes no arguments.
`

orUsage(USAGE, () => parseArgs())

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

/** In a quarter of the bytes of a PNG. */
async function takeWebp(page: Page, name: string): Promise<void> {
  const chrome = await page.context().newCDPSession(page)
  const { data } = await chrome.send('Page.captureScreenshot', { format: 'webp', quality: 80 })
  await writeFile(new URL(`${name}.webp`, FOLDER), Buffer.from(data, 'base64'))
  console.log(`docs/screenshots/${name}.webp`)
}

const twin = await openTwin()
const { device } = await furnish(twin, false)
device.device.clock = { now: twin.now, earliest: twin.now, latest: twin.now }
await device.device.sync()
const tried = new URLSearchParams({
  type: 'user',
  value: 'LisaBarry',
  item: 'Print',
  count: '12',
  dictionary: 'department=sales',
})
for (const [size, viewport, colorScheme] of [
  ['desktop', { width: 1100, height: 760 }, 'light'],
  ['phone', { width: 390, height: 844 }, 'dark'],
] as const) {
  const page = await browser.newPage({ viewport, colorScheme })
  await page.goto(`${twin.cloud.address}/console/sign-in#${await consoleCode(twin)}`)
  await page.waitForURL(`${twin.cloud.address}/console`)
  for (const [name, path] of [
    ['overview', ''],
    ['devices', '/devices'],
    ['device', `/devices/${device.id}`],
    ['try', `/try?${tried.toString()}`],
  ] as const) {
    await page.goto(`${twin.cloud.address}/console${path}`)
    await takeWebp(page, `console-${name}-${size}`)
  }
  await page.close()
}
await twin[Symbol.asyncDispose]()

/** The site of the tutorial, after its request. */
const directory = await mkdtemp(join(tmpdir(), 'tallygate-screenshots-'))
const program = new URL('../bin/tallygate.js', import.meta.url).pathname
const dev = spawn(process.execPath, [program, 'dev', '--directory', directory], { stdio: 'ignore' })
const commands = [
  `until [ -f '${directory}/env' ]; do sleep 0.2; done; . '${directory}/env'`,
  'tallygate access --item LaserCut --item-version 1.0 --count 2.5 --requester user:anna',
  'until tallygate usage list | grep LaserCut; do sleep 0.5; done',
  'tallygate console --json',
]
const { stdout } = await promisify(execFile)('sh', ['-euc', commands.join('\n')])
const { url } = JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as { readonly url: string }
const page = await browser.newPage({ viewport: { width: 1100, height: 560 } })
await page.goto(url)
await page.getByRole('link', { name: 'Usage' }).click()
await page.screenshot({ path: new URL('first-request-console.png', FOLDER).pathname })
console.log('docs/screenshots/first-request-console.png')
await browser.close()
dev.kill('SIGINT')
await once(dev, 'exit')
await rm(directory, { recursive: true })
