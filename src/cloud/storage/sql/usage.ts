import { type CompiledQuery, sql as statement } from 'kysely'
import { decimal, formatDecimal } from '../../../core/pricing/amount.ts'
import type { UsageOperation, UsageRecord, UsageSource, UsageRange, NumberedUsage } from '../records.ts'
import type { Sql } from './sql.ts'
import type { Row } from './tables.ts'

export function usageReader({ db }: Sql) {
  const within = ({ after, upTo, instanceId, from, to }: Omit<UsageRange, 'limit'>) => {
    let query = db.selectFrom('usage').where('seq', '>', after).where('seq', '<=', upTo)
    if (instanceId !== null) query = query.where('instance_id', '=', instanceId)
    if (from !== null) query = query.where('usage_time', '>=', BigInt(from))
    if (to !== null) query = query.where('usage_time', '<', BigInt(to))
    return query
  }
  return {
    /** Oldest first. */
    async range({ limit, ...range }: UsageRange): Promise<readonly NumberedUsage[]> {
      const rows = await within(range).selectAll().orderBy('seq').limit(limit).execute()
      return rows.map((row) => ({ position: row.seq, record: usageOf(row) }))
    },
    async count(range: Omit<UsageRange, 'limit'>): Promise<number> {
      const row = await within(range)
        .select((of) => of.fn.countAll<bigint>().as('count'))
        .executeTakeFirstOrThrow()
      return Number(row.count)
    },
    /** End of the backup that lost the record at this position; null: not lost. */
    async backupEnd(position: bigint): Promise<bigint | null> {
      const row = await db
        .selectFrom('forgotten_usage')
        .select('backup_end')
        .where('backup_end', '<', position)
        .where('gone_on_after', '>', position)
        .executeTakeFirst()
      return row?.backup_end ?? null
    },
    /** Newest first; `before` is the previous response's `next`. */
    async list({
      instanceId,
      correlationId,
      before,
      limit,
    }: {
      readonly instanceId?: string
      readonly correlationId?: string
      readonly before?: bigint
      readonly limit: number
    }): Promise<{ readonly records: readonly UsageRecord[]; readonly next: bigint | null }> {
      let query = db.selectFrom('usage').selectAll()
      if (instanceId !== undefined) query = query.where('instance_id', '=', instanceId)
      if (correlationId !== undefined) query = query.where('correlation_id', '=', correlationId)
      if (before !== undefined) query = query.where('seq', '<', before)
      const rows = await query
        .orderBy('seq', 'desc')
        .limit(limit + 1)
        .execute()
      const shown = rows.slice(0, limit)
      return { records: shown.map(usageOf), next: rows.length > limit ? (shown.at(-1)?.seq ?? null) : null }
    },
  }
}

/**
 * @returns the accessor, and a function that writes the appended records: the transaction's last step, after all other
 * locks
 */
export function usageTransaction(sql: Sql) {
  const { db } = sql
  const appended: UsageRecord[] = []
  const settled = async (): Promise<bigint> => {
    // Writers lock the table against this from before a record gets its position until their commit, and take no other
    // lock in between: no deadlock.
    if (sql.lockRows) await statement`LOCK TABLE usage IN SHARE MODE`.execute(db)
    const newest = await db.selectFrom('usage').select('seq').orderBy('seq', 'desc').limit(1).executeTakeFirst()
    const passed = await db
      .selectFrom('forgotten_usage')
      .select((of) => of.fn.max<bigint | null>('gone_on_after').as('position'))
      .executeTakeFirstOrThrow()
    const [record, gap] = [newest?.seq ?? 0n, passed.position ?? 0n]
    return record > gap ? record : gap
  }
  const usage = {
    ...usageReader(sql),
    /** All later records will have higher positions. 0: no records. */
    settled,
    /**
     * After a restore: new records get positions above `position`; positions from the backup's end up to it are marked
     * as lost.
     */
    async passForgotten(position: bigint): Promise<void> {
      const end = await settled()
      if (position <= end) return
      await db.insertInto('forgotten_usage').values({ backup_end: end, gone_on_after: position }).execute()
      if (sql.lockRows) {
        // Rolled back transactions may have used positions above the newest record.
        const sequence = statement`pg_get_serial_sequence('usage', 'seq')::regclass`
        const highest = statement`GREATEST(${position}::BIGINT, pg_sequence_last_value(${sequence}))`
        await statement`SELECT setval(${sequence}, ${highest})`.execute(db)
      } else {
        await statement`DELETE FROM sqlite_sequence WHERE name = 'usage'`.execute(db)
        await statement`INSERT INTO sqlite_sequence (name, seq) VALUES ('usage', ${position})`.execute(db)
      }
    },
    /** Written at the end of the transaction, which cannot read them. */
    async append(records: readonly UsageRecord[]): Promise<void> {
      appended.push(...records)
    },
  }
  return {
    usage,
    write: async (): Promise<void> => {
      for (let at = 0; at < appended.length;) {
        const count = largestPart(appended.length - at)
        const parameters = appended.slice(at, at + count).flatMap((record) => Object.values(rowOf(record)))
        await db.executeQuery({ ...insertOf(sql, count), parameters })
        at += count
      }
    },
  }
}

const ROWS_MAX = 32

/** Powers of two, so that few statement texts serve any number of rows. */
function largestPart(rows: number): number {
  return Math.min(ROWS_MAX, 2 ** Math.floor(Math.log2(rows)))
}

/** Building such a long statement takes longer than running it: cache it. */
const inserts = new WeakMap<object, Map<number, CompiledQuery>>()

/** Parameters follow the field sequence of {@link rowOf}. */
function insertOf({ db }: Sql, count: number): CompiledQuery {
  const { adapter } = db.getExecutor()
  const known = inserts.get(adapter) ?? new Map<number, CompiledQuery>()
  inserts.set(adapter, known)
  const found = known.get(count)
  if (found !== undefined) return found
  const made = db
    .insertInto('usage')
    .values(Array.from({ length: count }, () => rowOf(SAMPLE)))
    .compile()
  if (made.parameters.length !== count * Object.keys(rowOf(SAMPLE)).length) {
    throw new Error('invariant: each value of a row is a parameter')
  }
  known.set(count, made)
  return made
}

const SAMPLE: UsageRecord = {
  correlationId: '',
  usageTime: 0,
  writeTime: 0,
  requesterType: '',
  requesterValue: '',
  accountId: '',
  instanceId: '',
  activationId: null,
  quantity: null,
  used: null,
  item: '',
  version: '',
  count: decimal(0),
  operation: 'REQUEST',
  status: '',
  tokens: 0n,
  source: { kind: 'one-off' },
  metaData: null,
}

function rowOf(record: UsageRecord): Omit<Row<'usage'>, 'seq'> {
  const { source } = record
  return {
    correlation_id: record.correlationId,
    usage_time: BigInt(record.usageTime),
    write_time: BigInt(record.writeTime),
    requester_type: record.requesterType,
    requester_value: record.requesterValue,
    account_id: record.accountId,
    instance_id: record.instanceId,
    activation_id: record.activationId,
    quantity: record.quantity,
    used: record.used,
    item: record.item,
    version: record.version,
    count: formatDecimal(record.count),
    rate: record.rate === undefined ? null : formatDecimal(record.rate),
    operation: record.operation,
    status: record.status,
    tokens: record.tokens,
    source: source.kind,
    session_id: source.kind === 'one-off' ? null : (source.sessionId ?? null),
    device_id: source.kind === 'device' ? source.deviceId : null,
    epoch: source.kind === 'device' ? BigInt(source.epoch) : null,
    entry: source.kind === 'device' ? BigInt(source.entry) : null,
    meta_data: record.metaData,
  }
}

function usageOf(row: Row<'usage'>): UsageRecord {
  return {
    correlationId: row.correlation_id,
    usageTime: Number(row.usage_time),
    writeTime: Number(row.write_time),
    requesterType: row.requester_type,
    requesterValue: row.requester_value,
    accountId: row.account_id,
    instanceId: row.instance_id,
    activationId: row.activation_id,
    quantity: row.quantity,
    used: row.used,
    item: row.item,
    version: row.version,
    count: decimal(row.count),
    ...(row.rate === null ? {} : { rate: decimal(row.rate) }),
    operation: row.operation as UsageOperation,
    status: row.status,
    tokens: row.tokens,
    source: sourceOf(row),
    metaData: row.meta_data,
  }
}

function sourceOf(row: Row<'usage'>): UsageSource {
  if (row.device_id === null) {
    return row.session_id === null ? { kind: 'one-off' } : { kind: 'session', sessionId: row.session_id }
  }
  return {
    kind: 'device',
    deviceId: row.device_id,
    epoch: Number(row.epoch),
    entry: Number(row.entry),
    ...(row.session_id === null ? {} : { sessionId: row.session_id }),
  }
}
