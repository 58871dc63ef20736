import { overrideRecovery, showRecovery } from '../../src/cloud/sync/recovery/recovery.ts'
import { type RulesKnown, ownerOf } from '../audit/records.ts'
import type { Devices } from './devices.ts'
import type { Load } from './load.ts'
import type { Rules, RulesMade } from './rules.ts'
import type { Stage } from './stage.ts'

interface Backup {
  readonly image: Buffer
  readonly made: RulesMade
  readonly sessions: ReadonlyMap<number, string>
  readonly known: RulesKnown
}

/** Amount at risk without proof: unlimited, micro-tokens. */
const UNKNOWN = 10n ** 15n

export class Backups {
  readonly #stage: Stage
  readonly #devices: Devices
  readonly #rules: Rules
  readonly #load: Load
  #backup: Backup | null = null
  restoredAt: number | null = null

  constructor(stage: Stage, devices: Devices, rules: Rules, load: Load) {
    this.#stage = stage
    this.#devices = devices
    this.#rules = rules
    this.#load = load
  }

  /** Only while the cloud knows all devices: an unknown one could not authenticate after a restore. */
  make(): void {
    const owners = this.#devices.hands.map(([machine]) => machine && ownerOf(machine.deps.disk.database).deviceId)
    if (owners.includes(null)) return
    this.#stage.fault('twin-backup')
    this.#backup = {
      image: this.#stage.twin.backup(),
      made: this.#rules.made(),
      sessions: new Map(this.#load.sessions),
      known: this.#stage.auditor.rulesKnown(),
    }
  }

  /** An administrator ends a recovery, whatever is still withheld. */
  overrideRecovery(): void {
    this.#stage.byTwin(async ({ store, now }) => {
      for (const instanceId of this.#rules.instanceIds) {
        const { since, unproven, accounts } = await showRecovery({ store }, instanceId)
        if (since === null && accounts.length === 0) continue
        this.#stage.fault('recovery overridden')
        this.#stage.auditor.recoveryOverridden(
          new Map(accounts.map((each) => [each.account, unproven === null ? BigInt(each.atRisk) : UNKNOWN])),
        )
        await overrideRecovery({ store, now }, instanceId)
      }
    })
  }

  restore(downMs: number, told: boolean): void {
    const { auditor, twin, time } = this.#stage
    if (this.#backup === null) return
    const { image, made, sessions, known } = this.#backup
    this.#stage.fault(told ? 'twin-restore' : 'twin-restore, untold')
    this.restoredAt = time.now
    const before = twin.backup()
    this.#rules.putBack(made)
    this.#load.sessions.clear()
    for (const [slot, id] of sessions) this.#load.sessions.set(slot, id)
    twin.restore(image, downMs, told)
    auditor.twinRestored(before, twin.database, known, this.#devices.machines)
  }
}
