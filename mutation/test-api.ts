// What a test file imports from Vitest, for tests that run again and again in one process: a file is imported once, and each test
// of it can be run alone, as often as there are mutants.
export { expect, vi } from '../node_modules/vitest/dist/index.js'

type Run = (context?: unknown) => unknown
type Body = (...values: readonly unknown[]) => unknown
type Hook = 'beforeAll' | 'beforeEach' | 'afterEach' | 'afterAll'

export interface Suite {
  readonly name: string
  readonly parent: Suite | null
  readonly hooks: Readonly<Record<Hook, Run[]>>
}

export interface Test {
  readonly id: string
  readonly suite: Suite
  readonly run: (context: unknown) => unknown
}

export const collected: Test[] = []
/** What is called after the present test, the last one first. */
export const finishers: Run[] = []

let current = newSuite('', null)

function newSuite(name: string, parent: Suite | null): Suite {
  return { name, parent, hooks: { beforeAll: [], beforeEach: [], afterEach: [], afterAll: [] } }
}

/** The tests of a file, which `load` imports. */
export async function collect(file: string, load: Run): Promise<void> {
  current = newSuite(file, null)
  await load()
}

export function suitesOf({ suite }: Test): readonly Suite[] {
  const suites: Suite[] = []
  for (let each: Suite | null = suite; each !== null; each = each.parent) suites.unshift(each)
  return suites
}

type Define = (name: string, body: Body, values: readonly unknown[], hasContext: boolean) => void

/** `it` and `describe`: both can be skipped, and both can be defined for each row of a table. */
function definer(define: Define): unknown {
  const one = (name: string, ...rest: readonly unknown[]): void => define(name, bodyOf(rest), [], true)
  const forRows =
    (spreads: boolean) =>
    (rows: readonly unknown[]) =>
    (name: string, ...rest: readonly unknown[]): void => {
      rows.forEach((row, index) => {
        const values = spreads && Array.isArray(row) ? (row as readonly unknown[]) : [row]
        // Values may be random, such as keys: a test must have the same name in each process.
        define(`${name} (${index})`, bodyOf(rest), values, !spreads)
      })
    }
  const skip = Object.assign((): void => undefined, { each: () => (): void => undefined })
  const all = Object.assign(one, { each: forRows(true), for: forRows(false), skip })
  return Object.assign(all, { skipIf: (isSkipped: unknown) => (isSkipped ? skip : all) })
}

/** Options and limits of time may stand before and after the body. */
function bodyOf(rest: readonly unknown[]): Body {
  return rest.find((each) => typeof each === 'function') as Body
}

export const describe = definer((name, body, values) => {
  const outer = current
  current = newSuite(name, outer)
  body(...values)
  current = outer
})

const defineTest: Define = (name, body, values, hasContext) => {
  const run = (context: unknown): unknown => (hasContext ? body(...values, context) : body(...values))
  const test = { suite: current, run }
  const path = [...suitesOf({ ...test, id: '' }).map((suite) => suite.name), name].join(' > ')
  const alike = collected.filter(({ id }) => id === path || id.startsWith(`${path} #`)).length
  collected.push({ ...test, id: alike === 0 ? path : `${path} #${alike}` })
}

export const it = definer(defineTest)
export const test = definer(defineTest)

const hook =
  (kind: Hook) =>
  (run: Run): void => {
    current.hooks[kind].push(run)
  }
export const beforeAll = hook('beforeAll')
export const beforeEach = hook('beforeEach')
export const afterEach = hook('afterEach')
export const afterAll = hook('afterAll')

export function onTestFinished(run: Run): void {
  finishers.push(run)
}
