import type { Sql } from './sql.ts'

export function signingKeyReader({ db }: Sql) {
  return {
    /** Thumbprint of the key that signs for all nodes; undefined: no node has started yet. */
    async get(): Promise<string | undefined> {
      const row = await db.selectFrom('signing_key').select('thumbprint').executeTakeFirst()
      return row?.thumbprint
    },
  }
}

export function signingKeyTransaction(sql: Sql) {
  const { db } = sql
  return {
    ...signingKeyReader(sql),
    /** Replaces the registered key. Under the keys' lock. */
    async register(thumbprint: string, now: number): Promise<void> {
      const columns = { thumbprint, since: BigInt(now) }
      await db
        .insertInto('signing_key')
        .values({ slot: 1n, ...columns })
        .onConflict((conflict) => conflict.column('slot').doUpdateSet(columns))
        .execute()
    },
  }
}
