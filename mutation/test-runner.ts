/**
 * Stryker's test runner: all tests of an area in one process, which imports its modules once. Which mutant is active is looked up
 * when the code runs, so that nothing need be loaded again for the next one.
 *
 * What a mutant leaves behind in the process must not kill the next one: the test that failed is run again without a mutant. If it
 * fails again, the process ends, and Stryker begins the mutant anew in another one.
 */
import { AsyncResource } from 'node:async_hooks'
import { existsSync, globSync, readFileSync, writeFileSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import { registerHooks } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { setImmediate as nextTurn, setTimeout as delay } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { areaNamed } from './areas.ts'
import { EndlessGuard } from './endless.ts'
import { type Suite, type Test, collect, collected, finishers, suitesOf } from './test-api.ts'

const REPLACED: Readonly<Record<string, string>> = {
  vitest: new URL('test-api.ts', import.meta.url).href,
  'fast-check': new URL('fast-check.ts', import.meta.url).href,
}
/**
 * A test that waits while nothing in the process is under way waits for ever. Looks are counted instead of time, so that a busy machine
 * makes them later, and not fewer.
 */
const IDLE_LOOKS_MAX = 10
const LOOK_EVERY_MS = 20
/** A cloud always has something under way, such as its timers: there, a test that waits for ever ends after so many looks. */
const LOOKS_MAX = 1_000
/** Stryker gives up after 100 times as many visits as all tests make together; a fiftieth of that is as sure, and sooner. */
const HIT_LIMIT_SHARE = 0.02

/** A mutant that survives the likeliest of its tests for so long, in time of the processor, counts as a survivor: scores are lower bounds. */
const SURVIVED_MS = 3_000
/** How long each test takes, for the processes that take over. */
const ELAPSED_FILE = join(tmpdir(), `tallygate-elapsed-${process.ppid}`)

/** What the mutated code looks at. */
interface Shared {
  activeMutant?: string | undefined
  currentTestId?: string | undefined
  hitCount?: number | undefined
  hitLimit?: number | undefined
  mutantCoverage?: unknown
}

interface MutantRun {
  readonly activeMutant: { readonly id: string; readonly fileName: string }
  readonly testFilter?: readonly string[]
  readonly hitLimit?: number
}

interface Failure {
  readonly id: string
  readonly message: string
}

class TestRunner {
  readonly #shared: Shared = ((globalThis as { __stryker__?: Shared }).__stryker__ ??= {})
  #tests: readonly Test[] = []
  readonly #endless = new EndlessGuard()
  #elapsedMs = new Map<string, number>()
  /** The tests that killed a mutant, the last one first: it often kills the next one too. */
  #killers: readonly string[] = []
  /** What is always under way, such as the connection to Stryker. */
  #underWayMin = Infinity
  /** What a look begins by itself. */
  #begunByLookMin = Infinity
  #hasRun = false
  #isSpoiled = false
  readonly #unhandled: unknown[] = []

  /** What a mutant changes while modules load is not tested: there is nothing to load again. */
  capabilities(): unknown {
    return { reloadEnvironment: true }
  }

  async init(): Promise<void> {
    process.on('unhandledRejection', (reason) => this.#unhandled.push(reason))
    registerHooks({
      resolve: (specifier, context, next) => {
        const url = REPLACED[specifier]
        const isOurs = context.parentURL?.includes('/node_modules/') === false
        return url !== undefined && isOurs ? { url, shortCircuit: true } : next(specifier, context)
      },
    })
    for (let n = 0, before = -Infinity; n < IDLE_LOOKS_MAX; n += 1) {
      const begun = (await look()) ?? before
      this.#begunByLookMin = Math.min(this.#begunByLookMin, begun - before)
      before = begun
    }
    if (existsSync(ELAPSED_FILE)) {
      this.#elapsedMs = new Map(JSON.parse(readFileSync(ELAPSED_FILE, 'utf8')) as [string, number][])
    }
    const area = areaNamed(process.env['TALLYGATE_MUTATION_AREA'])
    for (const file of globSync([...area.tests]).toSorted()) {
      await collect(file, () => import(pathToFileURL(resolve(file)).href))
    }
    this.#tests = collected.filter(({ id }) => !area.without?.some((part) => id.includes(part)))
  }

  async dryRun(): Promise<unknown> {
    const tests = []
    for (const test of this.#tests) {
      this.#shared.currentTestId = test.id
      const start = performance.now()
      const failure = await this.#firstFailure([test])
      const timeSpentMs = performance.now() - start
      this.#shared.currentTestId = undefined
      const result = failure === null ? { status: 0 } : { status: 1, failureMessage: failure.message }
      tests.push({ id: test.id, name: test.id, fileName: suitesOf(test)[0]?.name, timeSpentMs, ...result })
    }
    writeFileSync(ELAPSED_FILE, JSON.stringify([...this.#elapsedMs]))
    return { status: 'complete', tests, mutantCoverage: this.#shared.mutantCoverage }
  }

  async mutantRun({ activeMutant, testFilter, hitLimit: hitMax }: MutantRun): Promise<unknown> {
    const hitLimit = hitMax === undefined ? undefined : Math.ceil(hitMax * HIT_LIMIT_SHARE)
    if (this.#endless.isEndless(activeMutant.id)) return { status: 'timeout', reason: 'it never ended' }
    this.#endIfSpoiled()
    const wasUnused = !this.#hasRun
    this.#hasRun = true
    const wanted = testFilter === undefined ? null : new Set(testFilter)
    const reaching = this.#tests.filter(({ id }) => wanted?.has(id) ?? true)
    const tests = this.#likelyFirst(reaching, activeMutant.fileName)
    Object.assign(this.#shared, {
      activeMutant: activeMutant.id,
      hitCount: hitLimit === undefined ? undefined : 0,
      hitLimit,
    })
    const failure = await this.#firstFailure(tests, activeMutant.id)
    const { hitCount } = this.#shared
    Object.assign(this.#shared, { activeMutant: undefined, hitCount: undefined })
    this.#endless.rest()
    if (failure === null) return { status: 'survived', nrOfTests: tests.length }
    const failing = tests.filter(({ id }) => id === failure.id)
    const again = await this.#firstFailure(failing, activeMutant.id)
    this.#endless.rest()
    if (again !== null && !wasUnused) process.exit(1)
    this.#isSpoiled = again !== null
    this.#killers = [failure.id, ...this.#killers.filter((id) => id !== failure.id)].slice(0, 5)
    if ((hitCount ?? 0) > (hitLimit ?? Infinity)) return { status: 'timeout', reason: 'it never ended' }
    return { status: 'killed', killedBy: [failure.id], failureMessage: failure.message, nrOfTests: tests.length }
  }

  #endIfSpoiled(): void {
    if (this.#isSpoiled) process.exit(1)
  }

  /** The last killers, then the tests of the mutated file, of its folder, of the folder above, and others; of each, the quickest first. */
  #likelyFirst(tests: readonly Test[], mutated: string): readonly Test[] {
    const own = mutated.replace(/^.*\/src\//, 'test/').replace(/ts$/, 'test.ts')
    const distance = ({ id }: Test): number => {
      const at = this.#killers.indexOf(id)
      if (at !== -1) return at - this.#killers.length
      if (id.startsWith(own)) return 0
      if (id.startsWith(`${dirname(own)}/`)) return 1
      return id.startsWith(`${dirname(dirname(own))}/`) ? 2 : 3
    }
    const elapsed = ({ id }: Test): number => this.#elapsedMs.get(id) ?? 0
    return tests.toSorted((a, b) => distance(a) - distance(b) || elapsed(a) - elapsed(b))
  }

  async #firstFailure(tests: readonly Test[], mutant?: string): Promise<Failure | null> {
    const begun = new Set<Suite>()
    let failure: Failure | null = null
    const before = process.cpuUsage()
    for (const test of tests) {
      const { user, system } = process.cpuUsage(before)
      if ((user + system) / 1_000 > SURVIVED_MS) break
      const start = performance.now()
      if (mutant !== undefined) this.#endless.begin(mutant)
      failure = await this.#failureOf(test, begun)
      if (failure !== null) break
      this.#elapsedMs.set(test.id, performance.now() - start)
    }
    const after = [...begun].toReversed().flatMap((suite) => suite.hooks.afterAll)
    const failureAfter = await failed('', () => inTurn(after))
    return failure ?? failureAfter
  }

  async #failureOf(test: Test, begun: Set<Suite>): Promise<Failure | null> {
    const suites = suitesOf(test)
    const cleanUp: (() => unknown)[] = []
    const body = async (): Promise<void> => {
      for (const suite of suites.filter((each) => !begun.has(each))) {
        begun.add(suite)
        await inTurn(suite.hooks.beforeAll)
      }
      for (const before of suites.flatMap((suite) => suite.hooks.beforeEach)) {
        const after = await before({ skip })
        if (typeof after === 'function') cleanUp.push(after as () => unknown)
      }
      await test.run({ skip })
    }
    const failure = await failed(test.id, () => this.#inTime(body))
    const after = suites.toReversed().flatMap((suite) => suite.hooks.afterEach.toReversed())
    const last = [...after, ...cleanUp, ...finishers.splice(0).toReversed(), () => this.#requireNoneUnhandled()]
    const failureAfter = await failed(test.id, () => this.#inTime(() => inTurn(last)))
    return failure ?? failureAfter
  }

  async #requireNoneUnhandled(): Promise<void> {
    await nextTurn()
    if (this.#unhandled.splice(0).length > 0) throw new Error('a promise was rejected without a handler')
  }

  async #inTime(run: () => Promise<void>): Promise<void> {
    this.#underWayMin = Math.min(this.#underWayMin, process.getActiveResourcesInfo().length)
    const over = new AbortController()
    try {
      await Promise.race([run(), this.#neverEnds(over.signal)])
    } finally {
      over.abort()
    }
  }

  /** @throws Error once the test waits for ever */
  async #neverEnds(over: AbortSignal): Promise<void> {
    let before = Infinity
    for (let looks = 0, idleLooks = 0; idleLooks < IDLE_LOOKS_MAX && looks < LOOKS_MAX; looks += 1) {
      const begun = await look(over)
      if (begun === null) return
      const isIdle =
        process.getActiveResourcesInfo().length <= this.#underWayMin && begun - before <= this.#begunByLookMin
      idleLooks = isIdle ? idleLooks + 1 : 0
      before = begun
    }
    throw new Error('the test waits for ever')
  }
}

/**
 * Node does not list work on its thread pool, such as signatures, among what is under way. The pool has one thread here (`run.ts`), and
 * serves in order: after a request of our own, all that was requested before is done. What follows from that has begun since.
 *
 * @returns how much the process has ever begun; null if the test is over
 */
async function look(over?: AbortSignal): Promise<number | null> {
  const isOver = await delay(LOOK_EVERY_MS, false, { signal: over }).catch(() => true)
  if (isOver) return null
  await stat('.')
  await nextTurn()
  return new AsyncResource('look').asyncId()
}

async function inTurn(runs: readonly (() => unknown)[]): Promise<void> {
  for (const run of runs) await run()
}

class Skipped extends Error {}

function skip(condition?: unknown): void {
  if (condition !== false) throw new Skipped()
}

async function failed(id: string, run: () => Promise<void>): Promise<Failure | null> {
  try {
    await run()
    return null
  } catch (error) {
    if (error instanceof Skipped) return null
    return { id, message: error instanceof Error ? error.message : String(error) }
  }
}

export const strykerPlugins = [{ kind: 'TestRunner', name: 'one-process', injectableClass: TestRunner }]
