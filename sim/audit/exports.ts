/** What administrators get from exports, reports and archives of usage: each record of the books once, and no other. */
import type Sqlite from 'better-sqlite3'
import type { UsageRow } from './records.ts'
import type { SharedState } from './shared-state.ts'
import { archivesAfter, rowOfLine } from './usage.ts'
import { Violation } from './violation.ts'

export interface Received {
  /** In messages. */
  readonly name: string
  /** The position up to which it is complete. */
  readonly upTo: bigint
  readonly rows: readonly UsageRow[]
  readonly fits: (row: UsageRow) => boolean
}

export class ExportAudit {
  readonly #shared: SharedState
  /** In this step. */
  #received: Received[] = []
  /** The job that sends all usage to a billing system has all up to this position. */
  cursor = 0n
  #job: readonly UsageRow[] = []

  constructor(shared: SharedState) {
    this.#shared = shared
  }

  received(received: Received): void {
    this.#received.push(received)
  }

  /** @param next where the job continues */
  jobReceived(next: bigint, lines: readonly string[]): void {
    this.#job = [...this.#job, ...lines.map(rowOfLine)]
    this.cursor = next
    this.received({ name: 'all exports of a job', upTo: next, rows: this.#job, fits: () => true })
  }

  /** The job reads archives instead of an export. */
  jobReadsArchives(database: Sqlite.Database): void {
    for (const { upTo, rows } of archivesAfter(database, this.cursor, this.#shared.archives)) {
      this.#job = [...this.#job, ...rows.filter(({ position }) => position > this.cursor)]
      this.cursor = upTo
    }
  }

  /** A restored cloud lacks the records after this position, which the job has received. */
  jobForgets(backupEnd: bigint): void {
    this.#job = this.#job.filter(({ position }) => position <= backupEnd)
    this.cursor = backupEnd
  }

  /** @param books all records, by position */
  check(books: readonly UsageRow[]): void {
    for (const { name, upTo, rows, fits } of this.#received) {
      this.#shared.look('I3')
      const expected = books.filter((row) => row.position <= upTo && fits(row)).map(textOf)
      const told = rows.map(textOf)
      const at = Array.from({ length: Math.max(expected.length, told.length) }, (_, index) => index).find(
        (index) => expected[index] !== told[index],
      )
      if (at === undefined) continue
      const message = `record ${at + 1} of ${name} is ${told[at] ?? 'missing'}, and in the books ${expected[at] ?? 'missing'}`
      throw new Violation('I3', message)
    }
    this.#received = []
  }

  /** The database was replaced by a backup. */
  forget(): void {
    this.#received = []
  }
}

function textOf(row: UsageRow): string {
  return COMPARED.map((name) => String(row[name])).join(' ')
}

const COMPARED = [
  'position',
  'usage_time',
  'correlation_id',
  'instance_id',
  'activation_id',
  'item',
  'tokens',
  'used',
  'source',
  'operation',
  'status',
  'session_id',
  'device_id',
  'epoch',
] as const satisfies readonly (keyof UsageRow)[]
