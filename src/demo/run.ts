/** Plays a day on real processes, with the network cut in its middle third, and compares the ledgers. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { makeAccessToken } from '../client/access-token.ts'
import { HttpClient } from '../client/http.ts'
import { CodedError } from '../protocol/errors.ts'
import type { AgentStatus } from '../protocol/local/status.ts'
import { Chaos, planChaos } from './chaos.ts'
import { requestsOfDay, type DayRequest } from './day.ts'
import { alarmsOf, readLedgers, readStatus } from './ledgers.ts'
import { Applications } from './play.ts'
import type { Presenter } from './presenter.ts'
import { enrollmentToken, provision } from './provision.ts'
import { type Proxy, startProxy } from './proxy.ts'
import { type Random, seeded } from './random.ts'
import { seconds } from './report.ts'
import { compare, type DemoResult, type Phase, wrongRefusals } from './result.ts'
import { type Scene, playRuleScene, playSessionScene } from './scenes.ts'
import { killRunning } from './service-process.ts'
import { Agent, Twin } from './services.ts'
import { LINE_ITEMS, RATE_TABLES } from './site.ts'

export interface DemoOptions {
  readonly connections: number
  readonly kills: number
  readonly chaos: boolean
  readonly seed: number
  readonly keep: boolean
  readonly presenter: Presenter
  readonly signal: AbortSignal
}

const READY_WITHIN_MS = 120_000
const DRAINED_WITHIN_MS = 120_000
const REQUEST_WITHIN_MS = 60_000
const STOP_WITHIN_MS = 5_000
const LOOK_EVERY_MS = 25

/** @throws CodedError when a service fails, or the signal's reason; processes and directories are removed first */
export async function runDemo(options: DemoOptions): Promise<DemoResult> {
  const began = performance.now()
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-demo-'))
  if (options.keep) options.presenter.step(`Databases and logs are in ${directory}`)
  const lastResort = (): void => {
    killRunning()
    if (!options.keep) rmSync(directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 20 })
  }
  // Also runs on an immediate exit, such as a second Ctrl-C.
  process.once('exit', lastResort)
  try {
    return await Promise.race([play(options, directory, began), aborted(options.signal)])
  } finally {
    process.removeListener('exit', lastResort)
    lastResort()
  }
}

function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    const fail = (): void => reject(signal.reason as Error)
    if (signal.aborted) fail()
    else signal.addEventListener('abort', fail, { once: true })
  })
}

interface Site extends Scene {
  readonly twin: Twin
  readonly agent: Agent
  readonly proxies: readonly Proxy[]
  readonly clockErrorFile: string
}

async function startSite(options: DemoOptions, directory: string, stack: AsyncDisposableStack): Promise<Site> {
  const { presenter, signal } = options
  const network = { http: await startProxy(), push: await startProxy() }
  const proxies = Object.values(network)
  for (const proxy of proxies) stack.defer(() => proxy.close())

  const twin = new Twin({
    directory,
    readyWithinMs: READY_WITHIN_MS,
    // Ports for devices: those of the proxy, which can be cut.
    publicPorts: { http: network.http.port, push: network.push.port },
  })
  await twin.start()
  stack.defer(() => twin.stop(STOP_WITHIN_MS))
  network.http.lead(twin.httpPort)
  network.push.lead(twin.pushPort)
  presenter.step(`The cloud runs at ${twin.url}`)

  const token = await makeAccessToken({
    kind: 'ADMIN',
    privateKey: readFileSync(twin.adminKeyFile, 'utf8'),
    instanceIds: [],
    issuer: 'tallygate demo',
    now: Date.now(),
    lifetimeMs: 3_600_000,
  })
  const headers = { authorization: `Bearer ${token}` }
  const administrator = stack.use(new HttpClient({ address: twin.url, headers, unreachable: 'CLOUD_UNREACHABLE' }))
  const instanceId = await provision(administrator, Date.now())
  const ahead = RATE_TABLES.filter(({ effectiveIn }) => effectiveIn > 0).length
  presenter.step(
    `It has a site: ${LINE_ITEMS.length} line items, ${RATE_TABLES.length} rate tables (${ahead} not yet in effect)`,
  )

  const clockErrorFile = join(directory, 'clock-error')
  const agent = new Agent({
    directory,
    ...(options.chaos ? { clockErrorFile } : {}),
    enrollmentToken: await enrollmentToken(administrator, instanceId),
    readyWithinMs: READY_WITHIN_MS,
  })
  await agent.start()
  stack.defer(() => agent.stop(STOP_WITHIN_MS))
  const { socketPath } = agent
  const technician = stack.use(new HttpClient({ address: `unix:${socketPath}`, unreachable: 'AGENT_UNREACHABLE' }))
  const scene = { socketPath, instanceId, technician, administrator, presenter, signal }
  return { ...scene, twin, agent, proxies, clockErrorFile }
}

async function play(options: DemoOptions, directory: string, began: number): Promise<DemoResult> {
  await using stack = new AsyncDisposableStack()
  const site = await startSite(options, directory, stack)
  const { agent, presenter, technician, administrator, instanceId } = site
  const ready = await waitUntil(
    site,
    'the agent has its rules and a grant',
    ({ policies, grant }) =>
      grant !== null && policies.some(({ applied, newest }) => applied > 0 && applied === newest),
  )
  presenter.step(
    `The agent is enrolled, has the rules (revision ${ready.policies[0]?.applied ?? 0}) and its first grant`,
  )
  const { phases, disturbances } = await playDay(options, site)
  await playRuleScene(site)
  await playSessionScene(site)

  const drainBegan = performance.now()
  await waitUntil(
    site,
    'the cloud has acknowledged everything',
    ({ connected, backlog, unacknowledgedSeq }) => connected && backlog === 0 && unacknowledgedSeq === null,
  )
  const drainMs = performance.now() - drainBegan
  presenter.step(`The cloud has acknowledged every entry of the ledger, ${seconds(drainMs)} s after the last request`)

  const answered = phases.flatMap((each) => each.answered)
  return {
    phases,
    comparisons: compare(answered, await readLedgers(technician, administrator, instanceId)),
    wrong: wrongRefusals(answered),
    alarms: await alarmsOf(administrator, instanceId),
    kills: agent.kills,
    disturbances,
    drainMs,
    totalMs: performance.now() - began,
    directory: options.keep ? directory : null,
  }
}

async function playDay(options: DemoOptions, site: Site): Promise<Pick<DemoResult, 'phases' | 'disturbances'>> {
  const { agent, twin, proxies, presenter, signal, instanceId } = site
  const day = requestsOfDay()
  const third = Math.ceil(day.length / 3)
  const kills = new Set(momentsOfKills(seeded(options.seed), options.kills, day.length))
  const plan = options.chaos ? planChaos(seeded(options.seed), day.length, [third, 2 * third]) : []
  const chaos = new Chaos(plan, { ...site, network: proxies })
  using applications = new Applications({
    socketPath: agent.socketPath,
    instanceId,
    connections: options.connections,
    signal,
    patienceMs: REQUEST_WITHIN_MS,
    onAnswer: (answered, request) => {
      if (kills.has(answered)) agent.killAndRestart()
      chaos.at(answered, request.at)
      const killed = agent.kills === 0 ? '' : `, agent killed ${agent.kills}×`
      presenter.progress(answered, day.length, `${request.at.slice(0, 5)}${killed}`)
    },
  })
  const phase = async (name: string, online: boolean, requests: readonly DayRequest[]): Promise<Phase> => {
    const start = performance.now()
    const answered = await Promise.race([applications.play(requests), agent.failure, twin.failure])
    await chaos.over()
    const ms = performance.now() - start
    const rate = Math.round((answered.length / ms) * 1000)
    presenter.step(
      `${requests[0]?.at.slice(0, 5) ?? ''} to ${requests.at(-1)?.at.slice(0, 5) ?? ''}, ` +
        `${online ? 'online' : 'network cut off'}: ${answered.length} requests answered, ${rate} per second`,
    )
    return { name, network: online ? 'online' : 'cut off', answered, ms }
  }

  const morning = await phase('morning', true, day.slice(0, third))
  await Promise.all(proxies.map((proxy) => proxy.cut()))
  const midday = await phase('midday', false, day.slice(third, 2 * third))
  const restored = performance.now()
  await Promise.all(proxies.map((proxy) => proxy.restore()))
  await waitUntil(site, 'the agent has reached the cloud again', ({ connected }) => connected)
  presenter.step(
    `The network is back; the agent reached the cloud again after ${seconds(performance.now() - restored)} s`,
  )
  const evening = await phase('evening', true, day.slice(2 * third))
  return { phases: [morning, midday, evening], disturbances: chaos.counts() }
}

/** Polls the agent until the condition is met; a restarting agent does not respond for a while. */
async function waitUntil(
  { technician, agent, signal }: Site,
  what: string,
  condition: (status: AgentStatus) => boolean,
): Promise<AgentStatus> {
  const deadline = performance.now() + DRAINED_WITHIN_MS
  let last: AgentStatus | undefined
  while (performance.now() < deadline) {
    signal.throwIfAborted()
    try {
      last = await Promise.race([readStatus(technician), agent.failure])
      if (condition(last)) return last
    } catch (error) {
      if (!(error instanceof CodedError && error.code === 'AGENT_UNREACHABLE')) throw error
    }
    await sleep(LOOK_EVERY_MS)
  }
  const conditions = last?.conditions.map(({ subject, code, message }) => `${subject}: ${code}: ${message}`) ?? []
  throw new CodedError(
    'DEMO_FAILED',
    `Still not true after ${DRAINED_WITHIN_MS / 1000} s: ${what}. ` +
      (conditions.length === 0 ? `The agent reports no problem.` : `The agent reports: ${conditions.join('; ')}`),
  )
}

function momentsOfKills(random: Random, kills: number, requests: number): readonly number[] {
  const moments = new Set<number>()
  while (moments.size < Math.min(kills, requests - 1)) moments.add(random.between(1, requests - 1))
  return [...moments]
}
