import type { ClockGap, ClockRecord } from '../records.ts'
import { sql as expression } from 'kysely'
import { type Sql, upsert } from './sql.ts'

export function sweepReader({ db }: Sql) {
  return {
    async clockRecord(): Promise<ClockRecord | undefined> {
      const row = await db.selectFrom('clock_record').selectAll().executeTakeFirst()
      return row === undefined
        ? undefined
        : { at: Number(row.at), sinceBoot: Number(row.since_boot), bootId: row.boot_id }
    },
    /** Newest first. */
    async clockGaps(): Promise<readonly ClockGap[]> {
      const rows = await db.selectFrom('clock_gaps').selectAll().orderBy('until', 'desc').execute()
      return rows.map(({ since, until }) => ({ since: Number(since), until: Number(until) }))
    },
    async settlementConfirmed(): Promise<number | null> {
      const row = await db.selectFrom('settlement_confirmed').select('quiet_before').executeTakeFirst()
      return row === undefined ? null : Number(row.quiet_before)
    },
  }
}

export function sweepTransaction(sql: Sql) {
  const { db, lockRows } = sql
  return {
    ...sweepReader(sql),
    /** The database's clock, POSIX ms; null: it is this process's clock. */
    async databaseTime(): Promise<number | null> {
      // SQLite uses this process's clock.
      if (!lockRows) return null
      const { rows } = await expression<{ at: bigint }>`
        SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT) AS at`.execute(db)
      return rows[0] === undefined ? null : Number(rows[0].at)
    },
    /** Of a trusted clock. A restore that has no time yet was before this reading. */
    async noteClock({ at, sinceBoot, bootId }: ClockRecord): Promise<void> {
      const columns = { at: BigInt(at), since_boot: BigInt(sinceBoot), boot_id: bootId }
      await upsert(db, 'clock_record', { slot: 1n }, columns)
      await db
        .updateTable('last_restore')
        .set({ at: expression<bigint>`CASE WHEN at < ${columns.at} THEN ${columns.at} ELSE at END`, dated: 1n })
        .where('dated', '=', 0n)
        .execute()
    },
    async noteClockGap({ since, until }: ClockGap): Promise<void> {
      await upsert(db, 'clock_gaps', { until: BigInt(until) }, { since: BigInt(since) })
    },
    /** Those that ended at or before the instant. */
    async forgetClockGaps(until: number): Promise<void> {
      await db.deleteFrom('clock_gaps').where('until', '<=', BigInt(until)).execute()
    },
    /** Permits settling any number of epochs inactive since before the instant. */
    async confirmSettlement(quietBefore: number): Promise<void> {
      await upsert(db, 'settlement_confirmed', { slot: 1n }, { quiet_before: BigInt(quietBefore) })
    },
  }
}
