/**
 * Decides whether the wall clock of this node can be trusted. Work that cannot be undone (settlement, the end of sessions) happens
 * because time has passed; a clock that jumps by a month would do it to the whole fleet at once. So such work is paused while the
 * clock is in doubt:
 *
 * | doubt                       | the wall clock ...                                                | ends by itself                |
 * | --------------------------- | ----------------------------------------------------------------- | ----------------------------- |
 * | CLOCK_JUMPED                | and the time since boot have moved apart, also over a restart     | when the clock jumps back     |
 * | CLOCK_BEHIND_RECORD         | of a machine that was booted is before the newest record          | when it has passed the record |
 * | CLOCK_AHEAD_OF_RECORD       | of a machine that was booted is long after the newest record      | never                         |
 * | CLOCK_DIFFERS_FROM_DATABASE | and the clock of the database disagree                            | when they agree               |
 *
 * Each also ends when an administrator confirms the clock, and when another node that trusts its own clock has the same time. The
 * record is written by every node that trusts its clock, once in a round.
 */
import type { ClockRecord } from '../storage/records.ts'
import type { Store } from '../storage/store.ts'

export interface Clocks {
  /** The wall clock, POSIX ms. */
  readonly now: () => number
  /** Time since boot, suspend included, ms. */
  readonly sinceBoot: () => number
  /** Another text after each boot. */
  readonly bootId: string
  /** Whether the clock of the database tells the same time. False for a wall clock that a test moves. */
  readonly comparesDatabase: boolean
}

const CLOCK_DOUBTS = [
  'CLOCK_JUMPED',
  'CLOCK_BEHIND_RECORD',
  'CLOCK_AHEAD_OF_RECORD',
  'CLOCK_DIFFERS_FROM_DATABASE',
] as const

/** Codes of what pauses sweeps. */
export const PAUSED_BY = [...CLOCK_DOUBTS, 'SETTLEMENT_TOO_LARGE'] as const
export type PausedBy = (typeof PAUSED_BY)[number]

export interface ClockDoubt {
  readonly code: (typeof CLOCK_DOUBTS)[number]
  /** The wall clock less the time that was expected, ms. */
  readonly aheadMs: number
}

/** A step up to this size is taken as a correction of the clock, ms. */
const CLOCK_STEP_MAX_MS = 5 * 60_000

/** After a boot, a twin may have been off for so long without a doubt about the clock, ms. */
const CLOCK_GAP_MAX_MS = 7 * 24 * 60 * 60_000

/** How often {@link ClockGuard.look} is called, ms. */
export const CLOCK_LOOK_EVERY_MS = 60_000

/** A record this old tells what time it is now, ms. */
const RECORD_FRESH_MS = 3 * CLOCK_LOOK_EVERY_MS

export interface ClockLog {
  warn(fields: Record<string, unknown>, message: string): void
  info(fields: Record<string, unknown>, message: string): void
}

export interface ClockGuardOptions {
  readonly store: Pick<Store, 'transaction'>
  readonly clocks: Clocks
  readonly log: ClockLog
  /** How long a device may be silent before it is settled, ms: a gap in the record must be far below it. */
  readonly settleAfterMs: () => number
}

export class ClockGuard {
  readonly #options: ClockGuardOptions
  #trusted: ClockRecord | null = null
  /** What was found to be trusted before this process, of use until it trusts its own clock. */
  #before: ClockRecord | null = null
  /** Before the first look nothing is known. */
  #doubt: ClockDoubt | 'NOT_LOOKED' | null = 'NOT_LOOKED'

  constructor(options: ClockGuardOptions) {
    this.#options = options
  }

  /** Whether work that cannot be undone may go by the wall clock at this moment. */
  isTrusted(): boolean {
    return this.#doubt === null && this.#trusted !== null && jump(this.#trusted, this.#read()) === null
  }

  /** Null: there is none. */
  get doubt(): ClockDoubt | null {
    if (this.#doubt === 'NOT_LOOKED') return null
    if (this.#doubt !== null || this.#trusted === null) return this.#doubt
    return jump(this.#trusted, this.#read())
  }

  /**
   * The time to count silence by. A device that speaks while the wall clock is wrong must not look silent when it is right
   * again: while it is in doubt, this is the last trusted time and what has passed since boot from there.
   */
  present(): number {
    const { at, sinceBoot } = this.#read()
    const base = this.#trusted ?? this.#before
    return this.isTrusted() || base === null ? at : base.at + sinceBoot - base.sinceBoot
  }

  /** Compares all clocks, and writes the record when they agree. */
  async look(): Promise<void> {
    const { store, settleAfterMs, clocks } = this.#options
    const before = this.#read()
    const { record, database } = await store.transaction(async ({ sweeps }) => {
      return { record: await sweeps.clockRecord(), database: await sweeps.databaseTime() }
    })
    const after = this.#read()
    const gapMaxMs = Math.min(CLOCK_GAP_MAX_MS, settleAfterMs() / 2)
    const doubt =
      doubtOf(this.#trusted, record, after, gapMaxMs) ??
      (database === null || !clocks.comparesDatabase ? null : differs(database, before.at, after.at))
    this.#tell(doubt)
    this.#doubt = doubt
    this.#before = lastBefore(record, after)
    if (doubt === null) await this.#trust(after)
  }

  /**
   * An administrator says that the wall clock is right.
   *
   * @param by id of the administration key
   */
  async confirm(by: string): Promise<void> {
    const reading = this.#read()
    await this.#options.store.transaction(async ({ sweeps, edge }) => {
      await sweeps.noteClock(reading)
      await edge.audit.append({ at: reading.at, by, action: 'CONFIRM_CLOCK', deviceId: null, sessionId: null })
    })
    this.#tell(null)
    this.#trusted = reading
    this.#doubt = null
  }

  async #trust(reading: ClockRecord): Promise<void> {
    await this.#options.store.transaction(({ sweeps }) => sweeps.noteClock(reading))
    this.#trusted = reading
  }

  #read(): ClockRecord {
    const { now, sinceBoot, bootId } = this.#options.clocks
    return { at: now(), sinceBoot: sinceBoot(), bootId }
  }

  #tell(doubt: ClockDoubt | null): void {
    const { log } = this.#options
    const known = this.#doubt === 'NOT_LOOKED' ? null : this.#doubt
    if (doubt?.code === known?.code) return
    if (doubt === null) log.info({}, 'the clock is trusted again: sweeps go on')
    else log.warn({ ...doubt }, 'the clock is in doubt: sweeps are paused')
  }
}

/** @param trusted the last reading of this process that was trusted; null: it has just started */
function doubtOf(
  trusted: ClockRecord | null,
  record: ClockRecord | undefined,
  reading: ClockRecord,
  gapMaxMs: number,
): ClockDoubt | null {
  const [before] = [record, trusted]
    .filter((each) => each?.bootId === reading.bootId && each.sinceBoot <= reading.sinceBoot)
    .sort((a, b) => (b?.sinceBoot ?? 0) - (a?.sinceBoot ?? 0))
  const aheadMs = record === undefined ? 0 : reading.at - record.at
  if (before !== undefined && before !== null) {
    // Another machine that trusts its clock has the same time.
    if (record?.bootId !== reading.bootId && -CLOCK_STEP_MAX_MS <= aheadMs && aheadMs <= RECORD_FRESH_MS) return null
    return jump(before, reading)
  }
  if (aheadMs < -CLOCK_STEP_MAX_MS) return { code: 'CLOCK_BEHIND_RECORD', aheadMs }
  return aheadMs > gapMaxMs ? { code: 'CLOCK_AHEAD_OF_RECORD', aheadMs } : null
}

/**
 * What the record says of the time. One from before this boot is no later than the boot. Null: the wall clock is ahead of it,
 * for as long as the machine may have been off.
 */
function lastBefore(record: ClockRecord | undefined, reading: ClockRecord): ClockRecord | null {
  if (record === undefined) return null
  if (record.bootId === reading.bootId && record.sinceBoot <= reading.sinceBoot) return record
  return reading.at < record.at ? { ...record, bootId: reading.bootId, sinceBoot: 0 } : null
}

/** Both of one boot. */
function jump(before: ClockRecord, reading: ClockRecord): ClockDoubt | null {
  const aheadMs = reading.at - before.at - (reading.sinceBoot - before.sinceBoot)
  return Math.abs(aheadMs) > CLOCK_STEP_MAX_MS ? { code: 'CLOCK_JUMPED', aheadMs } : null
}

/** The database told its time between two readings of the wall clock. */
function differs(database: number, before: number, after: number): ClockDoubt | null {
  const aheadMs = database < before ? before - database : database > after ? after - database : 0
  return Math.abs(aheadMs) > CLOCK_STEP_MAX_MS ? { code: 'CLOCK_DIFFERS_FROM_DATABASE', aheadMs } : null
}
