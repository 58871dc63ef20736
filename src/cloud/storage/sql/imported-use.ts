import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import { type Sql, chunks } from './sql.ts'

export function importedUseReader({ db }: Sql) {
  return {
    /** Of the accounts that have imported use, which may be zero. */
    async of(accounts: readonly AccountId[]): Promise<ReadonlyMap<AccountId, Micro>> {
      const amounts = new Map<AccountId, Micro>()
      for (const some of chunks(accounts)) {
        const rows = await db.selectFrom('imported_use').selectAll().where('account', 'in', some).execute()
        for (const { account, amount } of rows) amounts.set(account, amount)
      }
      return amounts
    },
  }
}

export function importedUseTransaction(sql: Sql) {
  return {
    ...importedUseReader(sql),
    async save(amounts: ReadonlyMap<AccountId, Micro>): Promise<void> {
      const rows = [...amounts].map(([account, amount]) => ({ account, amount }))
      for (const some of chunks(rows, 100)) {
        await sql.db
          .insertInto('imported_use')
          .values(some)
          .onConflict((conflict) =>
            conflict.column('account').doUpdateSet((excluded) => ({ amount: excluded.ref('excluded.amount') })),
          )
          .execute()
      }
    },
  }
}
