/** Accounts in SQL. The table itself refuses a row that breaks the invariant of a pool. */
import { type AccountId, parseAccount } from '../../../core/account.ts'
import { newPool } from '../../app/pool.ts'
import type { Pool } from '../../app/records.ts'
import type { AccountReader, Transaction } from '../../app/store.ts'
import { type Sql, chunks } from './sql.ts'
import type { Row } from './tables.ts'

export function accountReader(sql: Sql): AccountReader {
  return {
    get: (accounts) => select(sql, accounts, false),
    async ofLineItem(instanceId, lineItemId) {
      const rows = await sql.db
        .selectFrom('accounts')
        .selectAll()
        .where('instance_id', '=', instanceId)
        .where('line_item_id', '=', lineItemId)
        .orderBy('id')
        .execute()
      return rows.map(poolOf)
    },
  }
}

export function accountTransaction(sql: Sql): Transaction['accounts'] {
  const { db, lockRows } = sql
  const lock = (accounts: readonly AccountId[]): Promise<Map<AccountId, Pool>> => select(sql, accounts, lockRows)
  return {
    ...accountReader(sql),
    lock,
    async open(wanted) {
      const accounts = wanted.map(({ account }) => account)
      const pools = await lock(accounts)
      const missing = new Map(wanted.filter(({ account }) => !pools.has(account)).map((each) => [each.account, each]))
      if (missing.size === 0) return pools
      // An insert waits for another one of the same id, so the order matters here too.
      const rows = [...missing.keys()]
        .sort()
        .map((account) => rowOf(newPool(account, missing.get(account)?.cap ?? null)))
      for (const some of chunks(rows, 50)) {
        await db
          .insertInto('accounts')
          .values(some)
          .onConflict((conflict) => conflict.column('id').doNothing())
          .execute()
      }
      return lock(accounts)
    },
    async save(pools) {
      for (const some of chunks(pools.map(rowOf), 50)) {
        await db
          .insertInto('accounts')
          .values(some)
          .onConflict((conflict) =>
            conflict.column('id').doUpdateSet((excluded) => ({
              charged: excluded.ref('excluded.charged'),
              granted_out: excluded.ref('excluded.granted_out'),
              billed_by_devices: excluded.ref('excluded.billed_by_devices'),
              cap_target: excluded.ref('excluded.cap_target'),
              cap_in_force: excluded.ref('excluded.cap_in_force'),
            })),
          )
          .execute()
      }
    },
  }
}

/** Sorted, so that transactions which lock the same accounts never wait for each other in a circle. */
async function select({ db }: Sql, accounts: readonly AccountId[], forUpdate: boolean): Promise<Map<AccountId, Pool>> {
  const pools = new Map<AccountId, Pool>()
  for (const some of chunks([...new Set(accounts)].sort())) {
    const query = db.selectFrom('accounts').selectAll().where('id', 'in', some).orderBy('id')
    const rows = await (forUpdate ? query.forUpdate() : query).execute()
    for (const row of rows) pools.set(row.id, poolOf(row))
  }
  return pools
}

function rowOf(pool: Pool): Row<'accounts'> {
  const parsed = parseAccount(pool.account)
  if (parsed === undefined) throw new Error('invariant: an account id is one that core made')
  return {
    id: pool.account,
    instance_id: parsed.instanceId,
    line_item_id: parsed.lineItemId,
    charged: pool.charged,
    granted_out: pool.grantedOut,
    billed_by_devices: pool.billedByDevices,
    cap_target: pool.capTarget,
    cap_in_force: pool.capInForce,
  }
}

export function poolOf(row: Row<'accounts'>): Pool {
  return {
    account: row.id,
    charged: row.charged,
    grantedOut: row.granted_out,
    billedByDevices: row.billed_by_devices,
    capTarget: row.cap_target,
    capInForce: row.cap_in_force,
  }
}
