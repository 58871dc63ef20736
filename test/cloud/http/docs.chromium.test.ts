// The reference in a real browser: Scalar runs under the content security policy, and reaches only this twin.
import type { Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { accessibilityProblems } from '../../support/axe.ts'
import { browserForTests } from '../../support/chromium.ts'
import { type Twin, openTwin } from '../harness.ts'

const chromium = browserForTests()
let twin: Twin

beforeAll(async () => {
  twin = await openTwin()
})
afterAll(() => twin[Symbol.asyncDispose]())

interface Look {
  readonly viewport: { readonly width: number; readonly height: number }
  readonly colorScheme: 'light' | 'dark'
}

const DESKTOP: Look = { viewport: { width: 1280, height: 900 }, colorScheme: 'light' }
const PHONE: Look = { viewport: { width: 390, height: 800 }, colorScheme: 'dark' }

interface Opened {
  readonly page: Page
  readonly complaints: readonly string[]
  readonly requests: readonly string[]
}

/** One page for all tests with script, which compiles the reference once. */
let shared: Page | undefined

async function open(path: string, { viewport, colorScheme }: Look = DESKTOP): Promise<Opened> {
  shared ??= await chromium.browser.newPage()
  const page = shared
  onTestFinished(async () => {
    page.removeAllListeners()
    await page.goto('about:blank')
  })
  await page.setViewportSize(viewport)
  await page.emulateMedia({ colorScheme })
  return openIn(page, path)
}

async function openIn(page: Page, path: string): Promise<Opened> {
  const complaints: string[] = []
  const requests: string[] = []
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') complaints.push(message.text())
  })
  page.on('pageerror', (error) => complaints.push(String(error)))
  page.on('request', (request) => requests.push(request.url()))
  await page.goto(`${twin.cloud.address}/docs${path}`)
  return { page, complaints, requests }
}

describe('the reference in a browser', { timeout: 120_000 }, () => {
  it('has a menu of the operations of each document', async () => {
    const { page, complaints, requests } = await open('')
    await page.getByRole('link', { name: 'Sessions' }).click()
    await page.getByRole('link', { name: /^Close a session/ }).click()
    await page.getByRole('heading', { name: 'Close a session' }).waitFor()
    await page.getByRole('button', { name: 'Service API v1.1' }).click()
    for (const title of ['Service API v1.0', 'Service API v1.1', 'Usage reports', 'Edge API']) {
      await page.getByRole('option', { name: title }).waitFor()
    }
    await page.getByRole('option', { name: 'Edge API' }).click()
    await page.getByRole('heading', { level: 1, name: 'Tallygate: edge API' }).waitFor()
    expect(complaints).toEqual([])
    expect(requests.filter((url) => !url.startsWith(twin.cloud.address))).toEqual([])
  })

  it('finds operations', async () => {
    const { page, complaints } = await open('')
    await page.getByRole('button', { name: /Open Search/ }).click()
    await page.keyboard.type('heartbeat')
    await page.getByRole('option', { name: /Send a heartbeat/ }).click()
    await page.getByRole('heading', { name: 'Send a heartbeat' }).waitFor()
    expect(complaints).toEqual([])
  })

  it('sends a call to this twin only, and shows the response', async () => {
    const instanceId = await twin.instance()
    const { page, complaints, requests } = await open('#v11/tag/instances/GET/provisioning/api/v1.1/instances')
    await page
      .getByRole('button', { name: /Test Request/ })
      .first()
      .click()
    await page.getByRole('textbox', { name: 'Bearer Token' }).click()
    await page.keyboard.insertText(await twin.administrationToken())
    await page.getByRole('button', { name: /^Send Request/ }).click()
    await page.getByRole('region', { name: 'Response' }).getByText(instanceId).first().waitFor()
    expect(complaints).toEqual([])
    expect(requests.filter((url) => !url.startsWith(twin.cloud.address))).toEqual([])
  })

  it('links to the documents without script', async () => {
    const plain = await chromium.browser.newPage({ javaScriptEnabled: false })
    onTestFinished(() => plain.close())
    const { page, complaints } = await openIn(plain, '')
    await page.getByRole('link', { name: 'Edge API' }).click()
    expect(page.url()).toBe(`${twin.cloud.address}/docs/edge.json`)
    expect(complaints).toEqual([])
  })

  for (const path of ['', '/errors']) {
    for (const look of [DESKTOP, PHONE]) {
      it(`is accessible: /docs${path}, ${look.colorScheme}, ${look.viewport.width} pixels`, async () => {
        const { page } = await open(path, look)
        await page.getByRole('heading', { level: 1 }).first().waitFor()
        expect(await accessibilityProblems(page)).toEqual([])
        const overflow = 'document.documentElement.scrollWidth - document.documentElement.clientWidth'
        expect(await page.evaluate(overflow)).toBe(0)
      })
    }
  }
})
