/** Every entry is billed once, the cloud's charges and presumptions have usage records, and the sums match. */
import type Sqlite from 'better-sqlite3'
import { Books } from './books.ts'
import type { SharedState } from './shared-state.ts'
import { query } from './query.ts'
import {
  ACCOUNTS,
  type AccountRow,
  type DeviceAccountRow,
  type UsageRow,
  lineOf,
  lineText,
  nameOf,
  outOf,
} from './records.ts'
import { CloudChargeAudit } from './cloud-charges.ts'
import { ExportAudit } from './exports.ts'
import { RunningTotals } from './running-totals.ts'
import { cloudUsageAfter, lastPosition, usageAfter } from './usage.ts'
import { Violation } from './violation.ts'

export class BillAudit {
  readonly #shared: SharedState

  readonly cloud: CloudChargeAudit
  readonly exports: ExportAudit
  readonly #totals: RunningTotals
  /** All, by position. */
  #records: UsageRow[] = []

  constructor(shared: SharedState) {
    this.#shared = shared
    this.cloud = new CloudChargeAudit(shared)
    this.#totals = new RunningTotals(shared)
    this.exports = new ExportAudit(shared)
  }

  #usageSeen = 0n

  readonly #direct = new Map<string, { readonly tokens: bigint; billed: bigint }>()

  readonly #billedByLine = new Books()

  readonly #early = new Books()

  /** Billed without evidence, by device, epoch and line item. */
  readonly #presumptions = new Books()

  /** First responses, by idempotency key. */
  readonly #answers = new Map<string, string>()

  /** The cloud has responded to a request. @param tokens that the response says were charged, micro-tokens */
  answered(
    correlationId: string,
    tokens: bigint,
    { key, text }: { readonly key: string | null; readonly text: string },
  ): void {
    if (key !== null) {
      this.#shared.look('I4')
      const first = this.#answers.get(key) ?? text
      this.#answers.set(key, first)
      if (first !== text)
        throw new Violation('I4', `the twin responds to ${key} with ${text}, and before with ${first}`)
    }
    if (this.#direct.has(correlationId)) return
    this.#direct.set(correlationId, { tokens, billed: this.#early.get(correlationId) })
  }

  /** After a restore: the cloud's own charges that the backup lacks are gone. */
  readAgain(database: Sqlite.Database): void {
    this.#billedByLine.clear()
    this.#presumptions.clear()
    this.#usageSeen = 0n
    this.#records = []
    this.exports.forget()
    for (const direct of this.#direct.values()) direct.billed = 0n
    this.#early.clear()
    this.#answers.clear()
    this.#readRows(database)
    this.#totals.readAgain(database)
    this.cloud.readAgain(database)
    for (const [id, { tokens, billed }] of this.#direct) if (tokens !== billed) this.#direct.delete(id)
  }

  readUsage(database: Sqlite.Database): void {
    this.cloud.read(cloudUsageAfter(database, this.#usageSeen))
    this.cloud.sessions.read(database)
    this.#totals.read(this.#readRows(database), database, (row) => this.#accountOf(row))
  }

  checkExports(): void {
    this.exports.check(this.#records)
  }

  #readRows(database: Sqlite.Database): readonly UsageRow[] {
    const rows = usageAfter(database, this.#usageSeen, this.#shared.archives)
    for (const row of rows) {
      const { seq, correlation_id: id, activation_id: line, tokens, source } = row
      if (seq > this.#usageSeen) this.#usageSeen = seq
      this.#records.push(row)
      if (line !== null) this.#billedByLine.add(`${source === 'device' ? 'device' : 'twin'} ${line}`, tokens)
      if (source !== 'device') {
        const direct = this.#direct.get(id)
        if (direct !== undefined) direct.billed += tokens
        else if (row.operation === 'REQUEST') this.#early.add(id, tokens)
        continue
      }
      if (row.operation === 'SETTLEMENT') {
        // The others stand for entries lost on both sides: a closed epoch must be exact with them.
        if (row.status === 'PRESUMED') this.#presumptions.add(`${row.device_id} ${row.epoch} ${line}`, tokens)
        continue
      }
      this.#shared.look('I4')
      const entry = this.#shared.entries.get(id)
      if (entry === undefined) throw new Violation('I3', `${tokens} are billed for ${id}, which no device has recorded`)
      const billed = lineText(row)
      const at = entry.unbilled.indexOf(billed)
      if (at < 0) {
        const name = `entry ${entry.n} of ${entry.machine} (epoch ${entry.epoch}, ${entry.tokens})`
        throw new Violation(
          'I4',
          `${name} is billed with ${billed}, again or wrongly: its lines are ${entry.lines.join(', ')}`,
        )
      }
      entry.unbilled.splice(at, 1)
    }
    return rows
  }

  /** The account of a line item that a record charges; undefined: it does not say. */
  #accountOf({ operation, source, activation_id: line, correlation_id: id }: UsageRow): string | undefined {
    if (operation === 'SETTLEMENT') return undefined
    const accounts =
      source === 'device'
        ? this.#shared.entries.get(id)?.postings.map(({ account }) => account)
        : this.cloud.accountsOf(id)
    return accounts?.find((account) => account.startsWith('line/') && lineOf(account) === line)
  }

  /** Presumptions have usage records; an epoch settled as used is billed at least its usage. */
  checkPresumed(database: Sqlite.Database, held: readonly DeviceAccountRow[]): void {
    const settled = new Set(
      (
        query(
          database,
          "SELECT device_id || ' ' || number FROM epochs WHERE settlement = 'CHARGED' AND settled_at IS NOT NULL",
        )
          .pluck()
          .all() as string[]
      ).filter((name) => !this.#shared.suspects.has(name.split(' ')[0] ?? '')),
    )
    const presumed = new Books()
    for (const row of held) {
      const owner = `${row.device_id} ${row.epoch}`
      if (row.account.startsWith('line/')) presumed.add(`${owner} ${lineOf(row.account)}`, row.presumed)
      if (!settled.has(owner) || row.unlimited === 1n || this.#shared.everUnlimited.has(row.account)) continue
      this.#shared.look('I3')
      const counts = row.used - row.refunded + row.branch_used + row.presumed
      const spent = this.#shared.spent.get(nameOf(row))
      const forgotten = outOf(this.#shared.inTruth(row)) - outOf(row)
      const excused = this.#shared.exposure.get(nameOf(row)) + (forgotten > 0n ? forgotten : 0n)
      if (counts >= spent - this.#shared.overspendCap(lineOf(row.account)) - excused) continue
      throw new Violation(
        'I3',
        `${counts} of ${nameOf(row)} count as used after its settlement, but ${spent} were spent`,
      )
    }
    for (const [name, billed] of this.#presumptions.entries()) {
      this.#shared.look('I3')
      const sum = presumed.get(name)
      if (billed !== sum) throw new Violation('I3', `${sum} of ${name} are presumed, but ${billed} billed as such`)
    }
  }

  #compareTotals(database: Sqlite.Database): void {
    const rows = query(database, `SELECT * FROM ${ACCOUNTS} WHERE id LIKE 'line/%'`).all() as AccountRow[]
    const [byTwin, byDevices] = [new Books(), new Books()]
    for (const { id, charged, imported, billed_by_devices } of rows) {
      const line = decodeURIComponent(id.split('/')[2] ?? '')
      // The source of an import bills what it has used.
      byTwin.add(line, charged - imported)
      byDevices.add(line, billed_by_devices)
    }
    for (const [side, totals] of [
      ['twin', byTwin],
      ['device', byDevices],
    ] as const) {
      for (const [line, total] of totals.entries()) {
        this.#shared.look('I3')
        const billed = this.#billedByLine.get(`${side} ${line}`)
        if (billed !== total)
          throw new Violation('I3', `the bill of ${line} has ${billed} by the ${side}, the pool ${total}`)
      }
    }
  }

  #compareClosed(database: Sqlite.Database): void {
    const rows = query(
      database,
      `SELECT device_accounts.* FROM device_accounts JOIN epochs
         ON epochs.device_id = device_accounts.device_id AND number = epoch WHERE status = 'CLOSED'`,
    ).all() as DeviceAccountRow[]
    for (const row of rows) {
      if (this.#shared.suspects.has(row.device_id)) continue
      this.#shared.look('I3')
      const [counts, spent] = [row.used - row.refunded + row.branch_used, this.#shared.spent.get(nameOf(row))]
      if (counts === spent) continue
      throw new Violation('I3', `${counts} of ${nameOf(row)} count as used, which is closed, but ${spent} were spent`)
    }
  }

  checkAtRest(database: Sqlite.Database): void {
    for (const entry of this.#shared.entries.values()) {
      this.#shared.look('I3')
      // A second writer's refunds are not paid: they may have been paid already.
      if (this.#shared.suspects.has(entry.deviceId) && entry.tokens <= 0n) continue
      // Nor those after a gap: a damaged ledger cannot deliver again what a restored cloud lacks.
      if (this.#shared.wasRestored && this.#shared.damaged.has(entry.deviceId) && entry.tokens <= 0n) continue
      if (entry.mayBeLost || entry.unbilled.length === 0) continue
      // A full disk does not keep delivered entries.
      if (entry.isForgotten && this.#shared.wereFull.has(entry.machine)) continue
      const told = entry.acknowledged ? 'acknowledged' : 'recorded'
      throw new Violation(
        'I3',
        `entry ${entry.n} of ${entry.machine} (epoch ${entry.epoch}) is ${told} with ${entry.tokens}, ` +
          `but not billed with ${entry.unbilled.join(', ')}`,
      )
    }
    for (const [correlationId, { tokens, billed }] of this.#direct) {
      if (tokens !== billed) {
        throw new Violation('I3', `the twin has charged ${tokens} by ${correlationId}, but billed ${billed}`)
      }
    }
    this.#compareTotals(database)
    this.#compareClosed(database)
    const rows = usageAfter(database, 0n, this.#shared.archives)
    this.exports.received({
      name: 'all archives and the database',
      upTo: lastPosition(database),
      rows,
      fits: () => true,
    })
    this.checkExports()
  }
}
