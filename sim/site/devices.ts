/** A site's devices, their faults, owners, administrators and copies. */
import { decodeJwt } from 'jose'
import type { HttpAnswer, HttpRequest } from '../../src/agent/platform/http/exchange.ts'
import { releaseDevice, revokeDevice, rotateDeviceKey } from '../../src/cloud/devices/devices.ts'
import { issueEnrollmentToken } from '../../src/cloud/devices/issue-enrollment-token.ts'
import { suspendDevice } from '../../src/cloud/devices/suspend-device.ts'
import { ENGINE } from '../../src/core/engine.ts'
import { agentOptions, type AgentSettings } from '../../src/agent/settings.ts'
import { CodedError, type ErrorCode } from '../../src/protocol/errors.ts'
import { loadSettings } from '../../src/settings/load.ts'
import { Secret } from '../../src/settings/option.ts'
import { query } from '../audit/query.ts'
import { ownerOf } from '../audit/records.ts'
import { Violation, wordsOf } from '../audit/violation.ts'
import { SOUND_DEVICE } from '../defects/device-defects.ts'
import { Disk } from '../device/disk.ts'
import { MachineKeys } from '../device/machine-keys.ts'
import { Machine, journalLimits } from '../device/machine.ts'
import type { Damage } from '../device/disk.ts'
import type { Happening, Plan } from '../plan.ts'
import { addresses } from '../twin/http-interface.ts'
import type { TwinProcess } from '../twin/twin-process.ts'
import { Network } from '../world/network.ts'
import type { Rules } from './rules.ts'
import type { Stage } from './stage.ts'

type OfDevices =
  | 'kill'
  | 'power-cut'
  | 'stop'
  | 'trap'
  | 'death-after-answer'
  | 'disk-full'
  | 'slow-disk'
  | 'log-full'
  | 'suspend'
  | 'weather'
  | 'partition'
  | 'clock-step'
  | 'refused-segments'
  | 'newer-twin'
  | 'engine-upgrade'
  | 'damage'
  | 'snapshot'
  | 'restore'
  | 'clone'
  | 'wipe'
  | 'revoke'
  | 'release'
  | 'rotate-key'
  | 're-enroll'
  | 'hold'

/** What the cloud may answer to a call of a sound device, however many of them wait, share transactions and are sent again. */
const ANSWERS: ReadonlySet<ErrorCode> = new Set([
  'DEVICE_REVOKED',
  'DEVICE_TERMINATED',
  'DEVICE_LOCKED',
  'ENROLLMENT_REFUSED',
  'ATTACH_TOO_OFTEN',
  // Copies of messages arrive while the first one waits.
  'KEY_BUSY',
  'SYNC_TOO_OFTEN',
  'GRANTS_FORGOTTEN',
  'SESSION_NOT_OPERABLE',
  'AGENT_ENGINE_OLD',
  'CLOUD_ENGINE_OLD',
  // By a clock that is wrong.
  'TOKEN_NOT_IN_TIME',
  // A restored cloud has forgotten the key, or the session.
  'TOKEN_INVALID',
  'NOT_FOUND',
  // An old response has named the session of another instance.
  'INSTANCE_NOT_IN_TOKEN',
  // A message of before a rotation arrives late. A device that needs its former key does not come to rest.
  'DEVICE_KEY_REPLACED',
])

/** And to one that was copied or restored: another machine may have replaced the key of both. */
const ANSWERS_TO_COPIES: ReadonlySet<ErrorCode> = new Set(['SEGMENT_REJECTED', 'DEVICE_KEY_REFUSED'])

/** The device may be revoked or terminated, or unknown to a restored cloud. */
const NO_COMMANDS = ['CONFLICT', 'NOT_FOUND'] as const

let settingsOfAll: AgentSettings | undefined

export class Devices {
  readonly #stage: Stage
  readonly #rules: Rules
  readonly machines: Machine[] = []
  /** Machines per planned device: the original and its copies. */
  readonly hands: Machine[][] = []
  readonly #damagedWhenAhead = new Set<number>()
  readonly #snapshots = new Map<number, Buffer>()
  decisions = 0
  syncs = 0
  isCalm = false

  constructor(stage: Stage, rules: Rules) {
    this.#stage = stage
    this.#rules = rules
  }

  async add(twin: TwinProcess): Promise<void> {
    const token = await this.#tokenBy(twin)
    const device = this.hands.length
    const machine = this.#machine(`dev-${device}`, device, new Disk(), token, new MachineKeys(`device ${device}`))
    this.hands.push([machine])
    machine.start()
  }

  close(): void {
    for (const { deps } of this.machines) deps.disk.close()
  }

  happen(what: Extract<Happening, { kind: OfDevices }>): void {
    switch (what.kind) {
      case 'kill':
        this.first(what.device).kill(what.downMs)
        break
      case 'power-cut':
        this.first(what.device).cutPower(what.downMs)
        break
      case 'stop':
        this.first(what.device).stop(what.downMs)
        break
      case 'trap':
        this.first(what.device).traps.push({ ...what })
        return
      case 'death-after-answer':
        this.first(what.device).afterAnswer = { ...what }
        return
      case 'disk-full':
        this.#stage.auditor.shared.wereFull.add(this.first(what.device).name)
        this.#forATime(what.forMs, this.first(what.device), (machine, on) => {
          machine.deps.disk.full = on
        })
        break
      case 'slow-disk':
        this.#forATime(what.forMs, this.first(what.device), (machine, on) => {
          machine.diskLatencyMax = on ? 2_000 : 2
        })
        break
      case 'log-full':
        this.#fillLog(what)
        break
      case 'suspend':
        this.first(what.device).suspend(what.forMs)
        break
      case 'weather':
        this.#forATime(what.forMs, this.first(what.device), ({ deps: { network } }, on) => {
          if (on) network.weather = what.weather
          else network.heal()
        })
        break
      case 'partition':
        this.#forATime(what.forMs, this.first(what.device), ({ deps: { network } }, on) => {
          network.cutUp = on && what.up
          network.cutDown = on && what.down
        })
        break
      case 'refused-segments':
        this.#forATime(what.forMs, this.first(what.device), ({ deps: { network } }, on) => {
          network.refusesSegments = on
        })
        break
      case 'newer-twin':
        this.#forATime(what.forMs, this.first(what.device), ({ deps: { network } }, on) => {
          network.isTwinNewer = on
        })
        break
      case 'engine-upgrade':
        this.#upgradeEngine(what)
        break
      case 'damage':
        this.#damage(what.device, what.damage)
        return
      case 'clock-step':
        this.first(what.device).stepClock(what.ms)
        break
      case 'snapshot':
        this.#snapshots.set(what.device, this.first(what.device).deps.disk.image())
        break
      case 'restore':
        if (!this.#restore(what.device)) return
        break
      case 'clone':
        this.#clone(what.device)
        break
      case 'wipe': {
        const machine = this.first(what.device)
        this.#stage.auditor.devices.wiped(machine)
        machine.kill(5_000)
        machine.deps.disk.wipe()
        break
      }
      case 'revoke':
      case 'release': {
        const { deviceId } = ownerOf(this.first(what.device).deps.disk.database)
        if (deviceId === null) return
        this.#stage.byTwinOrRefused(NO_COMMANDS, async (twin) => {
          this.#stage.fault(what.kind)
          try {
            await (what.kind === 'revoke' ? revokeDevice : releaseDevice)(twin, deviceId)
          } finally {
            // The process may have ended after the commit.
            if (this.#isRevoked(deviceId)) this.#stage.auditor.devices.revoked(deviceId)
          }
        })
        return
      }
      case 'rotate-key': {
        const machine = this.first(what.device)
        const { deviceId } = ownerOf(machine.deps.disk.database)
        if (deviceId === null) return
        if (what.by === 'TECHNICIAN') {
          // Fails if the agent is stopping or cannot write.
          machine.agent?.link.rotateKey().catch((error: unknown) => {
            if (!(error instanceof CodedError)) machine.deps.onViolation(new Violation('ASSERTION', wordsOf(error)))
          })
          break
        }
        this.#stage.byTwinOrRefused(NO_COMMANDS, async (twin) => {
          this.#stage.fault(what.kind)
          await rotateDeviceKey(twin, deviceId)
        })
        return
      }
      case 're-enroll':
        this.#enrollAgain(what)
        return
      case 'hold':
        this.#hold(what.device, what.order)
        return
    }
    this.#stage.fault(what.kind)
  }

  #machine(name: string, device: number, disk: Disk, token: string, keys: MachineKeys): Machine {
    const { site } = this.#stage.plan
    const random = this.#stage.random.stream(name)
    const note = (what: string): void => this.#stage.trace.note(name, what)
    const onFault = (kind: string): void => this.#stage.fault(kind)
    const machine = new Machine({
      name,
      scheduler: this.#stage.time,
      random,
      settings: settingsFor(this.#stage.plan, device, token),
      segmentEntriesMax: this.#stage.plan.segmentEntriesMax,
      keys,
      disk,
      network: new Network({
        scheduler: this.#stage.time,
        random: random.stream('network'),
        deliver: (request) => this.#answered(request),
        note,
        onFault,
      }),
      broker: this.#stage.broker,
      defects: { ...SOUND_DEVICE, ...this.#stage.defect?.device?.() },
      note,
      onTaken: (taker, call, error) => {
        this.#stage.trace.note(name, `${call.name} ${error === null ? 'done' : codeOf(error)}`)
        const { effect } = disk
        if (effect === null) return
        if (effect.name === 'append') this.decisions += effect.entries.length
        if (effect.name === 'acknowledge') this.syncs += 1
        this.#stage.judge(() => this.#stage.auditor.devices.taken(taker, effect, this.#stage.twin.database))
      },
      onLogged: (logger, entries) => {
        this.#stage.judge(() =>
          this.#stage.auditor.entries.logged(
            logger,
            entries.map(({ body }) => body),
            this.#stage.twin.database,
          ),
        )
        if (this.isCalm || !logger.memory.isAhead || logger !== this.first(device)) return
        if (!this.#damagedWhenAhead.delete(device)) return
        this.#stage.time.at(this.#stage.time.now + 1, () => this.#damage(device, 'COUNTERS'))
      },
      onRetracted: (logger, from) => this.#stage.judge(() => this.#stage.auditor.entries.retracted(logger, from)),
      onTime: (knows, reading, evidence) => {
        this.#stage.judge(() => this.#stage.auditor.shared.clocks.know(knows.name, reading, evidence))
      },
      onPowerCut: (cut) => this.#stage.auditor.entries.powerCut(cut),
      onViolation: (violation) => this.#stage.violate(violation),
      onFault,
    })
    machine.noRtc = site.noRtc[device] ?? false
    machine.driftPpm = site.driftPpm[device] ?? 0
    machine.stepClock(site.wallErrorMs[device] ?? 0)
    this.machines.push(machine)
    return machine
  }

  async #answered(request: HttpRequest): Promise<HttpAnswer | undefined> {
    const answer = await this.#stage.twin.answer(request)
    const { pathname } = new URL(request.url)
    if (answer !== undefined && answer.status >= 400) {
      const { code, message } = JSON.parse(answer.body) as { readonly code: ErrorCode; readonly message: string }
      const { suspects, damaged } = this.#stage.auditor.shared
      const sender = senderOf(request)
      // The response to the last attach was lost, or the cloud was restored: it is announced again after the next one, or a sync.
      const isOfOtherEpoch = code === 'DEVICE_KEY_REFUSED' && message.includes('The link is of epoch')
      const mayAnswer =
        ANSWERS.has(code) ||
        (ANSWERS_TO_COPIES.has(code) && suspects.has(sender)) ||
        isOfOtherEpoch ||
        (code === 'SEGMENT_REJECTED' && damaged.has(sender))
      if (!mayAnswer) {
        this.#stage.violate(new Violation('REFUSAL', `the twin answers ${pathname} with ${code}: ${message}`))
      }
    }
    if (answer?.status === 200 && pathname.endsWith('/enrollments')) {
      const { deviceId } = JSON.parse(answer.body) as { readonly deviceId: string }
      const { auditor, twin } = this.#stage
      this.#stage.judge(() => auditor.enrollments.enrolled(twin.database, deviceId, tokenOf(request) ?? ''))
    }
    if (answer?.status === 200 && pathname.endsWith('/policy')) {
      this.#stage.judge(() => this.#stage.auditor.published.see(answer.body))
    }
    return answer
  }

  first(device: number): Machine {
    const machine = this.hands[device]?.[0]
    if (machine === undefined) throw new Error('the plan names a device of the site')
    return machine
  }

  #isRevoked(deviceId: string): boolean {
    const sql = 'SELECT revoked_at FROM devices WHERE id = ?'
    return typeof query(this.#stage.twin.database, sql).pluck().get(deviceId) === 'bigint'
  }

  #forATime(ms: number, machine: Machine, set: (machine: Machine, on: boolean) => void): void {
    set(machine, true)
    this.#stage.time.at(this.#stage.time.now + ms, () => set(machine, false))
  }

  #fillLog({ device, calls, forMs, isDiskFull, refusals, downMs }: Extract<Happening, { kind: 'log-full' }>): void {
    const machine = this.first(device)
    if (isDiskFull) this.#stage.auditor.shared.wereFull.add(machine.name)
    if (refusals !== null) machine.afterRefusal = { refusals, downMs }
    this.#forATime(forMs, machine, ({ memory, deps: { disk } }, on) => {
      memory.full = new Set(on ? calls : [])
      if (isDiskFull) disk.full = on
    })
  }

  #restore(device: number): boolean {
    const image = this.#snapshots.get(device)
    if (image === undefined) return false
    const machine = this.first(device)
    machine.kill(5_000)
    machine.deps.disk.put(image)
    this.#stage.auditor.devices.duplicated(machine, machine)
    return true
  }

  /** Strict: works only with a cloud of the same engine, until a later release. */
  #upgradeEngine({ device, isStrict, forMs }: Extract<Happening, { kind: 'engine-upgrade' }>): void {
    const machine = this.first(device)
    const version = machine.engine.version + 1
    machine.install({ version, oldest: isStrict ? version : ENGINE.oldest })
    const next = { version: version + 1, oldest: ENGINE.oldest }
    if (isStrict) this.#stage.later(forMs, () => machine.install(next))
  }

  /** With write-behind, damage the counters if answers are not yet on disk. */
  #damage(device: number, damage: Damage): void {
    const machine = this.first(device)
    const { disk, settings } = machine.deps
    if (damage === 'COUNTERS' && settings.durability === 'write-behind' && !machine.memory.isAhead) {
      this.#damagedWhenAhead.add(device)
      return
    }
    machine.kill(5_000)
    if (!disk.damage(damage, journalLimits(machine.deps), machine.deps.defects.salvages(machine.memory.left()))) return
    this.#stage.fault(`ledger damaged: ${damage.toLowerCase()}`)
    this.#stage.judge(() => this.#stage.auditor.devices.damaged(machine, damage))
  }

  #clone(device: number): void {
    const original = this.first(device)
    const hands = this.hands[device] ?? []
    if (hands.length > 2) return
    const { token } = original.deps.settings.enrollment
    if (!(token instanceof Secret)) throw new Error('invariant: each device was given a token')
    const name = `dev-${device}${'abc'[hands.length] ?? ''}`
    const { disk, keys } = original.deps
    const copy = this.#machine(name, device, new Disk(disk.image()), token.reveal(), new MachineKeys(name, keys))
    hands.push(copy)
    this.#stage.auditor.devices.duplicated(copy, original)
    // A copied disk starts in a newly powered board.
    copy.cutPower(1_000)
  }

  #hold(device: number, order: 'LOCK' | 'UNLOCK' | 'TERMINATE'): void {
    const { deviceId } = ownerOf(this.first(device).deps.disk.database)
    if (deviceId !== null) this.#command(deviceId, order)
  }

  #enrollAgain({ device, afterMs, isOld }: Extract<Happening, { kind: 're-enroll' }>): void {
    const machine = this.first(device)
    const { deviceId } = ownerOf(machine.deps.disk.database)
    if (deviceId === null || this.#stage.auditor.shared.isShutOut(deviceId)) return
    this.#stage.fault(isOld ? 'service ended after an enrollment token was made' : 'service ended, enrolled again')
    if (!isOld) this.#command(deviceId, 'TERMINATE')
    else this.#makeToken((token) => this.#stage.later(afterMs + 1, () => machine.giveToken(token)))
    this.#stage.later(afterMs, () => {
      if (isOld) this.#command(deviceId, 'TERMINATE')
      else this.#makeToken((token) => machine.giveToken(token))
    })
  }

  /**
   * Machines that are terminated, or whose token is refused, get another one. A termination that the clock of the cloud has
   * dated ahead begins again before it.
   */
  async enrollTerminated(): Promise<void> {
    const areEnrolledAgain = this.#stage.plan.events.some(({ what }) => what.kind === 're-enroll')
    const { terminated } = this.#stage.auditor.shared
    for (const [machine] of this.hands) {
      if (machine === undefined) continue
      const { deviceId } = ownerOf(machine.deps.disk.database)
      const conditions = machine.agent?.link.status().conditions ?? []
      const isRefused = deviceId === null && conditions.some(({ code }) => code === 'ENROLLMENT_REFUSED')
      if (areEnrolledAgain && deviceId !== null && terminated.has(deviceId)) this.#command(deviceId, 'TERMINATE')
      else if (!isRefused) continue
      await this.#stage.settle()
      this.#makeToken((token) => machine.giveToken(token))
      await this.#stage.settle()
    }
  }

  #makeToken(give: (token: string) => void): void {
    this.#stage.byTwin(async (twin) => give(await this.#tokenBy(twin)))
  }

  async #tokenBy(twin: TwinProcess): Promise<string> {
    const { token } = await issueEnrollmentToken(
      { ...twin, addresses: addresses(false) },
      { instanceIds: [...this.#rules.instanceIds], lifetimeMs: 365 * 86_400_000 },
    )
    this.#stage.auditor.enrollments.made(token)
    return token
  }

  /** Also of machines whose wiped disks do not have an identity yet: they enroll as the same devices. */
  unlockAll(): void {
    const ids = query(this.#stage.twin.database, 'SELECT id FROM devices ORDER BY enrolled_at, id').pluck().all()
    for (const deviceId of ids as string[]) this.#command(deviceId, 'UNLOCK')
  }

  #command(deviceId: string, order: 'LOCK' | 'UNLOCK' | 'TERMINATE'): void {
    this.#stage.byTwinOrRefused(NO_COMMANDS, async (twin) => {
      const { store, now, present } = twin
      const sessions = { ...twin, sessionIntervalMs: twin.terms.sessionIntervalMs }
      if (!this.isCalm) this.#stage.fault(order.toLowerCase())
      try {
        await suspendDevice({ store, sessions, now, present }, deviceId, order)
      } finally {
        this.#stage.auditor.enrollments.ended(this.#stage.twin.database, deviceId)
      }
    })
  }
}

function settingsFor({ site }: Plan, device: number, token: string): AgentSettings {
  settingsOfAll ??= loadSettings(agentOptions, { file: null, env: {}, flags: {}, readText: noFile })
  const { sync, grants, writeBehind: reserve, state } = settingsOfAll
  return {
    ...settingsOfAll,
    state: { ...state, retention: site.retentionMs },
    durability: site.reserved[device] === true ? 'write-behind' : 'durable',
    writeBehind: { ...reserve, reservationMax: site.reservationMax },
    enrollment: { token: new Secret(token, 'the simulation') },
    sync: { ...sync, interval: site.syncEveryMs, batch: site.batch, backoffMax: site.backoffMaxMs },
    grants: { ...grants, starting: site.startingGrant, returnOnStop: site.returnOnStop },
  }
}

/** No file of the machine is there. */
function noFile(path: string): never {
  throw Object.assign(new Error(`${path} does not exist`), { code: 'ENOENT' })
}

/** The id of the device whose token the request has. */
function senderOf(request: HttpRequest): string {
  const token = tokenOf(request)
  return (token === undefined ? undefined : decodeJwt(token).iss) ?? ''
}

function tokenOf({ headers }: HttpRequest): string | undefined {
  return headers['authorization']?.split(' ')[1]
}

function codeOf(error: Error): string {
  return error instanceof CodedError ? error.code : error.message
}
