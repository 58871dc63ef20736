/** Archives of usage records: which were written, who writes the next one, and the deletion of what they contain. */
import { type Archiving, USAGE_ROW_POSITIONS, type UsageArchive, type UsageRange } from '../records.ts'
import { entriesOf } from './packed-delivery.ts'
import { type UsageRow, isDelivery } from './packed-usage.ts'
import { rowAfter } from './usage-positions.ts'
import { type Sql, toNumber } from './sql.ts'
import type { Row } from './tables.ts'

/** Rows that one statement reads at most. */
const ROWS_READ_MAX = 1_000

/** What one transaction deletes at most. A delivery is large, and comes whole. */
const ROWS_DELETED_MAX = 1_000
const DELIVERIES_DELETED_MAX = 100
const ENTRIES_DELETED_MAX = 5_000

/** Bytes of the hashes of one row of archived entries. */
const HASHES_BYTES_MAX = 8_192

/** Free pages that one transaction gives back. */
const PAGES_MAX = 1_000

export const SHORT_HASH_BYTES = 8

/** POSIX ms: from the one, until before the other. */
type TimeRange = Pick<UsageRange, 'from' | 'to'>

export function usageArchiveReader({ db }: Sql) {
  return {
    async last(): Promise<UsageArchive | null> {
      const row = await db.selectFrom('usage_archives').selectAll().orderBy('up_to', 'desc').limit(1).executeTakeFirst()
      return row === undefined ? null : archiveOf(row)
    },
    /** The first archive with later positions that may contain such use; null: none. */
    async later(position: bigint, { from, to }: TimeRange): Promise<UsageArchive | null> {
      let query = db.selectFrom('usage_archives').selectAll().where('up_to', '>', position)
      if (from !== null) {
        query = query.where((or) => {
          const ahead = or('ahead_to', '>=', BigInt(from))
          const withinAhead = to === null ? ahead : ahead.and('ahead_from', '<', BigInt(to))
          return or.or([or('latest_use', '>=', BigInt(from)), withinAhead])
        })
      }
      const row = await query.orderBy('up_to').limit(1).executeTakeFirst()
      return row === undefined ? null : archiveOf(row)
    },
    async archiving(): Promise<Archiving> {
      const row = await db.selectFrom('usage_archiving').selectAll().executeTakeFirst()
      if (row === undefined) return { holder: null, seenAt: 0, planned: null, finishedAt: null }
      const { holder, seen_at, place, up_to, finished_at } = row
      const planned = place === null || up_to === null ? null : { place, upTo: up_to }
      return { holder, seenAt: Number(seen_at), planned, finishedAt: toNumber(finished_at) }
    },
    /** The next rows of the range; none: these were all. */
    async written(after: bigint, upTo: bigint): Promise<readonly WrittenRow[]> {
      const rows = await db
        .selectFrom('usage')
        .select(['seq', 'records', 'write_time'])
        .where('seq', '>=', rowAfter(after))
        .where('seq', '<=', upTo / USAGE_ROW_POSITIONS)
        .orderBy('seq')
        .limit(ROWS_READ_MAX)
        .execute()
      return rows.map(({ seq, records, write_time }) => ({
        position: seq * USAGE_ROW_POSITIONS,
        records: Number(records),
        writeTime: Number(write_time),
      }))
    },
  }
}

export interface WrittenRow {
  /** Of its last record. */
  readonly position: bigint
  readonly records: number
  /** POSIX ms. */
  readonly writeTime: number
}

export function usageArchiveTransaction(sql: Sql) {
  const { db } = sql
  const reader = usageArchiveReader(sql)
  const claimedBy = (holder: string) => db.updateTable('usage_archiving').where('holder', '=', holder)
  return {
    ...reader,
    /** Returns false if another process archives and was seen within this time, ms. */
    async claim(holder: string, now: number, silentMax: number): Promise<boolean> {
      const seen = { holder, seen_at: BigInt(now) }
      await db
        .insertInto('usage_archiving')
        .values({ slot: 1n, ...seen, place: null, up_to: null, finished_at: null })
        .onConflict((conflict) =>
          conflict
            .column('slot')
            .doUpdateSet(seen)
            .where((or) =>
              or.or([
                or('usage_archiving.holder', 'is', null),
                or('usage_archiving.seen_at', '<', BigInt(now - silentMax)),
                // It was seen while its clock was ahead.
                or('usage_archiving.seen_at', '>', BigInt(now + silentMax)),
              ]),
            ),
        )
        .execute()
      return (await reader.archiving()).holder === holder
    },
    /** Returns false if another process has taken over. Until the transaction ends, none can. */
    async renew(holder: string, now: number): Promise<boolean> {
      const rows = await claimedBy(holder)
        .set({ seen_at: BigInt(now) })
        .returning('slot')
        .execute()
      return rows.length === 1
    },
    async plan(holder: string, place: string, upTo: bigint): Promise<void> {
      await claimedBy(holder).set({ place, up_to: upTo }).execute()
    },
    /** Its records may be deleted from now on, and are no longer returned. */
    async record(archive: UsageArchive): Promise<void> {
      await db.insertInto('usage_archives').values(rowOf(archive)).execute()
      await db.updateTable('usage_archiving').set({ place: null, up_to: null }).execute()
    },
    /** @param finishedAt null: not everything that was due is archived */
    async release(holder: string, finishedAt: number | null): Promise<void> {
      const finished = finishedAt === null ? {} : { finished_at: BigInt(finishedAt) }
      await claimedBy(holder)
        .set({ holder: null, ...finished })
        .execute()
    },
    /** Deletes some archived rows. Returns whether there may be more. */
    async deleteSome(): Promise<boolean> {
      const last = await reader.last()
      if (last === null) return false
      const end = last.upTo / USAGE_ROW_POSITIONS
      const found = await db
        .selectFrom('usage')
        .select(['seq', 'epoch', 'first_entry', 'last_entry'])
        .where('seq', '<=', end)
        .orderBy('seq')
        .limit(ROWS_DELETED_MAX)
        .execute()
      const due = someOf(found)
      const [upTo] = due.slice(-1)
      if (upTo === undefined) return false
      for (const { seq, epoch } of due) if (epoch !== null) await keepHashes(db, seq)
      // Over PostgreSQL, a statement that returns no rows is not waited for.
      await db.deleteFrom('usage').where('seq', '<=', upTo.seq).returning('seq').execute()
      return due.length < found.length || found.length === ROWS_DELETED_MAX
    },
    /** Gives some freed space back to the file system. Returns whether there is more that it can give. */
    async giveSpaceBack(): Promise<boolean> {
      return sql.shrink?.(PAGES_MAX) ?? false
    },
  }
}

/** The first ones, with a limited number of deliveries and their entries. */
function someOf<R extends Pick<UsageRow, 'epoch' | 'first_entry' | 'last_entry'>>(rows: readonly R[]): readonly R[] {
  let [deliveries, entries] = [0, 0]
  const end = rows.findIndex(({ epoch, first_entry, last_entry }) => {
    if (epoch === null || first_entry === null || last_entry === null) return false
    const isFull = deliveries === DELIVERIES_DELETED_MAX || entries > ENTRIES_DELETED_MAX
    deliveries += 1
    entries += Number(last_entry - first_entry) + 1
    return isFull
  })
  return end === -1 ? rows : rows.slice(0, end)
}

/**
 * Keeps what tells that the entries of a delivery were billed: with those of the deliveries before it, as long as the row
 * stays small.
 */
async function keepHashes(db: Sql['db'], seq: bigint): Promise<void> {
  const delivery = await db.selectFrom('usage').selectAll().where('seq', '=', seq).executeTakeFirstOrThrow()
  if (!isDelivery(delivery)) throw new Error('invariant: only deliveries have entries')
  const { device_id, epoch, branch, first_entry, last_entry } = delivery
  const hashes = Buffer.concat(entriesOf(delivery).map(({ hash }) => shortHash(hash)))
  const before =
    branch === 1n
      ? undefined
      : await db
          .selectFrom('archived_entries')
          .select(['seq', 'hashes'])
          .where('device_id', '=', device_id)
          .where('epoch', '=', epoch)
          .where('last_entry', '=', first_entry - 1n)
          .where('branch', '=', 0n)
          .executeTakeFirst()
  if (before !== undefined && before.hashes.length + hashes.length <= HASHES_BYTES_MAX) {
    const all = Buffer.concat([before.hashes, hashes])
    await db.updateTable('archived_entries').set({ hashes: all, last_entry }).where('seq', '=', before.seq).execute()
    return
  }
  await db
    .insertInto('archived_entries')
    .values({ seq, device_id, epoch, branch, first_entry, last_entry, hashes })
    .execute()
}

function shortHash(hash: string): Buffer {
  return Buffer.from(hash.slice(0, 2 * SHORT_HASH_BYTES), 'hex')
}

function archiveOf(row: Row<'usage_archives'>): UsageArchive {
  return {
    after: row.after,
    upTo: row.up_to,
    records: Number(row.records),
    latestUse: Number(row.latest_use),
    usedAhead:
      row.ahead_from === null || row.ahead_to === null
        ? null
        : { from: Number(row.ahead_from), to: Number(row.ahead_to) },
    place: row.place,
    manifest: row.manifest,
    sha256: row.sha256,
    archivedAt: Number(row.archived_at),
  }
}

function rowOf(archive: UsageArchive): Row<'usage_archives'> {
  return {
    up_to: archive.upTo,
    after: archive.after,
    records: BigInt(archive.records),
    latest_use: BigInt(archive.latestUse),
    ahead_from: archive.usedAhead === null ? null : BigInt(archive.usedAhead.from),
    ahead_to: archive.usedAhead === null ? null : BigInt(archive.usedAhead.to),
    place: archive.place,
    manifest: archive.manifest,
    sha256: archive.sha256,
    archived_at: BigInt(archive.archivedAt),
  }
}
