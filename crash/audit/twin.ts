/**
 * Audits a cloud's SQLite database against its only device's ledger: pools not oversold, correct sums, each entry
 * billed once, no false evidence. The cloud may be running.
 */
import Database from 'better-sqlite3'
import { entriesOf } from '../../src/cloud/storage/sql/packed-delivery.ts'
import { type UsageRow, isDelivery, recordsOf } from '../../src/cloud/storage/sql/packed-usage.ts'
import type { Micro } from '../../src/core/pricing/amount.ts'
import { hold, type Ledger, Sums } from './ledger.ts'

interface EpochRow {
  readonly number: bigint
  readonly status: string
  readonly forked: bigint
  readonly rejected: bigint
  readonly last_seq: bigint
  readonly last_entry: bigint
  readonly entry_head: string
}

interface AccountRow {
  readonly id: string
  /** The site has only line item accounts. */
  readonly line_item_id: string
  readonly charged: bigint
  readonly granted_out: bigint
  readonly billed_by_devices: bigint
  readonly cap_in_force: bigint | null
  readonly held: bigint
  readonly billed: bigint
}

export interface TwinReading {
  readonly entries: number
  readonly seq: number
}

export class TwinAudit {
  readonly direct = new Set<string>()
  readonly #ledger: Ledger
  readonly #merged = new Sums()
  #compared = 0
  #lastUsage = 0n
  readonly #charged = new Map<string, Micro>()
  readonly #billed = new Map<string, Micro>()

  /** @param ledger of the device; must contain all merged entries when {@link TwinAudit.read} is called */
  constructor(ledger: Ledger) {
    this.#ledger = ledger
  }

  /** @throws AuditError */
  read(file: string): TwinReading {
    const database = new Database(file, { fileMustExist: true })
    try {
      database.defaultSafeIntegers(true)
      database.pragma('query_only = ON')
      // One snapshot, whatever the cloud commits meanwhile.
      return database.transaction(() => this.#read(database)).deferred()
    } finally {
      database.close()
    }
  }

  #read(database: Database.Database): TwinReading {
    const rows = database.prepare('SELECT * FROM epochs').all() as EpochRow[]
    hold(rows.length <= 1, `the device has ${rows.length} epochs`)
    const pieces = database.prepare('SELECT count(*) FROM evidence').pluck().get()
    hold(pieces === 0n, `there are ${String(pieces)} pieces of evidence against an honest device`)
    const [row] = rows
    if (row === undefined) return { entries: 0, seq: 0 }
    hold(row.status === 'ACTIVE' && row.forked === 0n && row.rejected === 0n, `the epoch is ${row.status}`)
    const entries = Number(row.last_entry)
    hold(entries <= this.#ledger.size, `${entries} entries are merged, the device has ${this.#ledger.size}`)
    hold(entries === 0 || row.entry_head === this.#ledger.at(entries).hash, 'the twin has another chain of entries')
    this.#compareRecords(database, entries)
    this.#checkPools(database)
    return { entries, seq: Number(row.last_seq) }
  }

  #compareRecords(database: Database.Database, entries: number): void {
    const rows = database.prepare('SELECT * FROM usage WHERE seq > ? ORDER BY seq').all(this.#lastUsage) as UsageRow[]
    this.#lastUsage = rows.at(-1)?.seq ?? this.#lastUsage
    const deliveries = rows.filter(isDelivery)
    const stored = deliveries.flatMap((delivery) => {
      hold(delivery.branch === 0n, `the twin holds entries ${delivery.first_entry} and later of another writer`)
      return entriesOf(delivery)
    })
    hold(stored.length === entries - this.#compared, `${stored.length} new entries, not ${entries - this.#compared}`)
    for (const { n, hash } of stored) hold(hash === this.#ledger.at(n).hash, `the twin holds another entry ${n}`)
    for (const { correlationId: id, activationId, tokens, source } of rows
      .filter((row) => !isDelivery(row))
      .flatMap(recordsOf)) {
      hold(source.kind === 'one-off', `the usage ${id} is of no delivery`)
      this.#charged.set(activationId ?? '', (this.#charged.get(activationId ?? '') ?? 0n) + tokens)
      this.direct.add(id)
    }
    for (const { correlationId: id, tokens, source } of deliveries.flatMap(recordsOf)) {
      hold(source.kind === 'device', `the usage ${id} is of no device`)
      hold(this.#ledger.find(id)?.n === source.entry, `the usage ${id} is of no entry`)
      hold(source.entry > this.#compared, `entry ${source.entry} is billed again`)
      this.#billed.set(id, (this.#billed.get(id) ?? 0n) + tokens)
    }
    for (let n = this.#compared + 1; n <= entries; n += 1) {
      const entry = this.#ledger.at(n)
      const billed = this.#billed.get(entry.correlationId)
      hold(billed === entry.charged, `entry ${n} charged ${entry.charged}, billed is ${billed ?? 'nothing'}`)
      this.#merged.add(entry)
    }
    hold(this.#billed.size === entries, `${this.#billed.size} entries are billed, ${entries} merged`)
    this.#compared = entries
  }

  #checkPools(database: Database.Database): void {
    const rows = database
      .prepare(
        `SELECT a.*, coalesce(sum(d.granted - d.returned), 0) AS held,
           coalesce(sum(d.used - d.refunded + d.branch_used), 0) AS billed
         FROM accounts a LEFT JOIN device_accounts d ON d.account = a.id GROUP BY a.id`,
      )
      .all() as AccountRow[]
    for (const row of rows) {
      const { id, charged, granted_out: out, billed_by_devices: billed, cap_in_force: cap } = row
      hold(cap === null || charged + out <= cap, `${id} is oversold: ${charged} + ${out} of ${cap ?? ''}`)
      hold(charged === (this.#charged.get(row.line_item_id) ?? 0n), `${id}: charged is ${charged}, not the sum`)
      hold(out === row.held, `${id}: ${out} is out, the devices hold ${row.held}`)
      hold(billed === row.billed, `${id}: ${billed} is billed, the devices say ${row.billed}`)
      hold(billed === this.#merged.of(id), `${id}: billed is ${billed}, the entries say ${this.#merged.of(id)}`)
    }
  }
}
