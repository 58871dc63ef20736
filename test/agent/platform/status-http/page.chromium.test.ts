// The status page in a real browser: it fits, it can be used without a mouse or eyes, it refreshes, and it runs nothing else.
import type { Page } from 'playwright-core'
import { describe, expect, it, onTestFinished } from 'vitest'
import { openStatus } from '../../../../src/agent/platform/status-http/server.ts'
import type { DeviceReportWire } from '../../../../src/protocol/local/report.ts'
import { accessibilityProblems } from '../../../support/axe.ts'
import { browserForTests } from '../../../support/chromium.ts'
import { SCENES } from './scenes.ts'

const PHONE = { width: 360, height: 740 }
const DESKTOP = { width: 1280, height: 900 }

const chromium = browserForTests()

class Shown {
  report: DeviceReportWire
  readonly complaints: string[] = []
  readonly page: Page
  readonly stop: () => Promise<void>

  private constructor(report: DeviceReportWire, page: Page, stop: () => Promise<void>) {
    this.report = report
    this.page = page
    this.stop = stop
  }

  static async open(
    scene: keyof typeof SCENES,
    viewport: { readonly width: number; readonly height: number },
    colorScheme: 'light' | 'dark' = 'light',
    javaScriptEnabled = true,
  ): Promise<Shown> {
    const page = await chromium.browser.newPage({ viewport, colorScheme, javaScriptEnabled })
    onTestFinished(() => page.close())
    return Shown.on(page, scene)
  }

  static async on(page: Page, scene: keyof typeof SCENES): Promise<Shown> {
    const holder: { shown?: Shown } = {}
    const server = await openStatus({
      port: 0,
      auth: { host: '127.0.0.1', tls: null, token: null },
      report: async () => holder.shown?.report ?? SCENES[scene],
      readiness: async () => ({ ready: true, checks: [] }),
      onFault: (error) => shown.complaints.push(String(error)),
    })
    const shown = new Shown(SCENES[scene], page, () => server.stop())
    holder.shown = shown
    onTestFinished(async () => {
      page.removeAllListeners()
      await server.stop()
    })
    // A page that is shown still asks its own server, also in the moments before it is replaced.
    await page.goto('about:blank')
    page.on('console', (message) => {
      if (message.type() === 'error' || message.type() === 'warning') shown.complaints.push(message.text())
    })
    page.on('pageerror', (error) => shown.complaints.push(String(error)))
    page.on('dialog', (dialog) => {
      shown.complaints.push('a dialog')
      void dialog.dismiss()
    })
    page.on('request', (request) => {
      if (!request.url().startsWith(server.origin) && !request.url().startsWith('data:')) {
        shown.complaints.push(`it asked for ${request.url()}`)
      }
    })
    await page.goto(server.origin)
    return shown
  }

  /** Pixels of tables that only show by scrolling. */
  async hiddenByScrolling(): Promise<number> {
    const each = "[...document.querySelectorAll('.scroll')].map((box) => box.scrollWidth - box.clientWidth)"
    return Number(await this.page.evaluate(`Math.max(...${each})`))
  }

  /** Pixels of the narrowest line that values are broken into. */
  async narrowest(): Promise<number> {
    const width = `(cell) => {
      const columns = getComputedStyle(cell).gridTemplateColumns
      return cell.clientWidth === 0 || columns === 'none' ? cell.clientWidth : parseFloat(columns.split(' ').at(-1))
    }`
    return Number(
      await this.page.evaluate(`Math.min(...[...document.querySelectorAll('dd, td')].map(${width}).filter(Boolean))`),
    )
  }

  /** Words of codes that do not fit one line. */
  async brokenWords(): Promise<unknown> {
    return this.page.evaluate(`[...document.querySelectorAll('.problem strong')]
      .flatMap((code) => [...code.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE))
      .flatMap((text) => [...text.data.matchAll(/[A-Z]+/g)].filter(({ 0: word, index }) => {
        const range = document.createRange()
        range.setStart(text, index)
        range.setEnd(text, index + word.length)
        return range.getClientRects().length > 1
      }))
      .map(([word]) => word)`)
  }

  /** Pixels by which the page is wider than its window. */
  async overflow(): Promise<number> {
    return Number(
      await this.page.evaluate('document.documentElement.scrollWidth - document.documentElement.clientWidth'),
    )
  }
}

/** Where to keep the pictures, to look at them. */
function pictureFile(scene: string, width: number): string | null {
  const directory = process.env['TALLYGATE_TEST_PICTURES']
  return directory === undefined ? null : `${directory}/${scene}-${width}.png`
}

describe('the status page in a browser', { timeout: 60_000 }, () => {
  // One page for all scenes: each page of a browser is a process.
  let shared: Page | undefined

  for (const scene of Object.keys(SCENES) as (keyof typeof SCENES)[]) {
    it(`fits a phone and a desktop, and is accessible: ${scene}`, async () => {
      shared ??= await chromium.browser.newPage()
      const shown = await Shown.on(shared, scene)
      for (const [viewport, colorScheme] of [
        [PHONE, 'dark'],
        [DESKTOP, 'light'],
      ] as const) {
        await shown.page.setViewportSize(viewport)
        await shown.page.emulateMedia({ colorScheme })
        expect(await shown.page.getByRole('status').textContent()).toBe(SCENES[scene].health.sentence)
        expect(await shown.overflow()).toBe(0)
        if (viewport === PHONE) expect(await shown.hiddenByScrolling()).toBe(0)
        const path = pictureFile(scene, viewport.width)
        if (path !== null) await shown.page.screenshot({ fullPage: true, path })
        expect(await shown.page.title()).toBe('Device status - Tallygate')
        expect(shown.complaints).toEqual([])
        expect(await accessibilityProblems(shown.page)).toEqual([])
      }
    })
  }

  it('can be read on a phone with text of twice the size, in every state', async () => {
    const page = await chromium.browser.newPage({ viewport: PHONE, javaScriptEnabled: false })
    onTestFinished(() => page.close())
    const browser = await page.context().newCDPSession(page)
    await browser.send('Page.setFontSizes', { fontSizes: { standard: 32, fixed: 26 } })
    for (const scene of Object.keys(SCENES) as (keyof typeof SCENES)[]) {
      const shown = await Shown.on(page, scene)
      expect(await page.evaluate('getComputedStyle(document.documentElement).fontSize')).toBe('32px')
      expect(await shown.overflow(), scene).toBe(0)
      expect(await shown.hiddenByScrolling(), scene).toBe(0)
      expect(await shown.narrowest(), scene).toBeGreaterThan(180)
      expect(await shown.brokenWords(), scene).toEqual([])
      const path = pictureFile(`${scene}-large`, PHONE.width)
      if (path !== null) await page.screenshot({ fullPage: true, path })
      await shown.stop()
    }
  })

  it('updates itself, and keeps the focus', async () => {
    const shown = await Shown.open('working', DESKTOP)
    const { page } = shown
    const focused = () => page.evaluate('document.activeElement.getAttribute("aria-label")')
    await page.keyboard.press('Tab')
    expect(await focused()).toBe('Table of tokens')
    shown.report = SCENES.offline
    await page.getByText(SCENES.offline.health.sentence).waitFor({ timeout: 15_000 })
    await page.getByText('CLOUD_UNREACHABLE').waitFor()
    expect(await focused()).toBe('Table of tokens')
    expect(shown.complaints).toEqual([])
  })

  it('shows that the agent no longer answers', async () => {
    const shown = await Shown.open('working', PHONE)
    await shown.page.getByText('Refreshed every 2 seconds.').waitFor({ timeout: 15_000 })
    await shown.stop()
    const note = shown.page.getByText('The agent does not respond')
    await note.waitFor({ timeout: 15_000 })
    expect((await note.boundingBox())?.y).toBeLessThan(PHONE.height)
    expect(await shown.page.getByRole('status').textContent()).toBe(SCENES.working.health.sentence)
  })

  it('is whole without script', async () => {
    const shown = await Shown.open('offline', PHONE, 'light', false)
    expect(await shown.page.getByText('CLOUD_UNREACHABLE').count()).toBe(1)
    expect(await shown.page.getByRole('row').count()).toBeGreaterThan(8)
  })
})
