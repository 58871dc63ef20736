// The console in a real browser: each page fits, can be used without a mouse or eyes, and runs and loads nothing else.
import { createRequire } from 'node:module'
import type { AxeResults } from 'axe-core'
import type { Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { browserForTests } from '../../support/chromium.ts'
import { type Twin, openTwin } from '../harness.ts'
import { consoleCode } from './browse.ts'
import { HOSTILE, type Scene, furnish } from './scene.ts'

const PHONE = { width: 360, height: 740 }
const DESKTOP = { width: 1280, height: 900 }
const AXE = createRequire(import.meta.url).resolve('axe-core/axe.min.js')

const chromium = browserForTests()
let twin: Twin
let scene: Scene

beforeAll(async () => {
  twin = await openTwin()
  scene = await furnish(twin, true)
})
afterAll(() => twin[Symbol.asyncDispose]())

interface Opened {
  readonly page: Page
  readonly complaints: readonly string[]
}

async function signIn(viewport: typeof PHONE, colorScheme: 'light' | 'dark', bypassCSP = false): Promise<Opened> {
  const context = await chromium.browser.newContext({ viewport, colorScheme, bypassCSP })
  onTestFinished(() => context.close())
  const page = await context.newPage()
  const complaints: string[] = []
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') complaints.push(message.text())
  })
  page.on('pageerror', (error) => complaints.push(String(error)))
  page.on('dialog', (dialog) => {
    complaints.push('a dialog')
    void dialog.dismiss()
  })
  page.on('request', (request) => {
    if (!request.url().startsWith(twin.cloud.address) && !request.url().startsWith('data:')) {
      complaints.push(`it asked for ${request.url()}`)
    }
  })
  await page.goto(`${twin.cloud.address}/console/sign-in#${await consoleCode(twin)}`)
  await page.waitForURL(`${twin.cloud.address}/console`)
  return { page, complaints }
}

const tried = (item: string, value: string): string =>
  `/try?${new URLSearchParams({ type: 'user', value, item, count: '2', dictionary: 'department=sales' }).toString()}`

/** Each page, with the text of its heading. */
const PAGES: readonly (readonly [name: string, path: () => string, title: string])[] = [
  ['overview', () => '', HOSTILE],
  ['devices', () => '/devices', 'Devices'],
  ['devices found', () => '/devices?search=Press', 'Devices'],
  ['device', () => `/devices/${scene.device.id}`, ''],
  ['line items', () => '/line-items', 'Line items'],
  ['rules', () => '/rules', 'Rules of access'],
  ['try a request', () => '/try', 'Try a request'],
  ['a request that is granted', () => tried('Print', HOSTILE), 'Try a request'],
  ['a request that is refused', () => tried('Weld', 'x'), 'Try a request'],
  ['rate tables', () => '/rate-tables', 'Rate tables'],
  ['rates', () => '/rate-tables?series=laser&version=1', 'Rates of laser'],
  ['usage', () => '/usage', 'Usage'],
  ['sessions', () => '/sessions', 'Sessions'],
  ['the end of a session', () => `/sessions/${scene.sessionId}/end`, 'End session'],
  ['audit', () => '/audit', 'Audit'],
]

describe('a page of the console', { timeout: 60_000 }, () => {
  for (const [name, path, title] of PAGES) {
    it(`fits, is accessible, and complains about nothing: ${name}`, async () => {
      for (const [viewport, scheme] of [
        [PHONE, 'dark'],
        [DESKTOP, 'light'],
      ] as const) {
        const { page, complaints } = await signIn(viewport, scheme)
        await page.goto(`${twin.cloud.address}/console${path()}`)
        expect(await page.getByRole('heading', { level: 1 }).textContent()).toContain(title)
        const overflow = 'document.documentElement.scrollWidth - document.documentElement.clientWidth'
        expect(await page.evaluate(overflow)).toBe(0)
        expect(complaints).toEqual([])

        // The test puts axe into the page, past the policy that keeps everybody else out.
        const tested = await signIn(viewport, scheme, true)
        await tested.page.goto(page.url())
        await tested.page.addScriptTag({ path: AXE })
        const { violations, passes } = await tested.page.evaluate<AxeResults>('axe.run()')
        expect(passes.length).toBeGreaterThan(10)
        expect(
          violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ html }) => html).join(' ')}`),
        ).toEqual([])
      }
    })
  }
})

describe('a sign-in by URL', { timeout: 60_000 }, () => {
  it('leaves the code neither in the address nor in the history', async () => {
    const { page } = await signIn(DESKTOP, 'light')
    await page.goBack()
    expect(page.url()).not.toContain('#')
  })

  it('says what to do when the code was used already', async () => {
    const { page } = await signIn(DESKTOP, 'light')
    const code = await consoleCode(twin)
    await page.goto(`${twin.cloud.address}/console/sign-in#${code}`)
    await page.waitForURL(`${twin.cloud.address}/console`)
    await page.goto(`${twin.cloud.address}/console/sign-in#${code}`)
    await page.getByRole('alert').waitFor()
    expect(await page.getByRole('alert').textContent()).toContain('tallygate console')
  })
})

it('shows the device that was found by the start of its id', async () => {
  const { page } = await signIn(DESKTOP, 'light')
  await page.goto(`${twin.cloud.address}/console/devices`)
  await page.getByRole('searchbox').fill(scene.device.id.slice(0, 8))
  await page.getByRole('button', { name: 'Search' }).click()
  await page.waitForURL(/search=/)
  expect(await page.getByRole('row').count()).toBe(2)
  expect(await page.getByRole('table').textContent()).toContain(scene.device.id)
})
