/**
 * Who may read and who may change the rules of an instance, by advisory locks of PostgreSQL, which end with the
 * transaction. Not by locks on rows: those let an unbroken stream of decisions pass by a change of the rules that waits,
 * for ever. Advisory locks are given in the order of asking.
 */
import { createHash } from 'node:crypto'
import { sql as raw } from 'kysely'
import type { RuleLocks, Sql } from '../sql/sql.ts'
import { sendAhead } from './dialect.ts'

/** First half of locks that have two: `TGcl`. The second half is the schema, so that twins that share a server do not meet. */
export const ADVISORY_CLASS = 0x54_47_63_6c

/** @param schema number of the schema that holds the tables */
export function ruleLocks(db: Sql['db'], schema: number): RuleLocks {
  const everything = raw`${ADVISORY_CLASS}::int, ${schema}::int`
  const rules = (instanceId: string) => raw`${keyOf(schema, instanceId)}::bigint`
  const take = async (locks: ReturnType<typeof raw>): Promise<void> => {
    await db.executeQuery(sendAhead(raw`SELECT ${locks}`.compile(db)))
  }
  return {
    hold: (instanceId) =>
      take(raw`pg_advisory_xact_lock_shared(${everything}), pg_advisory_xact_lock_shared(${rules(instanceId)})`),
    lock: (instanceId) =>
      take(raw`pg_advisory_xact_lock_shared(${everything}), pg_advisory_xact_lock(${rules(instanceId)})`),
    lockAll: () => take(raw`pg_advisory_xact_lock(${everything})`),
    add: () => take(raw`pg_advisory_xact_lock_shared(${everything})`),
  }
}

/** Two instances with one key would wait for each other more than they must, and no more than that. */
function keyOf(schema: number, instanceId: string): bigint {
  return createHash('sha256').update(`${schema}/${instanceId}`).digest().readBigInt64BE()
}
