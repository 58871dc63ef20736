/** An administrator limits how many silent devices the cloud settles without a confirmation, and confirms more. */
import { confirmSettlement, showSettlement } from '../../src/cloud/sync/grants/expire-inactive.ts'
import type { Happening } from '../plan.ts'
import type { Stage } from './stage.ts'

export class Settlements {
  readonly #stage: Stage

  constructor(stage: Stage) {
    this.#stage = stage
  }

  happen({ kind }: Extract<Happening, { kind: 'settlement-limit' | 'settlement-confirmed' }>): void {
    if (kind === 'settlement-confirmed') {
      this.confirm()
      return
    }
    this.#stage.fault(kind)
    // Of so few devices, one.
    this.#stage.twin.settledPercentMax = 1
    this.#stage.auditor.settled.limit()
  }

  /** Does nothing unless settlement is paused. */
  confirm(): void {
    const { twin, plan, auditor } = this.#stage
    const { settledPercentMax: percentMax } = twin
    if (percentMax === 100) return
    this.#stage.byTwin(async ({ store, present }) => {
      const settlement = { store, present, afterMs: plan.site.settleAfterMs, percentMax }
      if (!(await showSettlement(settlement)).paused) return
      this.#stage.fault('settlement confirmed')
      auditor.settled.confirmed()
      await confirmSettlement(settlement)
    })
  }
}
