/** Whether a request could be served now. Being offline or out of tokens counts as ready. */
import { decide } from '../../core/rules/decide.ts'
import { decimal } from '../../core/pricing/amount.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { Readiness } from '../../protocol/local/report.ts'
import { type ClockStamp, type Journal, JournalLost } from '../ledger/journal.ts'
import type { Ledger } from '../ledger/ledger.ts'
import type { Timers } from '../runtime/timers.ts'
import { type RulesDeps, requireRules } from '../access/local-decisions.ts'

export const PROBE_EVERY_MS = 5_000

export const PROBE_TIMEOUT_MS = 2_000

/** Time between watchdog writes while they succeed, ms: each one wears the flash. */
export const WATCH_WRITES_EVERY_MS = 60_000

interface Written {
  readonly failure: CodedError | null
  readonly answered: boolean
}

export interface ReadinessDeps {
  readonly ledger: Pick<Ledger, 'chargeable'> & { stamp(): ClockStamp }
  readonly policies: RulesDeps['policies']
  readonly link: RulesDeps['link']
  readonly clock: { reading(): ClockReading; sinceBoot(): number }
  readonly journal: Pick<Journal, 'saveClock'>
  readonly timers: Timers
}

export class ReadinessProbe {
  readonly #deps: ReadinessDeps
  #wroteAt = -Infinity
  #written: Promise<Written> = Promise.resolve({ failure: null, answered: false })

  constructor(deps: ReadinessDeps) {
    this.#deps = deps
  }

  async check(): Promise<Readiness> {
    const { failure } = await this.#write(PROBE_EVERY_MS)
    const checks = [checkOf('decision', this.#decide()), checkOf('journal', failure)]
    return { ready: checks.every(({ ok }) => ok), checks }
  }

  /**
   * Whether requests are processed at all; for a supervisor, which restarts the agent if not. Refusals with a code (not
   * enrolled, no rules, disk full) count as working, because a restart would not change them.
   */
  async works(): Promise<boolean> {
    this.#decide()
    const last = await this.#written
    const { answered } = await this.#write(last.failure === null ? WATCH_WRITES_EVERY_MS : PROBE_EVERY_MS)
    return answered
  }

  #decide(): CodedError | null {
    const { link, clock, ledger } = this.#deps
    const reading = clock.reading()
    const { deviceId, policies } = link.status()
    if (deviceId === null) return new CodedError('NOT_ENROLLED', 'this device is not enrolled yet')
    let failure = new CodedError('POLICY_MISSING', 'this device serves no instance')
    for (const { instanceId } of policies) {
      try {
        const { document, compiled } = requireRules(this.#deps, instanceId.toLowerCase(), reading)
        const [item] = document.rateTables.flatMap(({ items }) => items)
        const requested = { name: item?.name ?? 'any', version: item?.version ?? '', count: decimal('1') }
        const request = { requester: { type: 'tallygate', value: 'readiness', dictionary: {} }, items: [requested] }
        decide(compiled.at(reading), request, ledger.chargeable(reading), 'BEST_EFFORT')
        return null
      } catch (error) {
        if (!(error instanceof CodedError)) throw error
        failure = error
      }
    }
    return failure
  }

  #write(everyMs: number): Promise<Written> {
    const now = this.#deps.clock.sinceBoot()
    if (now - this.#wroteAt >= everyMs) {
      this.#wroteAt = now
      this.#written = this.#probe()
    }
    return this.#written
  }

  async #probe(): Promise<Written> {
    const { journal, ledger, timers } = this.#deps
    const late = Promise.withResolvers<Written>()
    const cancel = timers.after(PROBE_TIMEOUT_MS, () => {
      const failure = new CodedError('NOT_RECORDED', `the journal has not written for ${PROBE_TIMEOUT_MS} ms`)
      late.resolve({ failure, answered: false })
    })
    const writing = journal.saveClock(ledger.stamp()).then(
      () => ({ failure: null, answered: true }),
      (error: unknown) => {
        const cause = error instanceof JournalLost ? error.cause : error
        return cause instanceof CodedError
          ? { failure: cause, answered: true }
          : { failure: new CodedError('NOT_RECORDED', 'the journal is closed'), answered: false }
      },
    )
    try {
      return await Promise.race([writing, late.promise])
    } finally {
      cancel()
    }
  }
}

function checkOf(name: Readiness['checks'][number]['name'], failure: CodedError | null): Readiness['checks'][number] {
  if (failure === null) return { name, ok: true }
  return { name, ok: false, code: failure.code, message: failure.message }
}
