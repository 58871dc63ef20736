import type { EdgeReader, EdgeTransaction } from '../device-store.ts'
import type { Sql } from './sql.ts'

export function signingKeyReader({ db }: Sql): EdgeReader['signingKey'] {
  return {
    async get() {
      const row = await db.selectFrom('signing_key').select('thumbprint').executeTakeFirst()
      return row?.thumbprint
    },
  }
}

export function signingKeyTransaction(sql: Sql): EdgeTransaction['signingKey'] {
  const { db } = sql
  return {
    ...signingKeyReader(sql),
    async register(thumbprint, now) {
      const columns = { thumbprint, since: BigInt(now) }
      await db
        .insertInto('signing_key')
        .values({ slot: 1n, ...columns })
        .onConflict((conflict) => conflict.column('slot').doUpdateSet(columns))
        .execute()
    },
  }
}
