import type { Totals } from '../records.ts'
import { type Sql, countOf } from './sql.ts'

/** A total of this size means "this many or more": it bounds the cost. */
const ROWS_COUNTED_MAX = 100_000

export function totalsOf({ db }: Sql) {
  return async (): Promise<Totals> => {
    const sessions = await db
      .selectFrom(db.selectFrom('sessions').select('state').limit(ROWS_COUNTED_MAX).as('some'))
      .select(({ fn }) => ['state', fn.countAll<bigint>().as('number')])
      .groupBy('state')
      .execute()
    const outbox = db.selectFrom('outbox').select('id').limit(ROWS_COUNTED_MAX)
    // Line items only: actions and limits count the same tokens again. The id range uses the primary key index.
    const accounts = await db
      .selectFrom('accounts')
      .select('granted_out')
      .where('id', '>=', 'line/')
      .where('id', '<', 'line0')
      .where('granted_out', '>', 0n)
      .limit(ROWS_COUNTED_MAX)
      .execute()
    return {
      sessions: new Map(sessions.map(({ state, number }) => [state, Number(number)])),
      outbox: await countOf(db.selectFrom(outbox.as('some'))),
      grantedOut: accounts.reduce((sum, account) => sum + account.granted_out, 0n),
    }
  }
}
