// Accessibility checks of pages in a real browser.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import type { AxeResults } from 'axe-core'
import type { Page } from 'playwright-core'

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

/** A page where fewer rules apply is empty. */
const RULES_MIN = 11

// The details of rules that a page meets cost more time than the check.
const RUN = `axe.run({ resultTypes: ['violations'] })`

/** One line for each rule that the page violates. */
export async function accessibilityProblems(page: Page): Promise<readonly string[]> {
  // The page's security policy does not apply to scripts of the debugger.
  if (await page.evaluate(`typeof axe === 'undefined'`)) await page.evaluate(AXE)
  const { violations, passes } = await page.evaluate<AxeResults>(RUN)
  if (passes.length < RULES_MIN) throw new Error(`only ${passes.length} rules of axe apply to ${page.url()}`)
  return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ html }) => html).join(' ')}`)
}
