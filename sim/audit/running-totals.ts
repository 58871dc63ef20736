/**
 * Each usage record says how much of its line item was used after it, imported use included. Together, the records of a
 * pool give what it says.
 */
import type Sqlite from 'better-sqlite3'
import { Books } from './books.ts'
import { query } from './query.ts'
import { ACCOUNTS, type AccountRow, type UsageRow, lineOf } from './records.ts'
import type { SharedState } from './shared-state.ts'
import { Violation } from './violation.ts'

type Pool = Pick<AccountRow, 'id' | 'charged' | 'imported' | 'billed_by_devices'>

export class RunningTotals {
  readonly #shared: SharedState
  /** By account of a line item, without what was imported. */
  readonly #used = new Books()

  constructor(shared: SharedState) {
    this.#shared = shared
  }

  /**
   * @param rows new records, in the order of writing
   * @param accountOf the account that a record charges; undefined: it does not say
   */
  read(rows: readonly UsageRow[], database: Sqlite.Database, accountOf: (row: UsageRow) => string | undefined): void {
    if (rows.length === 0) return
    const pools = poolsOf(database)
    // No import is in the same step.
    const imported = new Map(pools.map((pool) => [pool.id, pool.imported]))
    for (const row of rows) {
      if (row.activation_id === null) continue
      this.#shared.look('I3')
      const account = accountOf(row) ?? this.#accountThatFits(row, pools)
      const used =
        account === undefined ? undefined : this.#used.add(account, row.tokens) + (imported.get(account) ?? 0n)
      if (used === row.used) continue
      throw new Violation('I3', `${row.correlation_id} says that ${row.used} of ${account} are used, not ${used}`)
    }
    for (const pool of pools) {
      const used = this.#used.get(pool.id)
      if (ownUse(pool) === used) continue
      throw new Violation('I3', `${ownUse(pool)} of ${pool.id} are used, but its records say ${used}`)
    }
  }

  /** A settlement names no period: one whose total it continues, and rather one that has changed since. */
  #accountThatFits({ activation_id: line, tokens, used }: UsageRow, pools: readonly Pool[]): string | undefined {
    const fitting = pools.filter(
      ({ id, imported }) => lineOf(id) === line && this.#used.get(id) + imported + tokens === used,
    )
    const changed = fitting.find((pool) => ownUse(pool) !== this.#used.get(pool.id))
    return (changed ?? fitting[0])?.id
  }

  /** The database was replaced by a backup. */
  readAgain(database: Sqlite.Database): void {
    this.#used.clear()
    for (const pool of poolsOf(database)) this.#used.add(pool.id, ownUse(pool))
  }
}

/** Without what was imported. */
function ownUse({ charged, imported, billed_by_devices: billed }: Pool): bigint {
  return charged - imported + billed
}

function poolsOf(database: Sqlite.Database): readonly Pool[] {
  const sql = `SELECT id, charged, imported, billed_by_devices FROM ${ACCOUNTS} WHERE id LIKE 'line/%'`
  return query(database, sql).all() as readonly Pool[]
}
