/**
 * A board with clocks, disk, network and the agent as a supervised process. Runs the product's own assembly; simulates
 * time, timers, randomness, the journal's disk and the connection to the cloud.
 */
import { createCloudHttp } from '../../src/agent/platform/http/cloud-client.ts'
import type { JournalLimits } from '../../src/agent/platform/sqlite/journal-file.ts'
import type { JournalCall } from '../../src/agent/platform/sqlite/journal-handler.ts'
import { openJournal } from '../../src/agent/platform/sqlite/journal.ts'
import type { AccessAnswer, AccessCall } from '../../src/agent/access/access.ts'
import type { Clock, TimeSource } from '../../src/agent/runtime/clock.ts'
import type { ClockReading } from '../../src/core/rules/decision.ts'
import type { Evidence } from '../audit/clocks.ts'
import type { Journal, PendingEntry } from '../../src/agent/ledger/journal.ts'
import type { AgentLog } from '../../src/agent/sync/ports.ts'
import type { Timers } from '../../src/agent/runtime/timers.ts'
import { type AssembledAgent, assembleAgent } from '../../src/agent/assemble.ts'
import type { AgentSettings } from '../../src/agent/settings.ts'
import { ENGINE, type Engine, outdatedSide } from '../../src/core/engine.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import { signDocument } from '../../src/protocol/signing.ts'
import { Secret } from '../../src/settings/option.ts'
import { Violation, wordsOf } from '../audit/violation.ts'
import type { DeviceDefects } from '../defects/device-defects.ts'
import type { Broker } from '../world/broker.ts'
import type { Network } from '../world/network.ts'
import type { Random } from '../world/random.ts'
import type { Scheduler } from '../world/scheduler.ts'
import type { Disk } from './disk.ts'
import { type Mishap, journalRunner } from './journal-runner.ts'
import type { MachineKeys } from './machine-keys.ts'
import { VolatileMemory } from './volatile-memory.ts'

export interface Trap {
  skip: number
  readonly mishap: Mishap
  readonly power: boolean
  readonly downMs: number
}

export interface MachineDeps {
  readonly name: string
  readonly scheduler: Scheduler
  readonly random: Random
  readonly settings: AgentSettings
  readonly segmentEntriesMax: number
  readonly keys: MachineKeys
  readonly disk: Disk
  readonly network: Network
  /** Null: no push. */
  readonly broker: Broker | null
  readonly defects: DeviceDefects
  readonly note: (what: string) => void
  readonly onTaken: (machine: Machine, call: JournalCall, error: Error | null) => void
  /** Entries are in the volatile log and may be answered. */
  readonly onLogged: (machine: Machine, entries: readonly PendingEntry[]) => void
  readonly onRetracted: (machine: Machine, from: number) => void
  readonly onPowerCut: (machine: Machine) => void
  /** The agent has started, or has learned the time. */
  readonly onTime: (machine: Machine, reading: ClockReading, evidence: Evidence | null) => void
  readonly onViolation: (violation: Violation) => void
  readonly onFault: (kind: string) => void
}

/** Start time of a board without a battery: January 1, 2000. */
const NO_RTC = Date.UTC(2000, 0, 1)

/** Resolution of the boot-time clock, ms. */
const STEP_MS = 10

export class Machine {
  deps: MachineDeps
  traps: Trap[] = []
  #wallError = 0
  /** Fault planned after the next answers to applications. */
  afterAnswer: { answers: number; readonly afterMs: number; readonly power: boolean; readonly downMs: number } | null =
    null
  /** A kill planned after so many requests that are not recorded. */
  afterRefusal: { refusals: number; readonly downMs: number } | null = null
  /** No battery: the clock restarts with each boot. */
  noRtc = false
  driftPpm = 0
  diskLatencyMax = 2
  /** Longest wait of an entry of the last append, ms. */
  waitsForDiskMs = 0
  readonly #append = { begunAt: -Infinity, endedAt: -Infinity, collectsSince: -Infinity }
  readonly memory = new VolatileMemory()
  #engine = ENGINE
  #bootedAt: number
  #bootId: string
  #isOn = true
  #isAsleep = false
  #asleepSince = 0
  /** Time of the last wake-up, and total sleep until then, ms. */
  #woke = { at: -Infinity, sleptMs: 0 }
  #slept = 0
  #cancelWake: () => void = () => undefined
  readonly #sleepers: (() => void)[] = []
  #process: Process | null = null
  #retired = false
  #cancelStart: () => void = () => undefined
  #onBefore = 0

  constructor(deps: MachineDeps) {
    this.deps = deps
    this.#bootedAt = deps.scheduler.now
    this.#bootId = deps.random.uuid()
  }

  get name(): string {
    return this.deps.name
  }

  get isRetired(): boolean {
    return this.#retired
  }

  /** Null: not ready. */
  get agent(): AssembledAgent | null {
    return this.#process?.agent ?? null
  }

  get onFor(): number {
    return this.#onBefore + (this.#isOn ? this.deps.scheduler.now - this.#bootedAt : 0)
  }

  start(): void {
    if (this.#retired || !this.#isOn || this.#process !== null) return
    if (this.#isAsleep) {
      this.#sleepers.push(() => this.start())
      return
    }
    const process = new Process(this)
    this.#process = process
    process.start().catch((error: unknown) => this.fail(process, error))
  }

  get engine(): Engine {
    return this.#engine
  }

  /** Software with this engine; the agent restarts. */
  install(engine: Engine): void {
    this.kill(5_000)
    this.#engine = engine
  }

  /** A technician puts another enrollment token in its place; an agent that runs restarts. */
  giveToken(token: string): void {
    const { settings } = this.deps
    const enrollment = { token: new Secret(token, 'the simulation') }
    this.deps = { ...this.deps, settings: { ...settings, enrollment } }
    if (this.#process !== null) this.kill(5_000)
  }

  kill(downMs: number): void {
    this.#end()
    this.#startIn(downMs)
  }

  cutPower(downMs: number): void {
    this.#end()
    const { scheduler, random, defects, disk } = this.deps
    if (this.#isOn) this.#onBefore += scheduler.now - this.#bootedAt
    this.#isOn = false
    this.#wake()
    this.#slept = 0
    this.memory.clear()
    defects.onPowerCut(disk)
    this.deps.onPowerCut(this)
    this.#cancelStart()
    this.#cancelStart = scheduler.at(scheduler.now + Math.max(1_000, downMs), () => {
      this.#isOn = true
      this.#bootedAt = scheduler.now
      this.#bootId = random.uuid()
      if (this.noRtc) this.#wallError = NO_RTC - scheduler.now
      this.#startIn(random.whole(500, 5_000))
    })
  }

  stop(downMs: number): void {
    const process = this.#process
    if (process === null) return
    process.stop().then(
      () => {
        if (this.#process === process) this.kill(downMs)
      },
      (error: unknown) => this.fail(process, error),
    )
  }

  retire(): void {
    this.#end()
    this.#cancelStart()
    this.#retired = true
  }

  /** Nothing runs until wake-up; the boot-time clock continues. */
  suspend(ms: number): void {
    const { scheduler } = this.deps
    if (!this.#isOn || this.#isAsleep) return
    this.#isAsleep = true
    this.#asleepSince = scheduler.now
    this.#cancelWake()
    this.#cancelWake = scheduler.at(scheduler.now + ms, () => this.#wake())
  }

  /** The ledger collects entries while an append is under way, and for some of that time afterwards. */
  appends(): void {
    const { now } = this.deps.scheduler
    const { begunAt, endedAt } = this.#append
    this.#append.collectsSince = now - endedAt <= endedAt - begunAt ? begunAt : now
    this.#append.begunAt = now
  }

  appended(): void {
    const { now } = this.deps.scheduler
    this.waitsForDiskMs = now - this.#append.collectsSince
    this.#append.endedAt = now
  }

  /** The present sleep, which ends where the process is stopped, and the last one if the board woke within `ms` before. */
  sleptWithin(ms: number): number {
    const awakeSince = this.#isAsleep ? this.#asleepSince : this.deps.scheduler.now
    const last = awakeSince - this.#woke.at <= ms ? this.#woke.sleptMs : 0
    return last + this.deps.scheduler.now - awakeSince
  }

  #sleptFor(): number {
    return this.#slept + (this.#isAsleep ? this.deps.scheduler.now - this.#asleepSince : 0)
  }

  #wake(): void {
    const { now } = this.deps.scheduler
    if (this.#isAsleep) this.#woke = { at: now, sleptMs: now - this.#asleepSince }
    this.#slept = this.#sleptFor()
    this.#cancelWake()
    this.#isAsleep = false
    for (const call of this.#sleepers.splice(0)) call()
  }

  stepClock(ms: number): void {
    this.#wallError += ms
  }

  /** @param cloud its engine: an agent that does not work with it is upgraded */
  calmDown(cloud: Engine): void {
    this.traps = []
    this.afterAnswer = null
    this.afterRefusal = null
    this.diskLatencyMax = 2
    this.deps.disk.full = false
    this.memory.full = new Set()
    this.deps.network.heal()
    this.#wake()
    const { version } = this.#engine
    if (outdatedSide(this.#engine, cloud) !== null) {
      this.install({ version: Math.max(version, cloud.version), oldest: ENGINE.oldest })
    }
    if (this.#retired || this.#process !== null) return
    if (!this.#isOn) {
      this.#cancelStart()
      this.cutPower(1_000)
    } else this.#startIn(0)
  }

  /** Undefined: the socket is not open. */
  request(call: AccessCall): Promise<AccessAnswer> | undefined {
    const process = this.#process
    if (process === null || this.#isAsleep) return undefined
    return process.request(call)
  }

  sessions(): AssembledAgent['sessions'] | undefined {
    const process = this.#process
    return process === null || this.#isAsleep ? undefined : process.sessions()
  }

  /** The process exits by itself: expected only after a failed flush. */
  fail(process: Process, error: unknown): void {
    if (this.#process !== process) return
    if (process.mayFail) {
      this.deps.note('the agent ends: its disk failed')
      this.kill(this.deps.random.whole(500, 5_000))
      return
    }
    this.deps.onViolation(new Violation('ASSERTION', `the agent of ${this.name} ends: ${wordsOf(error)}`))
  }

  time(): TimeSource {
    const { scheduler } = this.deps
    const elapsed = (): number => (scheduler.now - this.#bootedAt) * (1 + this.driftPpm / 1_000_000)
    const { defects } = this.deps
    return {
      bootId: this.#bootId,
      wall: () => scheduler.now + this.#wallError,
      sinceBoot: () => Math.floor((elapsed() - defects.unseen(this.#sleptFor())) / STEP_MS) * STEP_MS,
    }
  }

  /** Calls later unless the process has ended; a sleeping board calls at wake-up. */
  after(process: Process, ms: number, call: () => void): () => void {
    const { scheduler } = this.deps
    const state = { cancelled: false }
    const inTime = (): void => {
      if (!process.alive || state.cancelled) return
      if (this.#isAsleep) this.#sleepers.push(inTime)
      else call()
    }
    const cancel = scheduler.at(scheduler.now + ms, inTime)
    return () => {
      state.cancelled = true
      cancel()
    }
  }

  nextMishap(process: Process, call: JournalCall): Mishap | null {
    const [trap] = this.traps
    if (trap === undefined || call.name === 'read' || call.name === 'recent') return null
    if (trap.skip > 0) {
      trap.skip -= 1
      return null
    }
    this.traps.shift()
    this.deps.onFault(trap.power ? 'power cut at a write' : `${words[trap.mishap]} at a write`)
    this.deps.note(`${trap.mishap} ${call.name}`)
    process.lastTrap = trap
    if (trap.mishap.startsWith('FLUSH')) process.mayFail = true
    return trap.mishap
  }

  answered(process: Process): void {
    const { afterAnswer } = this
    if (afterAnswer === null) return
    // With write-behind, count only answers that are not yet on disk.
    if (this.deps.settings.durability === 'write-behind' && !this.memory.isAhead) return
    afterAnswer.answers -= 1
    if (afterAnswer.answers > 0) return
    this.afterAnswer = null
    const { scheduler, onFault } = this.deps
    scheduler.at(scheduler.now + afterAnswer.afterMs, () => {
      if (this.#process !== process) return
      onFault(afterAnswer.power ? 'power cut after an answer' : 'process killed after an answer')
      if (afterAnswer.power) this.cutPower(afterAnswer.downMs)
      else this.kill(afterAnswer.downMs)
    })
  }

  /** The application still receives its response. */
  notRecorded(process: Process): void {
    const { afterRefusal } = this
    if (afterRefusal === null) return
    afterRefusal.refusals -= 1
    if (afterRefusal.refusals > 0) return
    this.afterRefusal = null
    const { scheduler, onFault } = this.deps
    scheduler.at(scheduler.now + 1, () => {
      if (this.#process !== process) return
      onFault('process killed after a request that was not recorded')
      this.kill(afterRefusal.downMs)
    })
  }

  die(process: Process): void {
    if (this.#process !== process) return
    const { power = false, downMs = 1_000 } = process.lastTrap ?? {}
    if (power) this.cutPower(downMs)
    else this.kill(downMs)
  }

  #end(): void {
    if (this.#process === null) return
    this.#process.alive = false
    this.#process = null
    this.deps.defects.onProcessEnd(this.deps.disk)
  }

  #startIn(ms: number): void {
    this.#cancelStart()
    if (this.#retired) return
    const { scheduler } = this.deps
    this.#cancelStart = scheduler.at(scheduler.now + ms, () => this.start())
  }
}

const words: Readonly<Record<Mishap, string>> = {
  DIES_BEFORE: 'process killed',
  DIES_AFTER: 'process killed',
  FLUSH_FAILS_BEFORE: 'flush failed',
  FLUSH_FAILS_AFTER: 'flush failed',
}

class Process {
  alive = true
  /** A flush failed: the process must exit. */
  mayFail = false
  lastTrap: Trap | null = null
  agent: AssembledAgent | null = null
  #journal: Journal | null = null
  #accepts = false
  readonly #machine: Machine

  constructor(machine: Machine) {
    this.#machine = machine
  }

  async start(): Promise<void> {
    const machine = this.#machine
    const { scheduler, random, settings, keys, disk, network, broker, defects, note, onTaken } = machine.deps
    const alive = (): boolean => this.alive
    const fail = (error: unknown): void => machine.fail(this, error)
    note('the agent starts')
    const late: { now?: () => number } = {}
    const time = machine.time()
    const log: AgentLog = {
      info: (fields, message) => note(`${message} ${JSON.stringify(fields)}`),
      warn: (fields, message) => note(`${message} ${JSON.stringify(fields)}`),
    }
    const journal = await openJournal(
      {
        path: `${machine.name}.db`,
        limits: journalLimits(machine.deps),
        sign: (payload) => signDocument('segment', payload, keys.current.signer),
        now: () => late.now?.() ?? time.wall(),
        log,
        onBroken: fail,
      },
      journalRunner({
        scheduler,
        disk,
        latency: () => random.whole(0, machine.diskLatencyMax),
        mishap: (call) => machine.nextMishap(this, call),
        alive,
        die: () => machine.die(this),
        onTaken: (call, error) => {
          if (call.name === 'append') machine.appended()
          defects.onTaken(disk)
          onTaken(machine, call, error)
        },
      }),
    )
    this.#journal = journal
    const append = journal.append.bind(journal)
    journal.append = (...args) => {
      machine.appends()
      return append(...args)
    }
    const timers: Timers = { after: (ms, call) => machine.after(this, ms, call) }
    const { onLogged, onRetracted } = machine.deps
    const memory = machine.memory.log(
      time.bootId,
      alive,
      (entries) => onLogged(machine, entries),
      (from) => onRetracted(machine, from),
    )
    const agent = await assembleAgent({
      settings,
      journal: defects.journal(journal, disk),
      keys,
      time,
      elapsed: () => time.sinceBoot(),
      timers,
      randomness: { fraction: () => random.fraction(), token: () => random.token() },
      names: { user: () => undefined, group: () => undefined },
      ownUid: 0,
      newId: () => random.uuid(),
      volatileLog: { ...defects.log(memory, machine.memory), left: () => defects.left(memory.left()) },
      defer: (call) => void machine.after(this, 0, call),
      cloud: (tokens) =>
        createCloudHttp({
          exchange: defects.exchange(network.exchange(alive), keys.current),
          tokens,
          pause: (ms) => new Promise((resolve) => void machine.after(this, ms, resolve)),
          fraction: () => random.fraction(),
        }),
      push:
        broker?.pushFor({
          isCut: () => network.cutUp || network.cutDown,
          after: (ms, call) => machine.after(this, ms, call),
        }) ?? null,
      version: 'simulated',
      engine: machine.engine,
      log,
      onFatal: fail,
    })
    late.now = () => agent.clock.reading().now
    const edited = agent.status().conditions.find(({ code }) => code === 'LEDGER_EDITED')
    if (edited !== undefined) machine.deps.onViolation(new Violation('I6', `${machine.name}: ${edited.message}`))
    defects.agent(agent)
    this.#watch(agent.clock)
    await agent.link.start()
    agent.keepClock()
    agent.sessions.start()
    this.agent = agent
    this.#accepts = true
  }

  #watch(clock: Clock): void {
    const { deps } = this.#machine
    const learn = clock.learn.bind(clock)
    deps.onTime(this.#machine, clock.reading(), null)
    clock.learn = (evidence) => {
      learn(evidence)
      deps.onTime(this.#machine, clock.reading(), { ...evidence, learnedAt: clock.sinceBoot() })
    }
  }

  request(call: AccessCall): Promise<AccessAnswer> | undefined {
    if (!this.#accepts || this.agent === null) return undefined
    const answer = this.agent.access.request(call)
    return new Promise((resolve, reject) => {
      answer.then(
        (said) => {
          if (!this.alive) return
          resolve(said)
          this.#machine.answered(this)
        },
        (error: unknown) => {
          if (!this.alive) return
          if (!(error instanceof CodedError)) this.#machine.fail(this, error)
          else {
            if (error.code === 'NOT_RECORDED') this.#machine.notRecorded(this)
            reject(error)
          }
        },
      )
    })
  }

  sessions(): AssembledAgent['sessions'] | undefined {
    return this.#accepts ? this.agent?.sessions : undefined
  }

  async stop(): Promise<void> {
    this.#accepts = false
    const { agent } = this
    if (agent === null) return
    try {
      await agent.drain()
    } catch (error) {
      // A full disk keeps neither the last entries nor the clock; callers got an error.
      if (!(error instanceof CodedError)) throw error
    }
    await agent.link.stop()
    await this.#journal?.close()
  }
}

export function journalLimits({
  settings: { state, explain },
  segmentEntriesMax,
}: Pick<MachineDeps, 'settings' | 'segmentEntriesMax'>): JournalLimits {
  return {
    pagesMax: 100_000,
    diskReservePages: 1_000,
    retentionMs: state.retention,
    retainedBytesMax: state.retainedMax,
    answersMax: state.answersMax,
    recentEntries: explain.decisions,
    pastRulesBytesMax: explain.rulesMax,
    segmentEntriesMax,
  }
}
