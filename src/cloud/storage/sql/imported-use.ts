import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import { type Sql, chunks, replacing, rowsIn } from './sql.ts'

export function importedUseReader({ db }: Sql) {
  return {
    /** Of the accounts that have imported use, which may be zero. */
    async of(accounts: readonly AccountId[]): Promise<ReadonlyMap<AccountId, Micro>> {
      const rows = await rowsIn(accounts, (some) =>
        db.selectFrom('imported_use').selectAll().where('account', 'in', some),
      )
      return new Map(rows.map(({ account, amount }) => [account, amount]))
    },
  }
}

export function importedUseTransaction(sql: Sql) {
  return {
    ...importedUseReader(sql),
    async save(amounts: ReadonlyMap<AccountId, Micro>): Promise<void> {
      const rows = [...amounts].map(([account, amount]) => ({ account, amount }))
      for (const some of chunks(rows, 100)) {
        await replacing(sql.db, 'imported_use', some, { key: ['account'] }).execute()
      }
    },
  }
}
