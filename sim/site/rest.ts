/** End of a run: faults stop, and every device must attach, connect and catch up in time. */
import type { ErrorCode } from '../../src/protocol/errors.ts'
import { query } from '../audit/query.ts'
import { ownerOf } from '../audit/records.ts'
import { Violation } from '../audit/violation.ts'
import type { Machine } from '../device/machine.ts'
import { CALM_MS } from '../plan.ts'
import { CALM_PUSH } from '../world/broker.ts'
import type { Backups } from './backups.ts'
import type { Devices } from './devices.ts'
import type { Rules } from './rules.ts'
import type { Settlements } from './settlements.ts'
import type { Stage } from './stage.ts'

const PATIENCE_MS = 15 * 60_000

const REST_MS = 5 * 60_000

const LOOK_EVERY_MS = 60_000

export class Rest {
  readonly #stage: Stage
  readonly #devices: Devices
  readonly #rules: Rules
  readonly #backups: Backups
  readonly #settlements: Settlements
  /** Since when only one machine works with each identity. */
  #aloneSince = Infinity

  constructor(stage: Stage, devices: Devices, rules: Rules, backups: Backups, settlements: Settlements) {
    this.#stage = stage
    this.#devices = devices
    this.#rules = rules
    this.#backups = backups
    this.#settlements = settlements
  }

  #hasFailed(): boolean {
    return this.#stage.violation !== null
  }

  /** Stops the faults, retires copies and waits for rest. */
  async come(): Promise<void> {
    if (this.#hasFailed()) return
    this.#stage.trace.note('plan', 'the faults stop')
    this.#devices.isCalm = true
    this.#stage.twin.calmDown()
    if (this.#stage.broker !== null) this.#stage.broker.weather = CALM_PUSH
    for (const machine of this.#devices.machines) machine.calmDown(this.#stage.twin.engine)
    this.#devices.unlockAll()
    await this.#devices.enrollTerminated()
    const copies = this.#devices.hands.flatMap(([, ...hands]) => hands)
    if (copies.length > 0) {
      // Two machines with one identity fence each other while both run.
      await this.#stage.until(this.#stage.time.now + CALM_MS)
      for (const copy of copies) {
        copy.retire()
        this.#stage.auditor.devices.discarded(copy)
      }
    }
    this.#aloneSince = this.#stage.time.now
    // Then they may have to wait until the attach limit permits another attach.
    const end = this.#stage.time.now + CALM_MS + (copies.length > 0 ? 60 * 60_000 : 0)
    const machines = this.#devices.hands.flatMap(([machine]) => (machine === undefined ? [] : [machine]))
    const restless = (): string | undefined =>
      machines.map((one) => this.#restlessness(one)).find((why) => why !== null) ?? undefined
    // A late duplicate may still arrive: require rest for a while.
    for (let atRest = 0; !this.#hasFailed() && atRest < REST_MS && this.#stage.time.now < end;) {
      await this.#stage.until(Math.min(end, this.#stage.time.now + LOOK_EVERY_MS))
      this.#stage.twin.confirmClocks()
      this.#settlements.confirm()
      if (!this.#rules.hasEnteredAgain && machines.some(isDisbelieved)) this.#rules.enterAgain()
      atRest = restless() === undefined ? atRest + LOOK_EVERY_MS : 0
    }
    // A sync may be in progress.
    while (!this.#hasFailed() && restless() !== undefined && this.#stage.time.next <= end + PATIENCE_MS) {
      await this.#stage.step()
    }
    if (this.#hasFailed()) return
    const why = restless()
    if (why === undefined) {
      this.#stage.judge(() => this.#stage.auditor.checkAtRest(this.#stage.twin.database, machines))
      this.#stage.judge(() => this.#rules.checkPublished())
      this.#stage.judge(() => this.#rules.checkCopied())
    } else this.#stage.violate(new Violation('LIVENESS', why))
  }

  #restlessness(machine: Machine): string | null {
    const { deviceId } = ownerOf(machine.deps.disk.database)
    const { shared } = this.#stage.auditor
    if (deviceId !== null && shared.isShutOut(deviceId)) return null
    const status = machine.agent?.link.status()
    if (status === undefined) return `the agent of ${machine.name} does not run`
    const { backlog, unacknowledgedSeq, fenced, epoch, connected, suspension, policies, conditions } = status
    const has = (code: ErrorCode): boolean => conditions.some((condition) => condition.code === code)
    // With a wiped disk, it needs another enrollment token.
    const isTerminated =
      deviceId === null ? shared.terminated.size > 0 && has('ENROLLMENT_REFUSED') : shared.terminated.has(deviceId)
    if (deviceId === null && shared.revoked.size > 0 && has('DEVICE_REVOKED')) return null
    if (deviceId !== null && shared.suspects.has(deviceId) && has('DEVICE_KEY_REPLACED')) {
      // A copy has replaced the key: an administrator enrolls it again.
      shared.strangers.add(deviceId)
      shared.lost(machine, () => true)
      return null
    }
    const behind = policies.filter(({ applied, newest }) => applied === 0 || applied !== newest)
    const owes = backlog > 0 || unacknowledgedSeq !== null
    if (!isTerminated && this.#backups.restoredAt !== null && !this.#hasSynced(deviceId, this.#backups.restoredAt)) {
      return `${machine.name} has not synced since the twin was restored`
    }
    const isCopied = deviceId !== null && shared.suspects.has(deviceId)
    if (!isTerminated && isCopied && !this.#hasSynced(deviceId, this.#aloneSince)) {
      return `${machine.name} has not learned yet what its copies have done`
    }
    const isDown =
      !isTerminated &&
      (fenced ||
        epoch === 0 ||
        !connected ||
        suspension !== null ||
        behind.length > 0 ||
        (!isCopied && has('DEVICE_KEY_REFUSED')))
    if (owes || isDown) {
      const state = { backlog, unacknowledgedSeq, fenced, epoch, connected, suspension, behind, conditions }
      return `${machine.name} does not come to rest: ${JSON.stringify(state)}`
    }
    return null
  }

  /** A restored cloud learns of undelivered entries only from a sync, and a copied device that the other one has its epoch. */
  #hasSynced(deviceId: string | null, since: number): boolean {
    const row = query(this.#stage.twin.database, 'SELECT last_sync_at FROM devices WHERE id = ?').get(deviceId) as
      { last_sync_at: bigint | null } | undefined
    return Number(row?.last_sync_at ?? -1) >= since
  }
}

/** A restored cloud waits for its administrator. */
function isDisbelieved({ agent }: Machine): boolean {
  return agent?.link.status().conditions.some(({ code }) => code === 'GRANTS_FORGOTTEN') === true
}
