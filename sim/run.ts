/**
 * Runs a plan and audits each step, then ends the faults and waits for rest. Deterministic: the same plan with the same
 * defects gives the same events on every machine.
 */
import { type Invariant, Violation } from './audit/violation.ts'
import type { Defect } from './defects/defects.ts'
import { BEGIN, type Happening, type Plan } from './plan.ts'
import { Archives } from './site/archives.ts'
import { Backups } from './site/backups.ts'
import { Devices } from './site/devices.ts'
import { Exports } from './site/exports.ts'
import { Imports } from './site/imports.ts'
import { Load } from './site/load.ts'
import { Probes } from './site/probes.ts'
import { Rest } from './site/rest.ts'
import { Rules } from './site/rules.ts'
import { Settlements } from './site/settlements.ts'
import { Stage } from './site/stage.ts'

export interface RunOptions {
  readonly keepTrace?: boolean
  readonly defect?: Defect | null
  /** Ends the run this long after its begin, without waiting for rest. Default: after rest. */
  readonly untilMs?: number
}

export interface RunResult {
  readonly seed: number
  readonly violation: { readonly invariant: Invariant; readonly message: string; readonly at: number } | null
  readonly happened: number
  readonly steps: number
  readonly deviceHours: number
  readonly decisions: number
  readonly syncs: number
  readonly faults: Readonly<Record<string, number>>
  readonly outcomes: Readonly<Record<string, number>>
  readonly looks: Readonly<Record<string, number>>
  readonly digest: string
  readonly trace: readonly string[]
}

/** Too frequent for the trace, or traced elsewhere. */
const QUIET: ReadonlySet<Happening['kind']> = new Set(['request', 'cloud-request', 'cloud-session'])

export async function run(plan: Plan, options: RunOptions = {}): Promise<RunResult> {
  const world = new World(plan, options)
  try {
    return await world.run()
  } finally {
    world.close()
  }
}

class World {
  readonly #stage: Stage
  readonly #rules: Rules
  readonly #devices: Devices
  readonly #load: Load
  readonly #backups: Backups
  readonly #archives: Archives
  readonly #exports: Exports
  readonly #imports: Imports
  readonly #settlements: Settlements
  readonly #rest: Rest
  readonly #probes: Probes
  readonly #untilMs: number
  #happened = 0

  constructor(plan: Plan, { keepTrace = false, defect = null, untilMs = Infinity }: RunOptions) {
    this.#untilMs = untilMs
    this.#stage = new Stage(plan, keepTrace, defect)
    this.#rules = new Rules(this.#stage)
    this.#devices = new Devices(this.#stage, this.#rules)
    this.#load = new Load(this.#stage, this.#devices, this.#rules)
    this.#archives = new Archives(this.#stage)
    this.#exports = new Exports(this.#stage, this.#rules)
    this.#imports = new Imports(this.#stage, this.#rules)
    this.#backups = new Backups(this.#stage, this.#devices, this.#rules, this.#load)
    this.#settlements = new Settlements(this.#stage)
    this.#rest = new Rest(this.#stage, this.#devices, this.#rules, this.#backups, this.#settlements)
    this.#probes = new Probes(this.#stage, this.#devices, this.#rules, this.#load)
  }

  async run(): Promise<RunResult> {
    const unhandled = (error: unknown): void => {
      const text = error instanceof Error ? (error.stack ?? error.message) : String(error)
      this.#stage.violate(new Violation('ASSERTION', `unhandled error: ${text}`))
    }
    process.on('unhandledRejection', unhandled)
    process.on('uncaughtException', unhandled)
    try {
      const { plan, time } = this.#stage
      await this.#setUp()
      for (const { at, what } of plan.events) {
        time.at(BEGIN + at, () => {
          this.#happened += 1
          this.#happen(what)
        })
      }
      await this.#stage.until(BEGIN + Math.min(plan.faultsMs, this.#untilMs))
      if (this.#untilMs > plan.faultsMs) {
        this.#load.leave()
        await this.#rest.come()
        await this.#exportRest()
        if (this.#stage.violation === null) await this.#probes.run()
      }
    } catch (error) {
      unhandled(error)
    } finally {
      process.off('unhandledRejection', unhandled)
      process.off('uncaughtException', unhandled)
    }
    return this.#result()
  }

  /** The job ends with all that the devices have delivered. */
  async #exportRest(): Promise<void> {
    if (!this.#stage.plan.events.some(({ what }) => what.kind === 'usage-export')) return
    this.#exports.happen({ kind: 'usage-export' })
    await this.#stage.settle()
  }

  close(): void {
    this.#stage.twin.close()
    this.#devices.close()
  }

  async #setUp(): Promise<void> {
    const twin = this.#stage.twin.process
    if (twin === null) throw new Error('the twin is up')
    await this.#rules.setUp(twin)
    for (let device = 0; device < this.#stage.plan.site.devices; device += 1) {
      await this.#devices.add(twin)
    }
    await this.#stage.settle()
  }

  #happen(what: Happening): void {
    const { twin, trace } = this.#stage
    if (!QUIET.has(what.kind)) trace.note('plan', JSON.stringify(what))
    switch (what.kind) {
      case 'request':
      case 'crowd':
      case 'cloud-request':
      case 'cloud-session':
      case 'device-session':
      case 'session-command':
        this.#load.happen(what)
        return
      case 'quantity':
      case 'end':
      case 'state':
      case 'allocation':
      case 'limit':
      case 'rates':
      case 'overdraft':
      case 'frequency':
      case 'series':
      case 'audience':
      case 'actions':
      case 'obsolete':
      case 'configuration':
      case 'twin-engine-upgrade':
      case 'overspend-cap':
      case 'cloud-reserve':
        this.#rules.happen(what)
        return
      case 'import':
        this.#imports.happen(what)
        return
      case 'settlement-limit':
      case 'settlement-confirmed':
        this.#settlements.happen(what)
        return
      case 'twin-down':
        twin.down(what.forMs)
        this.#stage.fault(what.kind)
        return
      case 'node-down':
        if (twin.downOne(what.forMs)) this.#stage.fault(what.kind)
        return
      case 'control-cell-down':
        this.#stage.stopControlCell(what.forMs)
        return
      case 'twin-clock':
        this.#stage.stepTwinClock(what)
        return
      case 'clock-confirmed':
        twin.confirmClocks()
        return
      case 'twin-busy':
        this.#stage.busyTwin(what.waitMs, what.forMs)
        return
      case 'recovery-overridden':
        this.#backups.overrideRecovery()
        return
      case 'twin-trap':
        twin.traps.push({ ...what })
        return
      case 'archive':
        this.#archives.run(what)
        return
      case 'usage-export':
      case 'usage-part':
      case 'usage-report':
        this.#exports.happen(what)
        return
      case 'twin-backup':
        this.#backups.make()
        return
      case 'twin-restore':
        this.#backups.restore(what.downMs, what.untold !== true)
        return
      default:
        this.#devices.happen(what)
    }
  }

  #result(): RunResult {
    const { plan, time, trace, auditor, faults, outcomes, steps, violation, violatedAt } = this.#stage
    const { machines, decisions, syncs } = this.#devices
    return {
      seed: plan.seed,
      violation:
        violation === null
          ? null
          : { invariant: violation.invariant, message: violation.message, at: violatedAt - BEGIN },
      happened: this.#happened,
      steps,
      deviceHours: ((time.now - BEGIN) / 3_600_000) * machines.length,
      decisions,
      syncs,
      faults: Object.fromEntries(faults),
      outcomes: Object.fromEntries(outcomes),
      looks: Object.fromEntries(auditor.shared.looks),
      digest: trace.digest(),
      trace: trace.lines,
    }
  }
}
