import type { StoredAnswer } from '../records.ts'
import { type Sql, chunks, filledUp, prepared } from './sql.ts'

/** A scope that is no digest. */
const KEPT_FROM = 'kept from'

export function idempotencyTransaction({ db }: Sql) {
  return {
    /** By scope. */
    async find(scopes: readonly string[]): Promise<ReadonlyMap<string, StoredAnswer>> {
      const found = new Map<string, StoredAnswer>()
      for (const some of chunks(scopes)) {
        const listed = filledUp(some)
        const { rows } = await db.executeQuery(answersTo(db, listed, listed.length))
        for (const row of rows) found.set(row.scope, answerOf(row))
      }
      return found
    },
    /** False: there is an answer for this scope. */
    async add({ scope, requestHash, answer, created }: StoredAnswer): Promise<boolean> {
      const { rows } = await db.executeQuery(adding(db, [scope, requestHash, answer, BigInt(created)]))
      return rows.length > 0
    },
    /** Prevents that any answer is forgotten until this instant is old enough: earlier ones may look too old. */
    async keepFrom(instant: number): Promise<void> {
      await db.deleteFrom('idempotency_keys').where('scope', '=', KEPT_FROM).execute()
      await db.executeQuery(adding(db, [KEPT_FROM, '', '', BigInt(instant)]))
    },
    /** Deletes up to `max` answers stored at or before the instant. Returns their number. */
    async forget(until: number, max: number): Promise<number> {
      const kept = (await db.executeQuery(answersTo(db, [KEPT_FROM], 1))).rows[0]
      if (kept !== undefined && kept.created > BigInt(until)) return 0
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
