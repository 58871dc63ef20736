import type { StoredAnswer } from '../records.ts'
import { type Sql, chunks, filledUp, prepared } from './sql.ts'

export function idempotencyTransaction({ db }: Sql) {
  return {
    /** Answers by scope; only those stored after the instant, POSIX ms. */
    async find(scopes: readonly string[], after: number): Promise<ReadonlyMap<string, StoredAnswer>> {
      const found = new Map<string, StoredAnswer>()
      for (const some of chunks(scopes)) {
        const listed = filledUp(some)
        const { rows } = await db.executeQuery(answersTo(db, [...listed, BigInt(after)], listed.length))
        for (const row of rows) found.set(row.scope, answerOf(row))
      }
      return found
    },
    /** False: another transaction has stored an answer for this scope after the instant. */
    async add({ scope, requestHash, answer, created }: StoredAnswer, after: number): Promise<boolean> {
      const { rows } = await db.executeQuery(adding(db, [scope, requestHash, answer, BigInt(created), BigInt(after)]))
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
  db
    .selectFrom('idempotency_keys')
    .selectAll()
    .where('scope', 'in', Array<string>(count).fill(''))
    .where('created', '>', 0n),
)

const adding = prepared((db) =>
  db
    .insertInto('idempotency_keys')
    .values({ scope: '', request_hash: '', answer: '', created: 0n })
    .onConflict((conflict) =>
      conflict
        .column('scope')
        .doUpdateSet((excluded) => ({
          request_hash: excluded.ref('excluded.request_hash'),
          answer: excluded.ref('excluded.answer'),
          created: excluded.ref('excluded.created'),
        }))
        .where('idempotency_keys.created', '<=', 0n),
    )
    .returning('scope'),
)

function answerOf(row: { scope: string; request_hash: string; answer: string; created: bigint }): StoredAnswer {
  return { scope: row.scope, requestHash: row.request_hash, answer: row.answer, created: Number(row.created) }
}
