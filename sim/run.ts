/**
 * Runs one plan: sets up the site, lets everything happen, has the auditor look after every step, ends the faults, and waits
 * until everything is at rest. The same plan with the same defects does the same, event by event, on every machine.
 */
import { agentOptions, type AgentSettings } from '../src/agent/settings.ts'
import { createConditions } from '../src/cloud/app/change-conditions.ts'
import { createInstance } from '../src/cloud/app/create-instance.ts'
import { createRateTable } from '../src/cloud/app/change-rate-tables.ts'
import { mapLineItem } from '../src/cloud/app/map-line-item.ts'
import { removeConsumptionLimit, setConsumptionLimit } from '../src/cloud/app/set-consumption-limit.ts'
import { replaceActions } from '../src/cloud/app/change-actions.ts'
import { releaseDevice, revokeDevice, rotateDeviceKey } from '../src/cloud/app/edge/devices.ts'
import { holdDevice } from '../src/cloud/app/edge/hold-device.ts'
import { setOfflinePolicy } from '../src/cloud/app/edge/offline-policy.ts'
import { issueEnrollmentToken } from '../src/cloud/app/edge/issue-enrollment-token.ts'
import { closeSession, openSession, requestInSession } from '../src/cloud/app/session-life.ts'
import { parseDecimal } from '../src/core/amount.ts'
import type { AccessRequest } from '../src/core/decision.ts'
import { CodedError } from '../src/protocol/errors.ts'
import { loadSettings } from '../src/settings/load.ts'
import { Secret } from '../src/settings/option.ts'
import { Auditor, type RulesKnown, ownerOf } from './audit/auditor.ts'
import { query } from './audit/query.ts'
import { type Invariant, Violation, wordsOf } from './audit/violation.ts'
import { SOUND_DEVICE } from './defects/device-defects.ts'
import { SOUND_TWIN } from './defects/twin-defects.ts'
import { type Defect } from './defects/defects.ts'
import { Application } from './device/application.ts'
import { Disk } from './device/disk.ts'
import { MachineKeys } from './device/machine-keys.ts'
import { Machine } from './device/machine.ts'
import {
  BEGIN,
  CALM_MS,
  type Happening,
  ITEMS,
  type LineItemPlan,
  type Plan,
  type PlannedRequest,
  RATES,
} from './plan.ts'
import { addresses } from './twin/door.ts'
import { Twin } from './twin/twin.ts'
import type { TwinProcess } from './twin/twin-process.ts'
import { Network } from './world/network.ts'
import { Random } from './world/random.ts'
import { VirtualTime, rest } from './world/scheduler.ts'
import { keyPair } from './world/signatures.ts'
import { Trace } from './world/trace.ts'

export interface RunOptions {
  /** Keep the lines of the trace. */
  readonly keepTrace?: boolean
  readonly defect?: Defect | null
}

export interface RunResult {
  readonly seed: number
  readonly violation: { readonly invariant: Invariant; readonly message: string; readonly at: number } | null
  /** Events of the plan that have happened. */
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

/** How long a moment may be awaited in which no device is in the middle of a sync. */
const PATIENCE_MS = 15 * 60_000

/** Rest that lasts so long is rest, ms. */
const REST_MS = 5 * 60_000

const LOOK_EVERY_MS = 60_000

/** Micro-tokens of a whole token. */
const MICRO = 1_000_000n

/** What happens too often, or says enough itself, for a line of the trace. */
const QUIET: ReadonlySet<Happening['kind']> = new Set(['request', 'cloud-request', 'cloud-session'])

/** The rules as an administrator has made them, with a backup of the twin that knows no more of them. */
interface Backup {
  readonly image: Buffer
  readonly lineItems: readonly LineItemPlan[]
  readonly states: readonly ('DEPLOYED' | 'INACTIVE')[]
  readonly actionIds: readonly (string | null)[]
  readonly sessions: ReadonlyMap<number, string>
  readonly rules: RulesKnown
}

type RulePart = 'line' | 'actions' | 'limit' | 'arrears'

let settingsOfAll: AgentSettings | undefined

export async function run(plan: Plan, options: RunOptions = {}): Promise<RunResult> {
  const world = new World(plan, options)
  try {
    return await world.run()
  } finally {
    world.close()
  }
}

class World {
  readonly #plan: Plan
  readonly #time = new VirtualTime(BEGIN)
  readonly #random: Random
  readonly #trace: Trace
  readonly #auditor = new Auditor(() => this.#time.now)
  readonly #twin: Twin
  readonly #machines: Machine[] = []
  readonly #applications = new Map<string, Application>()
  /** Machines by the device of the plan: the first, and its copies. */
  readonly #hands: Machine[][] = []
  readonly #snapshots = new Map<number, Buffer>()
  readonly #sessions = new Map<number, string>()
  readonly #faults = new Map<string, number>()
  readonly #outcomes = new Map<string, number>()
  readonly #defect: Defect | null
  #lineItems: LineItemPlan[]
  #states: ('DEPLOYED' | 'INACTIVE')[]
  #actionIds: (string | null)[] = []
  #conditionId = ''
  #instanceId = ''
  #rateVersions = 0
  #backup: Backup | null = null
  #restoredAt: number | null = null
  /** Sessions on the devices, by device and slot. */
  readonly #deviceSessions = new Map<string, string>()
  #violation: Violation | null = null
  #violatedAt = 0
  #dirty = false
  #isCalm = false
  #happened = 0
  #steps = 0
  #decisions = 0
  #syncs = 0
  #turn = 0

  constructor(plan: Plan, { keepTrace = false, defect = null }: RunOptions) {
    this.#plan = plan
    this.#defect = defect
    this.#random = new Random(`run ${plan.seed}`)
    this.#trace = new Trace(() => this.#time.now, keepTrace)
    this.#lineItems = [...plan.site.lineItems]
    this.#states = plan.site.lineItems.map(() => 'DEPLOYED')
    const { grantLifetimeMs, grantHorizonMs, policyUsableMs, syncEveryMs, undecidedClock, settleAfterMs, settleAs } =
      plan.site
    this.#twin = new Twin({
      scheduler: this.#time,
      random: this.#random.stream('twin'),
      key: keyPair('twin'),
      terms: {
        grantLifetimeMs,
        grantHorizonMs,
        policyUsableMs,
        syncEveryMs,
        receiptMarginMs: 7 * 86_400_000,
        attachesMax: 12,
        sessionIntervalMs: plan.site.sessionIntervalMs,
      },
      settlement: { afterMs: settleAfterMs, as: settleAs },
      undecidedClock,
      defects: { ...SOUND_TWIN, ...this.#defect?.twin?.() },
      note: (what) => this.#trace.note('twin', what),
      onCommit: () => {
        this.#dirty = true
      },
      onViolation: (violation) => this.#violate(violation),
      onFault: (kind) => this.#count(this.#faults, kind),
    })
  }

  async run(): Promise<RunResult> {
    const unhandled = (error: unknown): void => {
      this.#violate(new Violation('ASSERTION', `nobody handles ${String(error)}`))
    }
    process.on('unhandledRejection', unhandled)
    try {
      await this.#setUp()
      for (const { at, what } of this.#plan.events) {
        this.#time.at(BEGIN + at, () => {
          this.#happened += 1
          this.#happen(what)
        })
      }
      for (const { daily, startsAt } of this.#plan.site.lineItems) {
        if (daily) this.#counted('period began', startsAt + 86_400_000 - BEGIN)
      }
      await this.#until(BEGIN + this.#plan.faultsMs)
      await this.#comeToRest()
    } finally {
      process.off('unhandledRejection', unhandled)
    }
    return this.#result()
  }

  close(): void {
    this.#twin.close()
    for (const { parts } of this.#machines) parts.disk.close()
  }

  async #until(end: number): Promise<void> {
    while (this.#violation === null && this.#time.next <= end) {
      this.#time.step()
      await this.#settle()
    }
    this.#time.pass(end)
  }

  get #failed(): boolean {
    return this.#violation !== null
  }

  async #settle(): Promise<void> {
    this.#steps += 1
    await rest(() => this.#twin.busy)
    if (!this.#dirty || this.#violation !== null) return
    this.#dirty = false
    this.#judge(() => this.#auditor.check(this.#twin.database))
  }

  #judge(look: () => void): void {
    try {
      look()
    } catch (error) {
      if (!(error instanceof Violation)) throw error
      this.#violate(error)
    }
  }

  #violate(violation: Violation): void {
    if (this.#violation !== null) return
    this.#violation = violation
    this.#violatedAt = this.#time.now
    this.#trace.note('auditor', `${violation.invariant}: ${violation.message}`)
  }

  async #setUp(): Promise<void> {
    const twin = this.#twin.process
    if (twin === null) throw new Error('the twin is up')
    const { store, newId, now } = twin
    this.#instanceId = newId()
    await createInstance(store, { id: this.#instanceId, shortName: 'site', accountId: 'customer' }, now())
    const [condition] = await createConditions(
      store,
      this.#instanceId,
      [{ operator: 'IN', property: 'tier', values: ['gold'] }],
      newId,
      now(),
    )
    this.#conditionId = condition?.id ?? ''
    await this.#setRates(twin, 1, -3_600_000)
    for (let index = 0; index < this.#lineItems.length; index += 1) {
      await this.#mapLineItem(twin, index)
      await this.#setActions(twin, index)
      await this.#setLimit(twin, index)
      if (this.#item(index).arrearsCap > 0) await this.#setArrearsCap(twin, index)
    }
    for (let device = 0; device < this.#plan.site.devices; device += 1) {
      const { token } = await issueEnrollmentToken(
        { ...twin, addresses },
        { instanceIds: [this.#instanceId], lifetimeMs: 365 * 86_400_000 },
      )
      const machine = this.#machine(`dev-${device}`, device, new Disk(), token)
      this.#hands.push([machine])
      machine.start()
    }
    await this.#settle()
  }

  #machine(name: string, device: number, disk: Disk, token: string): Machine {
    const { site } = this.#plan
    const random = this.#random.stream(name)
    const note = (what: string): void => this.#trace.note(name, what)
    const onFault = (kind: string): void => this.#count(this.#faults, kind)
    const machine = new Machine({
      name,
      scheduler: this.#time,
      random,
      settings: settingsFor(this.#plan, device, token),
      keys: new MachineKeys(`device ${device}`),
      disk,
      network: new Network({
        scheduler: this.#time,
        random: random.stream('network'),
        deliver: (request) => this.#twin.answer(request),
        note,
        onFault,
      }),
      defects: { ...SOUND_DEVICE, ...this.#defect?.device?.() },
      note,
      onTaken: (taker, call, answer) => {
        this.#trace.note(name, `${call.call} ${answer.ok ? 'done' : (answer.failure.code ?? answer.failure.message)}`)
        if (answer.ok && call.call === 'append') this.#decisions += call.batch.bodies.length
        if (answer.ok && call.call === 'acknowledge') this.#syncs += 1
        this.#judge(() => this.#auditor.taken(taker, call, answer, this.#twin.database))
      },
      onLogged: (logger, entries) =>
        this.#judge(() =>
          this.#auditor.logged(
            logger,
            entries.map(({ body }) => body),
            this.#twin.database,
          ),
        ),
      onRetracted: (logger, from) => this.#judge(() => this.#auditor.retracted(logger, from)),
      onPowerCut: (cut) => this.#auditor.powerCut(cut),
      onViolation: (violation) => this.#violate(violation),
      onFault,
    })
    machine.noRtc = site.noRtc[device] ?? false
    machine.driftPpm = site.driftPpm[device] ?? 0
    machine.stepClock(site.wallErrorMs[device] ?? 0)
    this.#machines.push(machine)
    return machine
  }

  #happen(what: Happening): void {
    if (!QUIET.has(what.kind)) {
      this.#trace.note('plan', JSON.stringify(what))
    }
    switch (what.kind) {
      case 'request': {
        this.#request(what)
        return
      }
      case 'cloud-request': {
        this.#byTwin((twin) => this.#cloudRequest(twin, what))
        return
      }
      case 'cloud-session': {
        this.#byTwin((twin) => this.#cloudSession(twin, what))
        return
      }
      case 'kill':
        this.#first(what.device).kill(what.downMs)
        break
      case 'power-cut':
        this.#first(what.device).cutPower(what.downMs)
        break
      case 'stop':
        this.#first(what.device).stop(what.downMs)
        break
      case 'trap':
        this.#first(what.device).traps.push({ ...what })
        return
      case 'death-after-answer':
        this.#first(what.device).afterAnswer = { ...what }
        return
      case 'disk-full':
        this.#auditor.diskFull(this.#first(what.device))
        this.#forATime(what.forMs, this.#first(what.device), (machine, on) => {
          machine.parts.disk.full = on
        })
        break
      case 'slow-disk':
        this.#forATime(what.forMs, this.#first(what.device), (machine, on) => {
          machine.diskLatencyMax = on ? 2_000 : 2
        })
        break
      case 'suspend':
        this.#first(what.device).suspend(what.forMs)
        break
      case 'weather':
        this.#forATime(what.forMs, this.#first(what.device), ({ parts: { network } }, on) => {
          if (on) network.weather = what.weather
          else network.heal()
        })
        break
      case 'partition':
        this.#forATime(what.forMs, this.#first(what.device), ({ parts: { network } }, on) => {
          network.cutUp = on && what.up
          network.cutDown = on && what.down
        })
        break
      case 'clock-step':
        this.#first(what.device).stepClock(what.ms)
        break
      case 'snapshot':
        this.#snapshots.set(what.device, this.#first(what.device).parts.disk.image())
        break
      case 'restore':
        if (!this.#restore(what.device)) return
        break
      case 'clone':
        this.#clone(what.device)
        break
      case 'wipe': {
        const machine = this.#first(what.device)
        this.#auditor.wiped(machine)
        machine.kill(5_000)
        machine.parts.disk.wipe()
        break
      }
      case 'revoke':
      case 'release': {
        const { deviceId } = ownerOf(this.#first(what.device).parts.disk.database)
        if (deviceId === null) return
        this.#byTwin(async (twin) => {
          this.#count(this.#faults, what.kind)
          await (what.kind === 'revoke' ? revokeDevice : releaseDevice)(twin, deviceId, 'administrator')
          if (what.kind === 'revoke') this.#auditor.revoked(deviceId)
        })
        return
      }
      case 'rotate-key': {
        const machine = this.#first(what.device)
        const { deviceId } = ownerOf(machine.parts.disk.database)
        if (deviceId === null) return
        if (what.by === 'TECHNICIAN') {
          // Whoever is stopping, or cannot write, says so.
          machine.agent?.link.rotateKey().catch((error: unknown) => {
            if (!(error instanceof CodedError)) machine.parts.onViolation(new Violation('ASSERTION', wordsOf(error)))
          })
          break
        }
        this.#byTwin(async (twin) => {
          this.#count(this.#faults, what.kind)
          await rotateDeviceKey(twin, deviceId, 'administrator')
        })
        return
      }
      case 'twin-down':
        this.#twin.down(what.forMs)
        break
      case 'twin-trap':
        this.#twin.traps.push({ ...what })
        return
      case 'quantity': {
        this.#change(what.lineItem, { quantity: what.quantity }, 'line')
        return
      }
      case 'end': {
        this.#change(what.lineItem, { endsAt: this.#time.now + what.inMs }, 'line')
        this.#counted('line item ended', what.inMs)
        return
      }
      case 'state': {
        this.#change(what.lineItem, {}, 'line', what.state)
        return
      }
      case 'allocation': {
        this.#change(what.lineItem, { goldAllocation: what.allocation }, 'actions')
        return
      }
      case 'limit': {
        this.#change(what.lineItem, { limit: what.limit }, 'limit')
        return
      }
      case 'rates': {
        this.#byTwin((twin) => this.#setRates(twin, what.factor, what.inMs))
        this.#counted('rates took effect', what.inMs)
        return
      }
      case 'arrears-cap': {
        this.#change(what.lineItem, { arrearsCap: what.cap }, 'arrears')
        return
      }
      case 'hold': {
        this.#hold(what.device, what.order)
        return
      }
      case 'twin-backup': {
        this.#backUp()
        return
      }
      case 'twin-restore': {
        this.#restoreTwin(what.downMs, what.untold !== true)
        return
      }
      case 'device-session': {
        this.#deviceSession(what)
        return
      }
    }
    this.#count(this.#faults, what.kind)
  }

  #first(device: number): Machine {
    const machine = this.#hands[device]?.[0]
    if (machine === undefined) throw new Error('the plan names a device of the site')
    return machine
  }

  #forATime(ms: number, machine: Machine, set: (machine: Machine, on: boolean) => void): void {
    set(machine, true)
    this.#time.at(this.#time.now + ms, () => set(machine, false))
  }

  #request(what: Extract<Happening, { kind: 'request' }>): void {
    const hands = (this.#hands[what.device] ?? []).filter(({ isRetired }) => !isRetired)
    this.#turn += 1
    const machine = hands[this.#turn % Math.max(1, hands.length)]
    if (machine === undefined) return
    const name = `${machine.name} ${what.session ?? 'none'}`
    let application = this.#applications.get(name)
    if (application === undefined) {
      application = new Application({
        scheduler: this.#time,
        random: this.#random.stream(name),
        auditor: this.#auditor,
        machine,
        instanceId: this.#instanceId,
        session: what.session === null ? null : `app-${what.session}`,
        onOutcome: (outcome) => this.#count(this.#outcomes, outcome),
      })
      this.#applications.set(name, application)
    }
    application.request(what)
  }

  #restore(device: number): boolean {
    const image = this.#snapshots.get(device)
    if (image === undefined) return false
    const machine = this.#first(device)
    machine.kill(5_000)
    machine.parts.disk.put(image)
    this.#auditor.duplicated(machine, machine)
    return true
  }

  #clone(device: number): void {
    const original = this.#first(device)
    const hands = this.#hands[device] ?? []
    if (hands.length > 2) return
    const token = original.parts.settings.enrollment.token?.reveal() ?? ''
    const copy = this.#machine(
      `dev-${device}${'abc'[hands.length] ?? ''}`,
      device,
      new Disk(original.parts.disk.image()),
      token,
    )
    hands.push(copy)
    this.#auditor.duplicated(copy, original)
    // The disk of a copy begins in a board that is switched on with it.
    copy.cutPower(1_000)
  }

  #hold(device: number, order: 'LOCK' | 'UNLOCK' | 'TERMINATE'): void {
    const { deviceId } = ownerOf(this.#first(device).parts.disk.database)
    if (deviceId === null) return
    this.#byTwin(async (twin) => {
      const { store, now } = twin
      const sessions = { ...twin, sessionIntervalMs: twin.terms.sessionIntervalMs }
      if (!this.#isCalm) this.#count(this.#faults, order.toLowerCase())
      if (order === 'TERMINATE') this.#auditor.terminated(deviceId)
      await holdDevice({ store, sessions, now }, deviceId, order, 'administrator')
    })
  }

  /** Only of a twin that knows all devices: one that it does not know could not even sign in again. */
  #backUp(): void {
    const owners = this.#hands.map(([machine]) => machine && ownerOf(machine.parts.disk.database).deviceId)
    if (owners.includes(null)) return
    this.#count(this.#faults, 'twin-backup')
    this.#backup = {
      image: this.#twin.backup(),
      lineItems: [...this.#lineItems],
      states: [...this.#states],
      actionIds: [...this.#actionIds],
      sessions: new Map(this.#sessions),
      rules: this.#auditor.rulesKnown(),
    }
  }

  #restoreTwin(downMs: number, told: boolean): void {
    const { auditor, backup } = { auditor: this.#auditor, backup: this.#backup }
    if (backup === null) return
    this.#count(this.#faults, told ? 'twin-restore' : 'twin-restore, untold')
    this.#restoredAt = this.#time.now
    const before = this.#twin.backup()
    this.#lineItems = [...backup.lineItems]
    this.#states = [...backup.states]
    this.#actionIds = [...backup.actionIds]
    this.#sessions.clear()
    for (const [slot, id] of backup.sessions) this.#sessions.set(slot, id)
    this.#twin.restore(backup.image, downMs, told)
    auditor.twinRestored(before, this.#twin.database, backup.rules, this.#machines, told)
  }

  #deviceSession(what: Extract<Happening, { kind: 'device-session' }>): void {
    const machine = this.#first(what.device)
    const sessions = machine.sessions()
    if (sessions === undefined) return
    const name = `${machine.name} ${what.slot}`
    const belongs = (): void => undefined
    const begin = async (): Promise<string> => {
      const opened = await sessions.open({ instanceId: this.#instanceId, owner: null, bound: false, repeat: null })
      if (!opened.operable) throw new Error('a session that was just opened takes requests')
      const { sessionId: id } = JSON.parse(opened.body) as { readonly sessionId: string }
      this.#deviceSessions.set(name, id)
      return id
    }
    const ask = async (): Promise<string> => {
      const sessionId = this.#deviceSessions.get(name) ?? (await begin())
      if (what.order === 'CLOSE') {
        this.#deviceSessions.delete(name)
        await sessions.close(sessionId, belongs, null)
        return 'closed'
      }
      if (what.order === 'HEARTBEAT') {
        const { operable } = await sessions.heartbeat(sessionId, belongs)
        return operable ? 'kept alive' : 'over'
      }
      const request = what.order === 'HALT' ? { ...requestOf(what), items: [] } : requestOf(what)
      const answer = await sessions.request({
        apiVersion: 'v1.1',
        sessionId,
        request,
        metaData: request.items.map(() => undefined),
        rollbackOnDeny: what.count % 2 === 0,
        belongs,
        repeat: null,
      })
      if (!answer.operable) {
        this.#deviceSessions.delete(name)
        return 'over'
      }
      // The answer to a halt names the refund.
      if (what.order === 'REQUEST') this.#heardInSession(machine, answer.body)
      return 'asked'
    }
    const process = machine.agent
    ask().then(
      (outcome) => this.#count(this.#outcomes, `session on the device: ${outcome}`),
      (error: unknown) => {
        if (!(error instanceof CodedError)) {
          if (machine.agent === process) this.#violate(new Violation('ASSERTION', `a session fails: ${String(error)}`))
          return
        }
        if (error.code === 'NOT_FOUND') this.#deviceSessions.delete(name)
        this.#count(this.#outcomes, `session on the device: ${error.code}`)
      },
    )
  }

  /** An application in a session was told. */
  #heardInSession(machine: Machine, body: string): void {
    const { correlationId, requestedItems } = JSON.parse(body) as {
      readonly correlationId: string
      readonly requestedItems: readonly { readonly totalTokensCharged: number }[]
    }
    const tokens = requestedItems.reduce(
      (sum, { totalTokensCharged }) => sum + BigInt(Math.round(totalTokensCharged * 1_000_000)),
      0n,
    )
    this.#judge(() => this.#auditor.acknowledged(null, correlationId, tokens, machine))
  }

  /** Something that the twin does by itself, or an administrator at it; nothing while it is down. */
  #byTwin(work: (twin: TwinProcess) => Promise<void>): void {
    const { process: twin } = this.#twin
    if (twin === null) return
    this.#twin
      .run(twin, () => work(twin))
      .catch((error: unknown) => {
        if (!(error instanceof CodedError)) throw error
        this.#trace.note('twin', `refuses ${error.code}`)
      })
  }

  #change(
    index: number,
    changes: Partial<LineItemPlan>,
    what: RulePart,
    state: 'DEPLOYED' | 'INACTIVE' = this.#states[index] ?? 'DEPLOYED',
  ): void {
    this.#byTwin(async (twin) => {
      this.#count(this.#faults, 'rule changed')
      await this.#enter(twin, index, { ...this.#item(index), ...changes }, what, state)
    })
  }

  /** Known before it is done: a twin that dies after its commit cannot say so. One that dies before it has changed nothing. */
  async #enter(
    twin: TwinProcess,
    index: number,
    item: LineItemPlan,
    what: RulePart,
    state: 'DEPLOYED' | 'INACTIVE',
  ): Promise<void> {
    const before = this.#item(index)
    const known = { caps: this.#auditor.capsOf(item.id), state: this.#states[index], revision: this.#revision() }
    this.#lineItems[index] = item
    this.#states[index] = state
    const versions = this.#versions[index] ?? [before]
    this.#versions[index] = [...versions, item]
    try {
      if (what === 'line') await this.#mapLineItem(twin, index)
      else if (what === 'actions') await this.#setActions(twin, index)
      else if (what === 'limit') await this.#setLimit(twin, index)
      else await this.#setArrearsCap(twin, index)
    } finally {
      if (!twin.alive && this.#revision() === known.revision) {
        this.#lineItems[index] = before
        this.#states[index] = known.state ?? 'DEPLOYED'
        this.#versions[index] = versions
        if (known.caps !== undefined) this.#auditor.setCaps(item.id, known.caps)
      } else if (!twin.alive && what === 'actions') this.#readActions(index)
    }
  }

  /** The answer that would have named the action is lost. */
  #readActions(index: number): void {
    const { id, goldAllocation } = this.#item(index)
    const sql = 'SELECT id FROM actions WHERE line_item_id = ? AND allocation IS NOT NULL'
    const made = query(this.#twin.database, sql).pluck().get(id) as string | undefined
    this.#actionIds[index] = goldAllocation === null ? null : (made ?? null)
    this.#setCaps(index)
  }

  /** Of the rules, as it stands in the twin's database. */
  #revision(): unknown {
    return query(this.#twin.database, 'SELECT revision FROM policy_revisions').pluck().get()
  }

  /** Every rule that a line item ever had, the first one too. */
  readonly #versions: (readonly LineItemPlan[] | undefined)[] = []
  #hasEnteredAgain = false

  /** What devices were allowed since the backup, where the restored twin cannot believe in what they used. */
  #enterAgain(): void {
    this.#hasEnteredAgain = true
    this.#trace.note('plan', 'an administrator enters again what the twin has forgotten')
    for (const [index, item] of this.#lineItems.entries()) {
      const highest = [item, ...(this.#versions[index] ?? [])].reduce(mostOf)
      for (const what of ['line', 'actions', 'limit', 'arrears'] as const) {
        this.#byTwin((twin) => this.#enter(twin, index, highest, what, this.#states[index] ?? 'DEPLOYED'))
      }
    }
  }

  async #mapLineItem({ store, now }: TwinProcess, index: number): Promise<void> {
    const item = this.#item(index)
    this.#setCaps(index)
    await mapLineItem(
      store,
      this.#instanceId,
      {
        activationId: item.id,
        state: this.#states[index] ?? 'DEPLOYED',
        quantity: item.quantity,
        start: item.startsAt,
        end: item.endsAt,
        attributes: {
          elastic: true,
          ...(item.overdraft === 0 ? {} : { overdraftType: item.overdraft === 'UNLIMITED' ? 'Unlimited' : 'Number' }),
          ...(typeof item.overdraft === 'number' && item.overdraft > 0 ? { overdraftLimit: item.overdraft } : {}),
          ...(item.daily ? { resetFrequency: 'DAILY' } : {}),
        },
      },
      now(),
    )
  }

  async #setActions({ store, newId, now }: TwinProcess, index: number): Promise<void> {
    const { id, goldAllocation } = this.#item(index)
    const place = { instanceId: this.#instanceId, lineItemId: id }
    const actionId = this.#actionIds[index] ?? null
    const gold = {
      ...(actionId === null || goldAllocation === null ? {} : { id: actionId }),
      conditionId: this.#conditionId,
      action: 'ALLOW' as const,
      allocation: BigInt(goldAllocation ?? 0) * MICRO,
    }
    const everybody = { action: 'ALLOW' as const }
    const made = await replaceActions(
      store,
      place,
      goldAllocation === null ? [everybody] : [gold, everybody],
      newId,
      now(),
    )
    this.#actionIds[index] = goldAllocation === null ? null : (made[0]?.action.id ?? null)
    this.#setCaps(index)
  }

  async #setLimit({ store, now }: TwinProcess, index: number): Promise<void> {
    const { id, limit } = this.#item(index)
    this.#setCaps(index)
    if (limit === null) {
      await removeConsumptionLimit(store, this.#instanceId, id, now()).catch((error: unknown) => {
        if (!(error instanceof CodedError) || error.code !== 'NOT_FOUND') throw error
      })
      return
    }
    const nextReset = BEGIN + 2 * 3_600_000
    const days = Math.max(0, Math.ceil((now() + 1 - nextReset) / 86_400_000))
    await setConsumptionLimit(
      store,
      this.#instanceId,
      id,
      { limit: BigInt(limit) * MICRO, frequency: 'DAILY', nextReset: nextReset + days * 86_400_000 },
      now(),
    )
  }

  async #setArrearsCap({ store, now }: TwinProcess, index: number): Promise<void> {
    const { id, arrearsCap } = this.#item(index)
    const cap = BigInt(arrearsCap) * MICRO
    this.#auditor.setArrearsCap(id, cap)
    await setOfflinePolicy({ store, now }, this.#instanceId, id, cap)
  }

  async #setRates({ store, now }: TwinProcess, factor: number, inMs: number): Promise<void> {
    this.#rateVersions += 1
    const items = ITEMS.map((name) => {
      const rate = parseDecimal(Number((RATES[name] * factor).toFixed(6)))
      if (rate === undefined) throw new Error('a rate is a decimal')
      return { name, version: '', rate }
    })
    await createRateTable(store, { version: `v${this.#rateVersions}`, effectiveFrom: now() + inMs, items }, now())
  }

  #item(index: number): LineItemPlan {
    const item = this.#lineItems[index]
    if (item === undefined) throw new Error('the plan names a line item of the site')
    return item
  }

  /** What the auditor must expect of the caps of a line item. */
  #setCaps(index: number): void {
    const { id, quantity, overdraft, goldAllocation, limit } = this.#item(index)
    const actionId = this.#actionIds[index] ?? null
    this.#auditor.setCaps(id, {
      line: overdraft === 'UNLIMITED' ? null : BigInt(quantity + overdraft) * MICRO,
      allocations: new Map(
        actionId === null || goldAllocation === null ? [] : [[actionId, BigInt(goldAllocation) * MICRO]],
      ),
      limit: limit === null ? null : BigInt(limit) * MICRO,
    })
  }

  async #cloudRequest({ desk, newId, now }: TwinProcess, what: PlannedRequest): Promise<void> {
    const correlationId = newId()
    const order = { instanceId: this.#instanceId, correlationId, request: requestOf(what), metaData: [null] }
    const decision = await desk.request(order, now())
    const tokens = decision.items.reduce(
      (sum, item) =>
        sum + (item.outcome === 'GRANTED' ? item.parts.reduce((all, { charged }) => all + charged, 0n) : 0n),
      0n,
    )
    this.#count(this.#outcomes, tokens > 0n ? 'granted by the twin' : 'refused by the twin')
    this.#auditor.charged(correlationId, tokens)
    this.#auditor.settleDirect(correlationId)
  }

  async #cloudSession(
    twin: TwinProcess,
    { slot, close, ...what }: Extract<Happening, { kind: 'cloud-session' }>,
  ): Promise<void> {
    const parts = { ...twin, sessionIntervalMs: twin.terms.sessionIntervalMs }
    const now = twin.now()
    const sessionId = this.#sessions.get(slot)
    if (sessionId === undefined) {
      const { id } = await openSession(parts, { instanceId: this.#instanceId, deviceId: null, opening: null }, now)
      this.#sessions.set(slot, id)
      return
    }
    const belongs = (): void => undefined
    this.#sessions.delete(slot)
    if (close) {
      await closeSession(parts, sessionId, belongs, now)
      return
    }
    const order = {
      sessionId,
      correlationId: twin.newId(),
      request: requestOf(what),
      metaData: [null],
      rollbackOnDeny: true,
    }
    const answer = await requestInSession(parts, order, belongs, now)
    if (answer.operable) this.#sessions.set(slot, sessionId)
    this.#count(this.#outcomes, 'asked in a session of the twin')
  }

  /** The faults stop: copies are put away, and everything must come to rest. */
  async #comeToRest(): Promise<void> {
    if (this.#violation !== null) return
    this.#trace.note('plan', 'the faults stop')
    this.#isCalm = true
    this.#twin.calmDown()
    for (const machine of this.#machines) machine.calmDown()
    for (let device = 0; device < this.#hands.length; device += 1) this.#hold(device, 'UNLOCK')
    const copies = this.#hands.flatMap(([, ...hands]) => hands)
    if (copies.length > 0) {
      // Two machines with one identity fence each other for as long as both run.
      await this.#until(this.#time.now + CALM_MS)
      for (const copy of copies) {
        copy.retire()
        this.#auditor.discarded(copy)
      }
    }
    // After that, they may have to wait for the hour in which they may not attach any more.
    const end = this.#time.now + CALM_MS + (copies.length > 0 ? 60 * 60_000 : 0)
    const machines = this.#hands.flatMap(([machine]) => (machine === undefined ? [] : [machine]))
    const restless = (): string | undefined =>
      machines.map((one) => this.#restlessness(one)).find((why) => why !== null) ?? undefined
    // A copy of the last message may be late: rest that has lasted a while is rest.
    for (let atRest = 0; !this.#failed && atRest < REST_MS && this.#time.now < end;) {
      await this.#until(Math.min(end, this.#time.now + LOOK_EVERY_MS))
      if (!this.#hasEnteredAgain && machines.some(isDisbelieved)) this.#enterAgain()
      atRest = restless() === undefined ? atRest + LOOK_EVERY_MS : 0
    }
    // One of them may be in the middle of a sync.
    while (!this.#failed && restless() !== undefined && this.#time.next <= end + PATIENCE_MS) {
      this.#time.step()
      await this.#settle()
    }
    if (this.#failed) return
    const why = restless()
    if (why === undefined) this.#judge(() => this.#auditor.checkAtRest(this.#twin.database, machines))
    else this.#violate(new Violation('LIVENESS', why))
  }

  /** What keeps a device from being at rest; null when nothing does. */
  #restlessness(machine: Machine): string | null {
    const { deviceId } = ownerOf(machine.parts.disk.database)
    if (deviceId !== null && this.#auditor.isRevoked(deviceId)) return null
    const isTerminated = deviceId !== null && this.#auditor.isTerminated(deviceId)
    const status = machine.agent?.link.status()
    if (status === undefined) return `the agent of ${machine.name} does not run`
    const { backlog, unacknowledgedSeq, fenced, incarnation, connected, policies, conditions } = status
    const behind = policies.filter(({ applied, newest }) => applied === 0 || applied !== newest)
    const owes = backlog > 0 || unacknowledgedSeq !== null
    if (!isTerminated && this.#restoredAt !== null && !this.#hasSynced(deviceId, this.#restoredAt)) {
      return `${machine.name} has not synced since the twin was restored`
    }
    const isDown = !isTerminated && (fenced || incarnation === 0 || !connected || behind.length > 0)
    if (owes || isDown) {
      const state = { backlog, unacknowledgedSeq, fenced, incarnation, connected, behind, conditions }
      return `${machine.name} does not come to rest: ${JSON.stringify(state)}`
    }
    return null
  }

  /** A restored twin does not know what a device has to tell again before it speaks. */
  #hasSynced(deviceId: string | null, since: number): boolean {
    const row = query(this.#twin.database, 'SELECT last_sync_at FROM devices WHERE id = ?').get(deviceId) as
      { last_sync_at: bigint | null } | undefined
    return Number(row?.last_sync_at ?? -1) >= since
  }

  /** Counts what becomes true later, while there are faults. */
  #counted(name: string, inMs: number): void {
    const at = this.#time.now + inMs
    if (at < BEGIN + this.#plan.faultsMs) this.#time.at(at, () => this.#count(this.#faults, name))
  }

  #count(counts: Map<string, number>, name: string): void {
    counts.set(name, (counts.get(name) ?? 0) + 1)
  }

  #result(): RunResult {
    const { seed } = this.#plan
    const violation =
      this.#violation === null
        ? null
        : {
            invariant: this.#violation.invariant,
            message: this.#violation.message,
            at: this.#violatedAt - BEGIN,
          }
    return {
      seed,
      violation,
      happened: this.#happened,
      steps: this.#steps,
      deviceHours: ((this.#time.now - BEGIN) / 3_600_000) * this.#machines.length,
      decisions: this.#decisions,
      syncs: this.#syncs,
      faults: Object.fromEntries(this.#faults),
      outcomes: Object.fromEntries(this.#outcomes),
      looks: Object.fromEntries(this.#auditor.looks),
      digest: this.#trace.digest(),
      trace: this.#trace.lines,
    }
  }
}

/** A restored twin waits for its administrator. */
function isDisbelieved({ agent }: Machine): boolean {
  return agent?.link.status().conditions.some(({ code }) => code === 'GRANTS_FORGOTTEN') === true
}

/** What either of the two allows. */
function mostOf(a: LineItemPlan, b: LineItemPlan): LineItemPlan {
  const most = (one: number | null, other: number | null): number | null =>
    one === null || other === null ? (one ?? other) : Math.max(one, other)
  return {
    ...a,
    quantity: Math.max(a.quantity, b.quantity),
    overdraft:
      a.overdraft === 'UNLIMITED' || b.overdraft === 'UNLIMITED' ? 'UNLIMITED' : Math.max(a.overdraft, b.overdraft),
    goldAllocation: most(a.goldAllocation, b.goldAllocation),
    limit: most(a.limit, b.limit),
    arrearsCap: Math.max(a.arrearsCap, b.arrearsCap),
  }
}

function requestOf({ item, count, requester, gold }: PlannedRequest): AccessRequest {
  const decimal = parseDecimal(count)
  if (decimal === undefined) throw new Error('a count is a decimal')
  return {
    requester: { type: 'user', value: requester, dictionary: gold ? { tier: 'gold' } : {} },
    items: [{ name: item, version: '', count: decimal }],
  }
}

function settingsFor({ site }: Plan, device: number, token: string): AgentSettings {
  settingsOfAll ??= loadSettings(agentOptions, { file: null, env: {}, flags: {}, readText: () => '' })
  const { sync, grants, reserve } = settingsOfAll
  return {
    ...settingsOfAll,
    durability: site.reserved[device] === true ? 'reserved' : 'durable',
    reserve: { ...reserve, blockMax: site.blockMax },
    enrollment: { token: new Secret(token) },
    sync: { ...sync, interval: site.syncEveryMs, batch: site.batch, backoffMax: site.backoffMaxMs },
    grants: { ...grants, starting: site.startingGrant, returnOnStop: site.returnOnStop },
  }
}
