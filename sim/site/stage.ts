/** Shared by all parts of a run: time, randomness, the cloud, the auditor and counters. */
import { Auditor } from '../audit/auditor.ts'
import { Violation } from '../audit/violation.ts'
import type { Defect } from '../defects/defects.ts'
import { SOUND_TWIN } from '../defects/twin-defects.ts'
import { CodedError, type ErrorCode } from '../../src/protocol/errors.ts'
import { BEGIN, HOUR, type Happening, type Plan } from '../plan.ts'
import { changeShared } from '../twin/change-shared.ts'
import { Twin } from '../twin/twin.ts'
import type { TwinProcess } from '../twin/twin-process.ts'
import { Broker } from '../world/broker.ts'
import { Random } from '../world/random.ts'
import { VirtualTime, rest } from '../world/scheduler.ts'
import { keyPair } from '../world/signatures.ts'
import { Trace } from '../world/trace.ts'

export class Stage {
  readonly plan: Plan
  readonly time = new VirtualTime(BEGIN)
  readonly random: Random
  readonly trace: Trace
  readonly auditor: Auditor
  readonly twin: Twin
  /** Null: no push. */
  readonly broker: Broker | null
  readonly defect: Defect | null
  readonly faults = new Map<string, number>()
  readonly outcomes = new Map<string, number>()
  violation: Violation | null = null
  violatedAt = 0
  steps = 0
  #dirty = false

  constructor(plan: Plan, keepTrace: boolean, defect: Defect | null) {
    this.plan = plan
    this.defect = defect
    this.random = new Random(`run ${plan.seed}`)
    this.trace = new Trace(() => this.time.now, keepTrace)
    const { site } = plan
    this.auditor = new Auditor(() => this.time.now, site.settleAfterMs)
    this.auditor.shared.isRetentionShort = Math.min(site.retentionMs, site.receiptMarginMs) < 7 * 24 * HOUR
    this.broker =
      site.push === null
        ? null
        : new Broker(
            {
              scheduler: this.time,
              random: this.random.stream('push'),
              onFault: (kind) => this.fault(kind),
            },
            site.push,
          )
    const { grantLifetimeMs, grantHorizonMs, policyUsableMs, syncEveryMs, undecidedClock } = site
    this.twin = new Twin({
      scheduler: this.time,
      random: this.random.stream('twin'),
      key: keyPair('twin'),
      terms: {
        grantLifetimeMs,
        grantHorizonMs,
        policyUsableMs,
        syncEveryMs,
        receiptMarginMs: site.receiptMarginMs,
        attachesMax: 12,
        sessionIntervalMs: site.sessionIntervalMs,
      },
      settlement: { afterMs: site.settleAfterMs, as: site.settleAs },
      undecidedClock,
      nodes: site.nodes,
      hasCells: plan.events.some(({ what }) => what.kind === 'control-cell-down'),
      hasKeys: plan.events.some(({ what }) => 'repeatAfterMs' in what),
      broker: this.broker,
      defects: { ...SOUND_TWIN, ...defect?.twin?.() },
      note: (what) => this.trace.note('twin', what),
      onCommit: () => {
        this.#dirty = true
      },
      onClocks: (errors) => this.auditor.shared.clocks.set(errors),
      onDecided: (correlationId, rules, records) => {
        this.auditor.bill.cloud.decides(correlationId, rules)
        this.judge(() => this.auditor.refusals.check(this.twin.database, records, rules))
      },
      onViolation: (violation) => this.violate(violation),
      onFault: (kind) => this.fault(kind),
    })
  }

  async until(end: number): Promise<void> {
    while (this.violation === null && this.time.next <= end) await this.step()
    this.time.pass(end)
  }

  async step(): Promise<void> {
    this.time.step()
    await this.settle()
  }

  /** Waits for pending work, then audits. */
  async settle(): Promise<void> {
    this.steps += 1
    await rest(() => this.twin.busy)
    if (!this.#dirty || this.violation !== null) return
    this.#dirty = false
    this.judge(() => this.auditor.check(this.twin.database))
  }

  judge(look: () => void): void {
    try {
      look()
    } catch (error) {
      if (!(error instanceof Violation)) throw error
      this.violate(error)
    }
  }

  violate(violation: Violation): void {
    if (this.violation !== null) return
    this.violation = violation
    this.violatedAt = this.time.now
    this.trace.note('auditor', `${violation.invariant}: ${violation.message}`)
  }

  stepTwinClock({ ms, forMs, node }: Extract<Happening, { kind: 'twin-clock' }>): void {
    const { twin, time } = this
    // The clocks of several nodes differ.
    if (node !== undefined && this.plan.site.nodes === 1) return
    const days = Math.abs(ms) > 30 * 86_400_000 ? ', more than 30 days' : ''
    this.fault(
      `clock of ${node === undefined ? 'the twin' : 'a node'} jumps ${ms < 0 ? 'backwards' : 'forwards'}${days}`,
    )
    this.auditor.settled.clockAhead(ms)
    twin.stepClock(ms, node)
    time.at(time.now + forMs, () => twin.setClockRight(node))
  }

  busyTwin(waitMs: number, forMs: number): void {
    const { twin, time } = this
    this.fault('twin-busy')
    twin.waitMs = waitMs
    time.at(time.now + forMs, () => {
      twin.waitMs = 0
    })
  }

  /** The cell of the site serves on. Changes in the control cell are refused meanwhile. */
  stopControlCell(forMs: number): void {
    const { twin, time } = this
    this.fault('control-cell-down')
    twin.isControlDown = true
    time.at(time.now + forMs, () => {
      twin.isControlDown = false
    })
  }

  /** A change of what all cells have. */
  changeShared(work: (twin: Pick<TwinProcess, 'store' | 'now'>) => Promise<void>): void {
    // A node notices later that the control cell responds again.
    const expected: readonly ErrorCode[] = this.twin.control === null ? [] : ['DATABASE_UNREACHABLE']
    this.byTwinOrRefused(expected, (twin) => changeShared(twin, work))
  }

  /** Work of the cloud or its administrator; skipped while it is down. No part of it may be refused. */
  byTwin(work: (twin: TwinProcess) => Promise<void>): void {
    this.byTwinOrRefused([], work)
  }

  /** @param expected errors that it may end with */
  byTwinOrRefused(expected: readonly ErrorCode[], work: (twin: TwinProcess) => Promise<void>): void {
    const { process: twin } = this.twin
    if (twin === null) return
    this.twin
      .run(twin, () => work(twin))
      .catch((error: unknown) => {
        if (!(error instanceof CodedError)) throw error
        const { code, message } = error
        this.trace.note('twin', `refuses ${code}`)
        if (!expected.includes(code)) this.violate(new Violation('REFUSAL', `the twin refuses ${code}: ${message}`))
      })
  }

  fault(name: string): void {
    count(this.faults, name)
  }

  /** Counts a fault that starts later, unless faults have ended. */
  faultIn(name: string, inMs: number): void {
    this.later(inMs, () => this.fault(name))
  }

  /** Does it later, unless faults have ended. */
  later(inMs: number, work: () => void): void {
    const at = this.time.now + inMs
    if (at < BEGIN + this.plan.faultsMs) this.time.at(at, work)
  }

  outcome(name: string): void {
    count(this.outcomes, name)
  }
}

function count(counts: Map<string, number>, name: string): void {
  counts.set(name, (counts.get(name) ?? 0) + 1)
}
