import type { StoredAnswer } from '../records.ts'
import { type Sql, chunks } from './sql.ts'

export function idempotencyTransaction({ db }: Sql) {
  return {
    /** Answers by scope; only those stored after the instant, POSIX ms. */
    async find(scopes: readonly string[], after: number): Promise<ReadonlyMap<string, StoredAnswer>> {
      const found = new Map<string, StoredAnswer>()
      for (const some of chunks(scopes)) {
        const rows = await db
          .selectFrom('idempotency_keys')
          .selectAll()
          .where('scope', 'in', some)
          .where('created', '>', BigInt(after))
          .execute()
        for (const row of rows) found.set(row.scope, answerOf(row))
      }
      return found
    },
    /** False: another transaction has stored an answer for this scope after the instant. */
    async add({ scope, requestHash, answer, created }: StoredAnswer, after: number): Promise<boolean> {
      const columns = { request_hash: requestHash, answer, created: BigInt(created) }
      const row = await db
        .insertInto('idempotency_keys')
        .values({ scope, ...columns })
        .onConflict((conflict) =>
          conflict.column('scope').doUpdateSet(columns).where('idempotency_keys.created', '<=', BigInt(after)),
        )
        .returning('scope')
        .executeTakeFirst()
      return row !== undefined
    },
    /** Deletes up to `max` answers stored at or before the instant. Returns their number. */
    async forget(until: number, max: number): Promise<number> {
      const old = db
        .selectFrom('idempotency_keys')
        .select('scope')
        .where('created', '<=', BigInt(until))
        .orderBy('created')
        .limit(max)
      const rows = await db.deleteFrom('idempotency_keys').where('scope', 'in', old).returning('scope').execute()
      return rows.length
    },
  }
}

function answerOf(row: { scope: string; request_hash: string; answer: string; created: bigint }): StoredAnswer {
  return { scope: row.scope, requestHash: row.request_hash, answer: row.answer, created: Number(row.created) }
}
