import type { StoredAnswer } from '../records.ts'
import { type Sql, prepared, rowsOf } from './sql.ts'

export function idempotencyTransaction({ db }: Sql) {
  return {
    /** By scope. */
    async find(scopes: readonly string[]): Promise<ReadonlyMap<string, StoredAnswer>> {
      return new Map((await rowsOf(db, answersTo, scopes)).map((row) => [row.scope, answerOf(row)]))
    },
    /** False: there is an answer for this scope. */
    async add({ scope, requestHash, answer, created }: StoredAnswer): Promise<boolean> {
      const { rows } = await db.executeQuery(adding(db, [scope, requestHash, answer, BigInt(created)]))
      return rows.length > 0
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

const answersTo = prepared((db, count) =>
  db.selectFrom('idempotency_keys').selectAll().where('scope', 'in', Array<string>(count).fill('')),
)

const adding = prepared((db) =>
  db
    .insertInto('idempotency_keys')
    .values({ scope: '', request_hash: '', answer: '', created: 0n })
    .onConflict((conflict) => conflict.column('scope').doNothing())
    .returning('scope'),
)

function answerOf(row: { scope: string; request_hash: string; answer: string; created: bigint }): StoredAnswer {
  return { scope: row.scope, requestHash: row.request_hash, answer: row.answer, created: Number(row.created) }
}
