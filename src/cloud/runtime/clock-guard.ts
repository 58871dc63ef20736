/**
 * Pauses irreversible work while this node's wall clock is in doubt: a wrong clock could settle the whole fleet at
 * once. Doubts and remedies: docs/how-to/operate-the-cloud.md.
 */
import { CodedError } from '../../protocol/errors.ts'
import { recordChange } from '../storage/audit.ts'
import type { Actor } from '../storage/audit-records.ts'
import type { ClockGap, ClockRecord } from '../storage/records.ts'
import type { Store } from '../storage/store.ts'
import type { Log } from '../../protocol/log.ts'

export interface Clocks {
  readonly now: () => number
  readonly sinceBoot: () => number
  readonly bootId: string
  /** Whether to compare with the database's clock. False for a simulated wall clock. */
  readonly comparesDatabase: boolean
}

const CLOCK_DOUBTS = [
  'CLOCK_JUMPED',
  'CLOCK_BEHIND_RECORD',
  'CLOCK_AHEAD_OF_RECORD',
  'CLOCK_DIFFERS_FROM_DATABASE',
] as const

export const PAUSED_BY = [...CLOCK_DOUBTS, 'SETTLEMENT_TOO_LARGE'] as const
export type PausedBy = (typeof PAUSED_BY)[number]

export interface ClockDoubt {
  readonly code: (typeof CLOCK_DOUBTS)[number]
  readonly aheadMs: number
}

const CLOCK_STEP_MAX_MS = 5 * 60_000

const CLOCK_GAP_MAX_MS = 7 * 24 * 60 * 60_000

export const CLOCK_LOOK_EVERY_MS = 60_000

const RECORD_FRESH_MS = 3 * CLOCK_LOOK_EVERY_MS

export interface ClockGuardOptions {
  readonly store: Pick<Store, 'transaction'>
  readonly clocks: Clocks
  readonly log: Pick<Log, 'info' | 'warn'>
  /** When an inactive device is settled, ms; a gap in the record must be far shorter. */
  readonly settleAfterMs: () => number
}

export class ClockGuard {
  readonly #options: ClockGuardOptions
  #trusted: ClockRecord | null = null
  /** The record of an earlier process, used until this one trusts its clock. */
  #before: ClockRecord | null = null
  #doubt: ClockDoubt | 'NOT_LOOKED' | null = 'NOT_LOOKED'
  #unrecorded: CodedError | null = null

  constructor(options: ClockGuardOptions) {
    this.#options = options
  }

  readonly isTrusted = (): boolean =>
    this.#doubt === null && this.#trusted !== null && jump(this.#trusted, this.#read()) === null

  get doubt(): ClockDoubt | null {
    if (this.#doubt === 'NOT_LOOKED') return null
    if (this.#doubt !== null || this.#trusted === null) return this.#doubt
    return jump(this.#trusted, this.#read())
  }

  /**
   * For measuring inactivity. In doubt, the last trusted time plus the time since boot: a device that
   * reports meanwhile must not look inactive later.
   */
  readonly present = (): number => {
    const { at, sinceBoot } = this.#read()
    const base = this.#trusted ?? this.#before
    return this.isTrusted() || base === null ? at : base.at + sinceBoot - base.sinceBoot
  }

  async look(): Promise<void> {
    try {
      await this.#compare()
    } catch (error) {
      // Also of a commit that it shares with others.
      if (error instanceof CodedError && error.code === 'NOT_RECORDED') this.#unrecorded = error
      throw error
    }
  }

  async #compare(): Promise<void> {
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
    if (doubt !== null) return
    const gap = this.#trusted === null ? gapBetween(record, after) : null
    await store.transaction(async ({ sweeps }) => {
      await sweeps.noteClock(after)
      if (gap !== null) await sweeps.noteClockGap(gap)
    })
    if (!this.isRecorded) this.#options.log.warn({}, 'the database can be written again')
    this.#unrecorded = null
    this.#trusted = after
  }

  get isRecorded(): boolean {
    return this.#unrecorded === null
  }

  /** @throws CodedError NOT_RECORDED if the last reading could not be written, such as to a full disk */
  requireRecorded(): void {
    if (this.#unrecorded !== null) throw this.#unrecorded
  }

  /**
   * The start of each inactivity moves with the clock, and by the time that the cloud was off. No response of an idempotency
   * key gets older by that.
   */
  async confirm(by: Actor): Promise<void> {
    const reading = this.#read()
    const { doubt } = this
    const offMs = doubt?.code === 'CLOCK_AHEAD_OF_RECORD' ? doubt.aheadMs : 0
    const jumpedMs = Math.max(0, offMs, reading.at - this.present())
    await this.#options.store.transaction(async (tx) => {
      await tx.sweeps.noteClock(reading)
      await tx.edge.epochs.moveInactivity(Math.round(jumpedMs), reading.at)
      await tx.sweeps.noteClockGap({ since: Math.floor(reading.at - jumpedMs), until: reading.at })
      await recordChange(tx, reading.at, { action: 'CONFIRM_CLOCK', by })
    })
    this.#tell(null)
    this.#trusted = reading
    this.#doubt = null
  }

  #read(): ClockRecord {
    const { now, sinceBoot, bootId } = this.#options.clocks
    return { at: now(), sinceBoot: sinceBoot(), bootId }
  }

  #tell(doubt: ClockDoubt | null): void {
    const { log } = this.#options
    const known = this.#doubt === 'NOT_LOOKED' ? null : this.#doubt
    if (doubt?.code === known?.code) return
    if (doubt === null) log.warn({}, 'the clock is trusted again: sweeps continue')
    else log.warn({ ...doubt }, 'the clock is in doubt: sweeps are paused')
  }
}

/** @param trusted this process's last trusted reading; null: it has just started */
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

/** The last instant by the record; null: the wall clock is ahead of it by as much as the machine may have been off. */
function lastBefore(record: ClockRecord | undefined, reading: ClockRecord): ClockRecord | null {
  if (record === undefined) return null
  if (record.bootId === reading.bootId && record.sinceBoot <= reading.sinceBoot) return record
  return reading.at < record.at ? { ...record, bootId: reading.bootId, sinceBoot: 0 } : null
}

/** The machine was off, or its clock is ahead by less than would be in doubt. */
function gapBetween(record: ClockRecord | undefined, { at, bootId }: ClockRecord): ClockGap | null {
  if (record === undefined || record.bootId === bootId || at - record.at <= CLOCK_STEP_MAX_MS) return null
  return { since: record.at, until: at }
}

function jump(before: ClockRecord, reading: ClockRecord): ClockDoubt | null {
  const aheadMs = reading.at - before.at - (reading.sinceBoot - before.sinceBoot)
  return Math.abs(aheadMs) > CLOCK_STEP_MAX_MS ? { code: 'CLOCK_JUMPED', aheadMs } : null
}

function differs(database: number, before: number, after: number): ClockDoubt | null {
  const aheadMs = database < before ? before - database : database > after ? after - database : 0
  return Math.abs(aheadMs) > CLOCK_STEP_MAX_MS ? { code: 'CLOCK_DIFFERS_FROM_DATABASE', aheadMs } : null
}
