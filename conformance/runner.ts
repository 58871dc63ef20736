/**
 * Runs checks against one server. Those that move time or change what all customers share run alone, after all others; the
 * others run several at a time, each with things of its own.
 */
import { CHECKS } from './all-checks.ts'
import type { Check } from './check.ts'
import { STATEMENTS } from './statements.ts'
import { VERSIONS, type Version } from './version.ts'
import { Server, type Target, World } from './world.ts'

export interface Options {
  readonly versions?: readonly Version[]
  /** Words that the name of a check must hold. */
  readonly only?: string
  /** The server is for tests: what all of its customers share may be changed. */
  readonly scratch?: boolean
  /** The server has the operations and fields that are this project's own. */
  readonly extensions?: boolean
  /** Leave behind what the checks make. */
  readonly keep?: boolean
  /** Checks at a time; default 4. */
  readonly parallel?: number
  /** Told each result as it comes. */
  readonly onResult?: (result: Result) => void
}

export interface Result {
  readonly check: Check
  readonly version: Version
  readonly name: string
  readonly outcome: 'passed' | 'failed' | 'not shown'
  /** Of a failure what went wrong; of what is not shown, what it needs. */
  readonly because?: string
  readonly ms: number
}

/** Where the statements of a check stand, and its own words. */
function nameOf({ shows, name }: Check, version: Version): string {
  const [first] = shows
  const place = first === undefined ? '' : (STATEMENTS.get(first)?.place ?? first)
  return `${place}: ${name} [${version}]`
}

/** @throws when the server cannot be reached, or the administration key cannot be used */
export async function runChecks(target: Target, options: Options = {}): Promise<readonly Result[]> {
  const server = new Server(target)
  await server.open()
  await greet(server)
  const results = new Map<string, Result>()
  const jobs = CHECKS.flatMap((check) =>
    (check.versions ?? VERSIONS)
      .filter((version) => (options.versions ?? VERSIONS).includes(version))
      .map((version) => ({ check, version, name: nameOf(check, version) })),
  ).filter(({ name }) => options.only === undefined || name.toLowerCase().includes(options.only.toLowerCase()))

  const run = async ({ check, version, name }: (typeof jobs)[number]): Promise<void> => {
    const result = { check, version, name, ...(await outcomeOf(server, check, version, options)) }
    results.set(name, result)
    options.onResult?.(result)
  }
  const isAlone = (check: Check): boolean => (check.needs ?? []).some((need) => need !== 'extensions')
  const together = jobs.filter(({ check }) => !isAlone(check)).values()
  const worker = async (): Promise<void> => {
    for (const job of together) await run(job)
  }
  await Promise.all(Array.from({ length: options.parallel ?? 4 }, worker))
  for (const job of jobs) if (isAlone(job.check)) await run(job)
  await server.close()
  return jobs.map(({ name }) => results.get(name)).filter((result) => result !== undefined)
}

/** `fetch` gives the reason as the cause. */
function unreachable({ target: { url } }: Server) {
  return (error: Error): never => {
    const { cause = error } = error
    throw new Error(`${url} does not respond: ${cause instanceof Error ? cause.message : String(cause)}`)
  }
}

async function greet(server: Server): Promise<void> {
  const { status, text } = await server
    .send('GET', 'provisioning/api', 'v1.1', '/instances?size=1')
    .catch(unreachable(server))
  if (status !== 200) throw new Error(`the administration key opens nothing at this address: ${status} ${text}`)
}

async function outcomeOf(
  server: Server,
  check: Check,
  version: Version,
  { scratch = false, extensions = false, keep = false }: Options,
): Promise<Pick<Result, 'outcome' | 'because' | 'ms'>> {
  const needs = check.needs ?? []
  if (needs.includes('clock') && server.target.clock === undefined) {
    return { outcome: 'not shown', because: 'needs a clock', ms: 0 }
  }
  if (needs.includes('scratch') && !scratch) {
    return { outcome: 'not shown', because: 'needs a server for tests (--scratch)', ms: 0 }
  }
  if (needs.includes('extensions') && !extensions) {
    return { outcome: 'not shown', because: 'needs operations of this project (--extensions)', ms: 0 }
  }
  const world = new World(server, version)
  const begun = performance.now()
  try {
    await check.run(world)
    return { outcome: 'passed', ms: performance.now() - begun }
  } catch (error) {
    const because = error instanceof Error ? error.message : String(error)
    return { outcome: 'failed', because, ms: performance.now() - begun }
  } finally {
    await world.close(keep)
  }
}
