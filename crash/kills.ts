/**
 * Kill audit: agent and cloud under load are killed with SIGKILL at random moments (one, both, or during a start),
 * restarted and audited.
 */
import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Random, seeded } from '../src/demo/random.ts'
import { DeviceAudit } from './audit/device.ts'
import { hold } from './audit/ledger.ts'
import { TwinAudit } from './audit/twin.ts'
import { Applications } from './site/applications.ts'
import type { Launch } from './site/service.ts'
import { copyDatabase, Site } from './site/site.ts'

export interface KillOptions {
  readonly directory: string
  readonly kills: number
  readonly seed: number
  readonly applications: number
  readonly inFlight: number
  readonly launch?: Launch
  readonly onProgress: (report: KillReport) => void
}

export interface KillReport {
  readonly seed: number
  kills: number
  readonly killed: Record<Scenario, number>
  audits: number
  /** Answers received by applications, all found in the ledger. */
  answered: number
  repeats: number
  /** One-off requests without an answer: recorded or not. */
  unanswered: number
  /** The recorded ones of these. */
  recordedUnanswered: number
  entries: number
  billed: number
  segments: number
  ms: number
}

const SCENARIOS = [
  'agent',
  'twin',
  'both',
  'agent while starting',
  'twin while starting',
  'both while starting',
] as const
export type Scenario = (typeof SCENARIOS)[number]

const LOAD_MS = 600
/** Answers between two kills, unless a start is killed. */
const ANSWERS_MIN = 30
/** Approximate start time of a process: a second kill falls within it. */
const STARTING_MS = 1_500
/** Of ten kills, how many wait for delivery; the others meet a backlog. */
const WAITS_IN_TEN = 6

/** @throws AuditError when the books are wrong */
export async function auditKills(options: KillOptions): Promise<KillReport> {
  const { directory, seed } = options
  const began = performance.now()
  const random = seeded(seed)
  const killed = Object.fromEntries(SCENARIOS.map((scenario) => [scenario, 0])) as Record<Scenario, number>
  const report: KillReport = {
    ...{ seed, kills: 0, killed, audits: 0, answered: 0, repeats: 0, unanswered: 0, recordedUnanswered: 0 },
    ...{ entries: 0, billed: 0, segments: 0, ms: 0 },
  }
  await using site = await Site.make({ directory, agentSettings: { 'state-retained-max': '16MiB' } })
  site.startTwin()
  await site.twinReady()
  await site.provision()
  site.startAgent(options.launch)
  await site.agentServes()

  const { applications: number, inFlight } = options
  const { socketPath, instanceId } = site
  const load = { socketPath, instanceId, pauseMs: 30, random, applications: number, inFlight }
  using applications = new Applications(load)
  const books = new Books(site, applications)
  const update = (): void => {
    Object.assign(report, books.figures(), { ms: performance.now() - began })
    options.onProgress(report)
  }
  applications.begin()
  while (report.kills < options.kills) {
    const before = applications.told.length
    do {
      await sleep(random.between(0, LOAD_MS))
      applications.check()
    } while (applications.told.length < before + ANSWERS_MIN)
    const scenario = random.pick(SCENARIOS)
    const kills = await kill(site, scenario, random, () => books.audit(), options.launch)
    report.kills += kills
    report.killed[scenario] += kills
    await Promise.all([site.agent?.listening, site.twinReady()])
    if (random.between(1, 10) <= WAITS_IN_TEN) await books.auditDelivery()
    update()
  }
  await applications.end()
  await site.drained()
  books.auditEnd()
  update()
  return report
}

async function kill(
  site: Site,
  scenario: Scenario,
  random: Random,
  audit: () => void,
  launch?: Launch,
): Promise<number> {
  const agent = !scenario.startsWith('twin')
  const twin = !scenario.startsWith('agent')
  const once = async (): Promise<number> => {
    const victims = [agent ? site.agent : undefined, twin ? site.twin : undefined].filter((one) => one !== undefined)
    await Promise.all(victims.map((victim) => victim.end('SIGKILL')))
    audit()
    if (agent) site.startAgent(launch)
    if (twin) site.startTwin()
    return victims.length
  }
  const kills = await once()
  if (!scenario.endsWith('starting')) return kills
  await sleep(random.between(0, STARTING_MS))
  return kills + (await once())
}

class Books {
  readonly #site: Site
  readonly #applications: Applications
  readonly #device = new DeviceAudit()
  readonly #twin = new TwinAudit(this.#device.ledger)
  #audits = 0
  #found = 0
  #billed = 0
  #seq = 0
  #recordedUnanswered = 0

  constructor(site: Site, applications: Applications) {
    this.#site = site
    this.#applications = applications
  }

  /** Audits the current disks. Running processes are paused, so that both ledgers are of one moment. */
  audit(): void {
    const { agent, twin } = this.#site
    const still = [agent, twin].filter((service) => service?.isAlive === true)
    for (const service of still) service?.signal('SIGSTOP')
    try {
      this.#auditDevice()
      this.#auditTwin()
    } finally {
      for (const service of still) service?.signal('SIGCONT')
    }
    this.#audits += 1
  }

  /** Waits until the entries of the last audit are billed. */
  async auditDelivery(): Promise<void> {
    const known = this.#device.ledger.size
    const isDelivered = (lastEntry: number, backlog: number): boolean => lastEntry - backlog >= known
    await this.#site.until('what was recorded is delivered', (status) => isDelivered(status.lastEntry, status.backlog))
    this.audit()
    hold(this.#billed >= known, `${known} entries were recorded, ${this.#billed} are billed`)
  }

  auditEnd(): void {
    this.audit()
    const { ledger } = this.#device
    hold(this.#billed === ledger.size, `${ledger.size} entries are recorded, ${this.#billed} billed`)
    const recorded = new Map<string, number>()
    for (const { requester } of ledger.after(0)) recorded.set(requester, (recorded.get(requester) ?? 0) + 1)
    for (const { requester, told, unanswered } of this.#applications.lanes()) {
      const beyond = (recorded.get(requester) ?? 0) - told
      hold(beyond >= 0 && beyond <= unanswered, `${requester}: ${beyond} entries beyond what it received`)
      this.#recordedUnanswered += beyond
    }
  }

  figures(): Partial<KillReport> {
    const { told, repeats, unanswered } = this.#applications
    return {
      ...{ audits: this.#audits, answered: told.length, repeats },
      ...{ unanswered, recordedUnanswered: this.#recordedUnanswered },
      ...{ entries: this.#device.ledger.size, billed: this.#billed, segments: this.#seq },
    }
  }

  #auditDevice(): void {
    const count = this.#applications.told.length
    this.#onCopy(join(this.#site.agentState, 'journal.db'), (copy) => this.#device.read(copy))
    for (const { correlationId, charged } of this.#applications.told.slice(this.#found, count)) {
      const entry = this.#device.ledger.find(correlationId)
      hold(entry !== undefined, `${correlationId} was answered and is not in the ledger`)
      hold(entry.charged === charged, `${correlationId}: answered with ${charged}, recorded ${entry.charged}`)
    }
    this.#found = count
  }

  #auditTwin(): void {
    const file = join(this.#site.twinState, 'twin.db')
    // Reading beside a running cloud changes nothing; a dead cloud's log is left for its own recovery.
    const read = (path: string) => this.#twin.read(path)
    const { entries, seq } = this.#site.twin?.isAlive === true ? read(file) : this.#onCopy(file, read)
    hold(seq === 0 || this.#device.hasSealed(seq), `the twin has merged segment ${seq}, which the device never sealed`)
    this.#billed = entries
    this.#seq = seq
  }

  #onCopy<T>(file: string, read: (copy: string) => T): T {
    const directory = join(this.#site.directory, 'copy')
    mkdirSync(directory)
    try {
      const copy = join(directory, 'copy.db')
      copyDatabase(file, copy)
      return read(copy)
    } finally {
      rmSync(directory, { recursive: true })
    }
  }
}
