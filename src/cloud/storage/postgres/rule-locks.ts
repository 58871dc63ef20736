/**
 * Shared and exclusive advisory locks on an instance's rules, released with the transaction. With row locks, a constant
 * stream of decisions would starve a rule change; advisory locks are granted in order.
 */
import { hash } from 'node:crypto'
import { sql as raw } from 'kysely'
import { type RuleLocks, type Sql, WouldWait, prepared } from '../sql/sql.ts'
import { sendAhead } from './dialect.ts'

/** First half of two-part lock keys: `TGcl`. The second half is the schema, to separate clouds on one server. */
export const ADVISORY_CLASS = 0x54_47_63_6c

/** @param schema number of the schema that contains the tables */
export function ruleLocks(db: Sql['db'], schema: number): RuleLocks {
  const everything = raw`${ADVISORY_CLASS}::int, ${schema}::int`
  const rules = (instanceId: string) => raw`${keyOf(schema, instanceId)}::bigint`
  const take = async (locks: ReturnType<typeof raw>): Promise<void> => {
    await db.executeQuery(sendAhead(raw`SELECT ${locks}`.compile(db)))
  }
  return {
    lockShared: async (...instanceIds) => {
      const keys = instanceIds.map((instanceId) => keyOf(schema, instanceId))
      await db.executeQuery(sendAhead(sharedLocks(db, [ADVISORY_CLASS, schema, ...keys], keys.length)))
    },
    lock: (instanceId) =>
      take(raw`pg_advisory_xact_lock_shared(${everything}), pg_advisory_xact_lock(${rules(instanceId)})`),
    upgrade: () => Promise.reject(new WouldWait()),
    lockAll: () => take(raw`pg_advisory_xact_lock(${everything})`),
    lockForInsert: () => take(raw`pg_advisory_xact_lock_shared(${everything})`),
  }
}

const sharedLocks = prepared((db, count) => ({
  compile: () => {
    const locks = Array.from({ length: count }, () => raw`pg_advisory_xact_lock_shared(${0n}::bigint)`)
    return raw`SELECT pg_advisory_xact_lock_shared(${0}::int, ${0}::int), ${raw.join(locks)}`.compile(db)
  },
}))

/** Instances whose keys collide only wait for each other unnecessarily. */
function keyOf(schema: number, instanceId: string): bigint {
  return hash('sha256', `${schema}/${instanceId}`, 'buffer').readBigInt64BE()
}
