// The console in a real browser: each page fits, can be used without a mouse or eyes, and runs and loads nothing else.
import type { BrowserContext, BrowserContextOptions, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { accessibilityProblems } from '../../support/axe.ts'
import { browserForTests } from '../../support/chromium.ts'
import { type Twin, openTwin, text } from '../harness.ts'
import { newDeviceKeys } from '../sync/test-device.ts'
import { consoleCode } from './browse.ts'
import { makeFailingSink } from './failing-sink.ts'
import { HOSTILE, type Scene, furnish } from './scene.ts'

const PHONE = { width: 360, height: 740 }
const DESKTOP = { width: 1280, height: 900 }

const chromium = browserForTests()
let twin: Twin
let scene: Scene

beforeAll(async () => {
  twin = await openTwin()
  scene = await furnish(twin, true)
  makeFailingSink(twin, 1, HOSTILE)
})
afterAll(() => twin[Symbol.asyncDispose]())

interface Opened {
  readonly page: Page
  readonly complaints: string[]
}

/** In a context of its own, which ends with the test, or of the given one. */
async function signIn(options: BrowserContextOptions = {}, context?: BrowserContext): Promise<Opened> {
  const own = context ?? (await chromium.browser.newContext({ viewport: DESKTOP, ...options }))
  if (context === undefined) onTestFinished(() => own.close())
  const page = await own.newPage()
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
  ['devices with a label', () => '/devices?labels=site%3Dberlin', 'Devices'],
  ['devices that a command is for', () => '/devices/command?command=lock&of=all', 'Lock: 4 devices'],
  ['device', () => `/devices/${scene.device.id}`, ''],
  ['line items', () => '/line-items', 'Line items'],
  ['a new instance', () => '/instances/edit', 'New instance'],
  ['a line item', () => '/line-items/edit?lineItem=PRINT-2026', 'Line item PRINT-2026'],
  ['a limit', () => '/line-items/limit?lineItem=LASER-2026', 'Consumption limit of LASER-2026'],
  ['the removal of a limit', () => '/line-items/limit/remove?lineItem=LASER-2026', 'Remove the limit'],
  ['rules', () => '/rules', 'Rules of access'],
  ['actions', () => '/rules/edit?lineItem=PRINT-2026', 'Actions of PRINT-2026'],
  ['a new condition', () => '/rules/condition', 'New condition'],
  ['a new condition as JSON', () => '/rules/condition?as=json', 'New condition'],
  ['a new rate table', () => '/rate-tables/edit?series=laser&version=1', 'New rate table'],
  ['try a request', () => '/try', 'Try a request'],
  ['a request that is granted', () => tried('Print', HOSTILE), 'Try a request'],
  ['a request that is refused', () => tried('Weld', 'x'), 'Try a request'],
  ['rate tables', () => '/rate-tables', 'Rate tables'],
  ['rates', () => '/rate-tables?series=laser&version=1', 'Rates of laser'],
  ['usage', () => '/usage', 'Usage'],
  ['usage in a time', () => '/usage?from=2020-01-01T00:00&by=day', 'Usage'],
  ['usage of a line item in a time', () => '/usage?from=2020-01-01T00:00&by=line-item', 'Usage'],
  ['sessions', () => '/sessions', 'Sessions'],
  ['the end of a session', () => `/sessions/${scene.sessionId}/end`, 'End session'],
  ['event sinks', () => '/sinks', 'Event sinks'],
  ['an event sink', () => '/sinks/billing', 'Event sink billing'],
  ['audit', () => '/audit', 'Audit'],
]

describe('a page of the console', { timeout: 60_000 }, () => {
  // One page for all of them: each page of a browser is a process.
  let shared: Opened | undefined

  for (const [name, path, title] of PAGES) {
    it(`fits, is accessible and complains about nothing: ${name}`, async () => {
      shared ??= await signIn({}, await chromium.browser.newContext())
      const { page, complaints } = shared
      await page.goto(`${twin.cloud.address}/console${path()}`)
      expect(await page.getByRole('heading', { level: 1 }).textContent()).toContain(title)
      for (const [viewport, colorScheme] of [
        [PHONE, 'dark'],
        [DESKTOP, 'light'],
      ] as const) {
        await page.setViewportSize(viewport)
        await page.emulateMedia({ colorScheme })
        const overflow = 'document.documentElement.scrollWidth - document.documentElement.clientWidth'
        expect([viewport, await page.evaluate(overflow)]).toEqual([viewport, 0])
        expect([viewport, colorScheme, await accessibilityProblems(page)]).toEqual([viewport, colorScheme, []])
      }
      expect(complaints.splice(0)).toEqual([])
    })
  }
})

describe('without a mouse', { timeout: 60_000 }, () => {
  it('a key leads past the menu, and shows where it leads', async () => {
    const { page } = await signIn()
    await page.keyboard.press('Tab')
    const skip = page.getByRole('link', { name: 'Skip to content' })
    expect(await page.evaluate('document.activeElement.textContent')).toBe('Skip to content')
    expect((await skip.boundingBox())?.x).toBeGreaterThanOrEqual(0)
    await page.keyboard.press('Enter')
    await page.keyboard.press('Tab')
    const inMain = "document.querySelector('main').contains(document.activeElement)"
    expect(await page.evaluate(inMain)).toBe(true)
    const outline = 'getComputedStyle(document.activeElement).outlineStyle'
    expect(await page.evaluate(outline)).toBe('solid')
  })

  it.each(['/usage', '/line-items/edit?lineItem=PRINT-2026', '/rate-tables/edit'])(
    'a key leads to each control, and shows which one it is, on %s',
    async (path) => {
      const { page } = await signIn()
      await page.goto(`${twin.cloud.address}/console${path}`)
      const stops: string[] = []
      do {
        await page.keyboard.press('Tab')
        const stop = await page.evaluate<string>(
          `[document.activeElement.tagName, document.activeElement.name, getComputedStyle(document.activeElement).outlineStyle].join(' ')`,
        )
        stops.push(stop)
      } while (!stops.at(-1)!.startsWith('BODY'))
      expect(stops.filter((stop) => stop.startsWith('INPUT')).length).toBeGreaterThan(3)
      expect(stops.slice(0, -1).filter((stop) => !stop.endsWith(' solid'))).toEqual([])
    },
  )

  it('a problem of a form leads to its field', async () => {
    const { page } = await signIn()
    await page.goto(`${twin.cloud.address}/console/line-items/edit?lineItem=PRINT-2026`)
    await page.getByLabel('End, UTC').fill('2020-01-01T00:00')
    await page.getByRole('button', { name: 'Save' }).press('Enter')
    await page.getByRole('link', { name: 'End, UTC, if any: must not be before start' }).press('Enter')
    const focused = page.locator('input:focus')
    expect(await focused.getAttribute('name')).toBe('end')
    expect(await focused.evaluate('document.activeElement.ariaInvalid')).toBe('true')
    expect(await accessibilityProblems(page)).toEqual([])
  })

  it('a limit is added and removed', async () => {
    const { page, complaints } = await signIn({ viewport: PHONE })
    await page.goto(`${twin.cloud.address}/console/line-items`)
    await page.getByRole('link', { name: 'Add a limit to PRINT-2026' }).press('Enter')
    await page.getByLabel('Tokens per requester').pressSequentially('1000.5')
    await page.getByRole('checkbox', { name: 'Yes, save it' }).press('Space')
    await page.getByRole('button', { name: 'Save' }).press('Enter')
    const limit = page.getByRole('link', { name: 'Consumption limit of PRINT-2026: 1,000.5 per requester, monthly' })
    await limit.press('Enter')
    await page.getByRole('link', { name: 'Remove the limit' }).press('Enter')
    await page.getByRole('checkbox', { name: 'Yes, remove it' }).press('Space')
    await page.getByRole('button', { name: 'Remove' }).press('Enter')
    await page.getByRole('link', { name: 'Add a limit to PRINT-2026' }).waitFor()
    expect(complaints).toEqual([])
  })

  it('devices are selected, locked and unlocked', async () => {
    const { page, complaints } = await signIn()
    await page.goto(`${twin.cloud.address}/console/devices?search=Press`)
    for (const [command, state] of [
      ['Lock', 'locked'],
      ['Unlock', 'enrolled'],
    ] as const) {
      for (const name of ['Press 1', 'Press 2']) {
        await page.getByRole('checkbox', { name: `Select ${name}` }).focus()
        await page.keyboard.press('Space')
      }
      await page.getByRole('combobox', { name: 'Command' }).selectOption(command)
      await page.getByRole('button', { name: 'Continue with the selected devices' }).focus()
      await page.keyboard.press('Enter')
      await page.getByRole('checkbox', { name: `Yes, ${command.toLowerCase()}` }).focus()
      await page.keyboard.press('Space')
      await page.keyboard.press('Enter')
      await page.getByText('2 done, 0 refused.').waitFor()
      await page.goto(`${twin.cloud.address}/console/devices?search=Press`)
      expect(await page.getByRole('row').nth(1).textContent()).toContain(state)
    }
    expect(complaints).toEqual([])
  })
})

it('breaks no word of a table on a desktop', { timeout: 60_000 }, async () => {
  const { page } = await signIn({ viewport: { width: 1100, height: 760 } })
  for (const [path, word] of [
    ['/line-items', 'deployed'],
    ['/audit', 'administrator'],
  ] as const) {
    await page.goto(`${twin.cloud.address}/console${path}`)
    const boxes = await page.evaluate<number[]>(`[...document.querySelectorAll('td')].flatMap((cell) => {
      const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT)
      const found = []
      for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
        const at = node.data.indexOf(${JSON.stringify(word)})
        if (at < 0) continue
        const range = document.createRange()
        range.setStart(node, at)
        range.setEnd(node, at + ${word.length})
        found.push(range.getClientRects().length)
      }
      return found
    })`)
    expect([path, new Set(boxes)]).toEqual([path, new Set([1])])
  }
})

it('fits with names and numbers that are as long as the service takes', { timeout: 60_000 }, async () => {
  await using crowded = await openTwin()
  for (const letter of ['x', '工', 'م']) {
    const body = { shortName: letter.repeat(100), accountId: letter.repeat(100) }
    await crowded.call('POST', '/provisioning/api/v1.1/instances', { body })
  }
  const large = await crowded.instance()
  const lineItem = {
    activationId: 'W'.repeat(200),
    quantity: 123_456_789_012,
    attributes: { overdraftType: 'Unlimited' },
  }
  await crowded.lineItem(large, lineItem)
  await crowded.lineItem(large, { ...lineItem, activationId: 'A', attributes: { resetFrequency: 'MONTHLY' } })
  const items = [{ name: 'LaserCut', version: '1.0', rate: 1 }]
  const rateTable = { version: '1', effectiveFrom: 1_700_000_000_000, items }
  expect((await crowded.call('POST', '/provisioning/api/v1.1/rate-tables', { body: rateTable })).status).toBe(201)
  const context = await chromium.browser.newContext({ viewport: PHONE })
  onTestFinished(() => context.close())
  const page = await context.newPage()
  await page.goto(`${crowded.cloud.address}/console/sign-in#${await consoleCode(crowded)}`)
  await page.waitForURL(`${crowded.cloud.address}/console`)
  expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(PHONE.width)
  await page.getByRole('combobox', { name: 'Instance' }).selectOption({ index: 1 })
  await page.getByRole('button', { name: 'Show' }).click()
  await page.getByRole('heading', { level: 1, name: 'x'.repeat(100) }).waitFor()
  expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(PHONE.width)
  for (const path of ['', '/line-items', '/rate-tables', '/usage', '/audit']) {
    await page.goto(`${crowded.cloud.address}/console${path}?instance=${large}`)
    for (const width of [320, 768, 1025, 1280]) {
      await page.setViewportSize({ width, height: 740 })
      expect([path, await page.evaluate('document.documentElement.scrollWidth')]).toEqual([path, width])
    }
  }
})

it('names the first field of each row of a form on a phone', { timeout: 60_000 }, async () => {
  const { page } = await signIn({ viewport: PHONE })
  await page.goto(`${twin.cloud.address}/console/rate-tables/edit`)
  const label = await page.evaluate(`getComputedStyle(document.querySelector('.rows tbody th'), '::before').content`)
  expect(label).toBe('"Item"')
})

describe('a sign-in by URL', { timeout: 60_000 }, () => {
  it('works where the sign-in page is open already', async () => {
    const context = await chromium.browser.newContext({ viewport: PHONE })
    onTestFinished(() => context.close())
    const page = await context.newPage()
    await page.goto(`${twin.cloud.address}/console/sign-in`)
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(PHONE.width)
    await page.goto(`${twin.cloud.address}/console/sign-in#${await consoleCode(twin)}`)
    await page.waitForURL(`${twin.cloud.address}/console`)
  })

  it('leaves the code neither in the address nor in the history', async () => {
    const { page } = await signIn()
    await page.goBack()
    expect(page.url()).not.toContain('#')
  })

  it('shows the remedy when the code was used already', async () => {
    const { page } = await signIn()
    const code = await consoleCode(twin)
    await page.goto(`${twin.cloud.address}/console/sign-in#${code}`)
    await page.waitForURL(`${twin.cloud.address}/console`)
    await page.goto(`${twin.cloud.address}/console/sign-in#${code}`)
    await page.getByRole('alert').waitFor()
    expect(await page.getByRole('alert').textContent()).toContain('tallygate console')
  })
})

it('shows the device that was found by the start of its id', async () => {
  const { page } = await signIn()
  await page.goto(`${twin.cloud.address}/console/devices`)
  await page.getByRole('searchbox').fill(scene.device.id.slice(0, 8))
  await page.getByRole('button', { name: 'Search' }).click()
  await page.waitForURL(/search=/)
  expect(await page.getByRole('row').count()).toBe(2)
  expect(await page.getByRole('table').textContent()).toContain(scene.device.id)
})

it('keeps a name in one piece that is written from right to left, before an id', async () => {
  const body = { instanceIds: [scene.instanceId], name: 'מפעל 7 (A) - קו 3' }
  const token = text((await twin.call('POST', '/edge/api/v1/enrollment-tokens', { body })).body, 'token')
  const { jwk } = await newDeviceKeys()
  await twin.call('POST', '/edge/api/v1/enrollments', { token, body: { publicKey: jwk } })
  const { page } = await signIn()
  await page.goto(`${twin.cloud.address}/console/devices/command?command=lock&of=all&search=מפעל`)
  const ends = await page.evaluate(`['a', 'code'].map((name) => {
    const { left, right } = document.querySelector('li ' + name).getBoundingClientRect()
    return { left, right }
  })`)
  const [name, id] = ends as readonly { readonly left: number; readonly right: number }[]
  expect(id!.left).toBeGreaterThanOrEqual(name!.right)
})
