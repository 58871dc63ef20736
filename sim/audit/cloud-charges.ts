/**
 * The cloud's own charges and refunds: each follows from its rules, and each account has been charged exactly what they
 * say together.
 */
import type Sqlite from 'better-sqlite3'
import type { Policy } from '../../src/core/rules/policy.ts'
import type { StoredCharge } from '../../src/core/sessions/stored-charge.ts'
import type { MetaData } from '../request-body.ts'
import { Books } from './books.ts'
import { CloudSessionAudit } from './cloud-sessions.ts'
import { query } from './query.ts'
import { ACCOUNTS, type AccountRow, type CloudUsageRow, lineOf } from './records.ts'
import { type RecordedItem, decideAgain } from './reference.ts'
import type { SharedState } from './shared-state.ts'
import { cloudUsageAfter } from './usage.ts'
import { Violation } from './violation.ts'

export class CloudChargeAudit {
  readonly #shared: SharedState
  /** By account. */
  readonly #charged = new Books()
  /** Accounts that pay a session's interval, by session. */
  readonly #paying = new Map<string, readonly string[]>()
  /** By correlation id, of the records that were last read. */
  readonly #accounts = new Map<string, readonly string[]>()
  /** Correlation ids of charges, by idempotency key. */
  readonly #once = new Map<string, string>()
  /** By correlation id, of decisions that no check has read yet. */
  readonly #rules = new Map<string, Policy>()

  readonly sessions: CloudSessionAudit

  constructor(shared: SharedState) {
    this.#shared = shared
    this.sessions = new CloudSessionAudit(shared)
  }

  /** A transaction, which may fail, records a decision by these rules. */
  decides(correlationId: string, rules: Policy): void {
    this.#rules.set(correlationId, rules)
  }

  /** @param rows new usage records of the cloud itself */
  read(rows: readonly CloudUsageRow[]): void {
    this.#accounts.clear()
    for (const [correlationId, decided] of Map.groupBy(rows, (row) => row.correlation_id)) {
      const [first] = decided
      if (first?.operation === 'REFUND') {
        this.sessions.refunded(first.session_id ?? '', decided)
        for (const row of decided) this.#refund(row)
      } else if (first !== undefined) this.#charge(correlationId, first, decided)
    }
    this.#rules.clear()
  }

  #charge(correlationId: string, first: CloudUsageRow, rows: readonly CloudUsageRow[]): void {
    this.#chargeOnce(correlationId, rows)
    this.#shared.look('DECISION')
    const { requester_type: type, requester_value: value, session_id: session } = first
    const now = Number(first.usage_time)
    const rules = this.#rules.get(correlationId)
    const recorded = {
      name: `the charge ${correlationId} of the twin`,
      requester: { type, value },
      clock: { now, earliest: now, latest: now },
      mode: session === null ? ('BEST_EFFORT' as const) : ('ALL_OR_NOTHING' as const),
      items: itemsOf(rows),
    }
    const postings = decideAgain(recorded, rules === undefined ? [] : [rules])
    for (const { account, amount } of postings) this.#charged.add(account, amount)
    const accounts = postings.map(({ account }) => account)
    this.#accounts.set(correlationId, accounts)
    const isGranted = rows.every(({ status }) => status === 'GRANTED')
    if (session === null || !isGranted) return
    this.#paying.set(session, accounts)
    this.sessions.charged(session, rows)
  }

  #chargeOnce(correlationId: string, [first]: readonly CloudUsageRow[]): void {
    const { key } = JSON.parse(first?.meta_data ?? '{}') as Partial<MetaData>
    if (key === undefined) return
    this.#shared.look('I4')
    const before = this.#once.get(key)
    this.#once.set(key, correlationId)
    if (before === undefined) return
    throw new Violation('I4', `the twin decides ${key} twice: ${before}, ${correlationId}`)
  }

  #refund({ correlation_id: id, session_id: session, activation_id: line, tokens }: CloudUsageRow): void {
    const accounts = this.#paying.get(session ?? '') ?? []
    this.#accounts.set(id, accounts)
    for (const account of accounts) if (lineOf(account) === line) this.#charged.add(account, tokens)
  }

  /** That a charge or refund moves, of those that were last read. */
  accountsOf(correlationId: string): readonly string[] | undefined {
    return this.#accounts.get(correlationId)
  }

  check(accounts: readonly AccountRow[]): void {
    this.#shared.look('I3')
    for (const { id, charged, imported } of accounts) {
      const expected = this.#charged.get(id)
      if (charged - imported === expected) continue
      const own = imported === 0n ? '' : `, ${imported} imported ones aside`
      throw new Violation('I3', `the twin has charged ${charged} of ${id}, but its usage records say ${expected}${own}`)
    }
  }

  /** An import was applied. @param used at the source, micro-tokens */
  imported(database: Sqlite.Database, lineItemId: string, used: bigint): void {
    this.#shared.look('I3')
    const accounts = query(database, `SELECT * FROM ${ACCOUNTS} WHERE id LIKE 'line/%'`).all() as AccountRow[]
    if (accounts.some(({ id, imported }) => lineOf(id) === lineItemId && imported === used)) return
    throw new Violation('I3', `${used} of ${lineItemId} are used at the source of an import, and not imported`)
  }

  /** The database was replaced by a backup. */
  readAgain(database: Sqlite.Database): void {
    this.#charged.clear()
    this.#paying.clear()
    this.#rules.clear()
    this.#once.clear()
    this.sessions.forget()
    for (const { meta_data: text, correlation_id: id } of cloudUsageAfter(database, 0n)) {
      const { key } = JSON.parse(text ?? '{}') as Partial<MetaData>
      if (key !== undefined) this.#once.set(key, id)
    }
    const accounts = query(database, `SELECT * FROM ${ACCOUNTS}`).all() as AccountRow[]
    for (const { id, charged, imported } of accounts) this.#charged.add(id, charged - imported)
    const sql = 'SELECT id, charge FROM sessions WHERE charge IS NOT NULL AND kept_by IS NULL'
    const sessions = query(database, sql).all() as { readonly id: string; readonly charge: string }[]
    for (const { id, charge } of sessions) {
      const { items } = JSON.parse(charge) as StoredCharge
      this.#paying.set(id, [...new Set(items.flatMap(({ parts }) => parts.flatMap((part) => part.accounts)))])
    }
  }
}

/** One record for each share of an item, or for its refusal. */
function itemsOf(rows: readonly CloudUsageRow[]): readonly RecordedItem[] {
  const items = Map.groupBy(rows, ({ meta_data: text }) => text)
  return [...items].map(([text, parts]): RecordedItem => {
    const [first] = parts
    if (first === undefined || text === null) throw new Error('each requested item has meta data')
    const { item, version, count, status: outcome } = first
    return {
      ...{ item, version, count, outcome },
      metaData: JSON.parse(text) as MetaData,
      parts: parts.flatMap(({ activation_id: lineItemId, rate, tokens: charged }) =>
        lineItemId === null ? [] : [{ lineItemId, rate: rate ?? '', charged }],
      ),
    }
  })
}
