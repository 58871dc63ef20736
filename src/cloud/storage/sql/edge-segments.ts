import { sql as expression } from 'kysely'
import { SEGMENT_ENTRIES_MAX } from '../../../protocol/edge/sync.ts'
import type { Evidence, LastSegment, LedgerEntry, MergedSegment } from '../device-records.ts'
import { type DeliveryColumns, entriesOf } from './packed-delivery.ts'
import { packDocument, unpackDocument } from './packed-document.ts'
import { type Sql, parts, prepared, repeated, replacing } from './sql.ts'
import type { Row } from './tables.ts'
import { SHORT_HASH_BYTES } from './usage-archives.ts'

export function segmentReader({ db }: Sql) {
  return {
    async get(deviceId: string, epoch: number, seq: number): Promise<MergedSegment | undefined> {
      const row = await db
        .selectFrom('segments')
        .leftJoin('last_segments as last', (on) =>
          on
            .onRef('last.device_id', '=', 'segments.device_id')
            .onRef('last.epoch', '=', 'segments.epoch')
            .onRef('last.seq', '=', 'segments.seq'),
        )
        .select(['hash', 'document', 'answer'])
        .where('segments.device_id', '=', deviceId)
        .where('segments.epoch', '=', BigInt(epoch))
        .where('segments.seq', '=', BigInt(seq))
        .executeTakeFirst()
      if (row === undefined) return undefined
      const { hash, document, answer } = row
      const signed = document === null || answer === null ? null : { document: unpackDocument(document), answer }
      return { deviceId, epoch, seq, hash, signed }
    },
  }
}

export function segmentTransaction(sql: Sql) {
  const { db } = sql
  return {
    ...segmentReader(sql),
    /** Each as the last one of its epoch. */
    async append(...segments: readonly LastSegment[]): Promise<void> {
      for (const some of parts(segments)) {
        const rows = some.map(({ deviceId, epoch, seq, hash, signed }) => {
          const key = [deviceId, BigInt(epoch), BigInt(seq)]
          return {
            segment: [...key, hash],
            last: [...key, packDocument(signed.document), signed.answer],
          }
        })
        const inserted = rows.flatMap(({ segment }) => segment)
        await db.executeQuery(insertedSegments(db, inserted, some.length))
        const replaced = rows.flatMap(({ last }) => last)
        await db.executeQuery(replacedLast(db, replaced, some.length))
      }
    },
  }
}

const insertedSegments = prepared((db, count) =>
  db.insertInto('segments').values(repeated(count, { device_id: '', epoch: 0n, seq: 0n, hash: '' })),
)

const replacedLast = prepared((db, count) =>
  replacing(
    db,
    'last_segments',
    repeated(count, { device_id: '', epoch: 0n, seq: 0n, document: Buffer.alloc(0), answer: '' }),
    { key: ['device_id', 'epoch'] },
  ),
)

export function evidenceReader({ db }: Sql) {
  return {
    /** Newest first. */
    async of(deviceId: string, limit: number): Promise<readonly Evidence[]> {
      const rows = await db
        .selectFrom('evidence')
        .selectAll()
        .where('device_id', '=', deviceId)
        .orderBy('received_at', 'desc')
        .orderBy('hash')
        .limit(limit)
        .execute()
      return rows.map(evidenceOf)
    },
    /** @param epoch absent: all epochs */
    async size(deviceId: string, epoch?: number): Promise<{ readonly segments: number; readonly bytes: number }> {
      const ofDevice = db
        .selectFrom('evidence')
        .select([
          expression<bigint>`count(*)`.as('segments'),
          expression<bigint>`CAST(coalesce(sum(octet_length(document) + coalesce(octet_length(recorded_document), 0)), 0) AS BIGINT)`.as(
            'bytes',
          ),
        ])
        .where('device_id', '=', deviceId)
      const sized = epoch === undefined ? ofDevice : ofDevice.where('epoch', '=', BigInt(epoch))
      const row = await sized.executeTakeFirstOrThrow()
      return { segments: Number(row.segments), bytes: Number(row.bytes) }
    },
    async kinds(deviceId: string): Promise<ReadonlySet<Evidence['kind']>> {
      const rows = await db.selectFrom('evidence').select('kind').distinct().where('device_id', '=', deviceId).execute()
      return new Set(rows.map(({ kind }) => kind))
    },
  }
}

export function evidenceTransaction(sql: Sql) {
  return {
    ...evidenceReader(sql),
    /** Once per segment, without a limit: `keepEvidence` limits. */
    async keep(evidence: Evidence): Promise<void> {
      await sql.db
        .insertInto('evidence')
        .values({
          device_id: evidence.deviceId,
          epoch: BigInt(evidence.epoch),
          hash: evidence.hash,
          kind: evidence.kind,
          seq: BigInt(evidence.seq),
          recorded_hash: evidence.recordedHash,
          recorded_document: evidence.recordedDocument,
          problem: evidence.problem,
          document: evidence.document,
          received_at: BigInt(evidence.receivedAt),
        })
        .onConflict((conflict) => conflict.columns(['device_id', 'epoch', 'hash']).doNothing())
        .execute()
    },
  }
}

export interface KnownHashes {
  has(hash: string): boolean
}

const DELIVERY = ['device_id', 'epoch', 'branch', 'first_entry', 'last_entry', 'body'] as const

/** Deliveries with an entry of this range, of all writers. The maximum number of entries in a segment bounds the search. */
export function deliveriesWith(
  db: Sql['db'],
  [deviceId, epoch]: readonly [deviceId: string, epoch: bigint],
  first: bigint,
  last: bigint,
) {
  return db
    .selectFrom('usage')
    .where('device_id', '=', deviceId)
    .where('epoch', '=', epoch)
    .where('first_entry', '>', first - BigInt(SEGMENT_ENTRIES_MAX))
    .where('first_entry', '<=', last)
    .where('last_entry', '>=', first)
}

/** Entries are stored with the usage records that they make: see usage.ts. */
export function entryReader({ db }: Sql) {
  const deliveries = (deviceId: string, epoch: number) =>
    db
      .selectFrom('usage')
      .select(DELIVERY)
      .where('device_id', '=', deviceId)
      .where('epoch', '=', BigInt(epoch))
      .$narrowType<DeliveryColumns>()
  const archived = (deviceId: string, epoch: number, first: number, last: number) =>
    db
      .selectFrom('archived_entries')
      .select(['first_entry', 'hashes'])
      .where('device_id', '=', deviceId)
      .where('epoch', '=', BigInt(epoch))
      .where('last_entry', '>=', BigInt(first))
      .where('first_entry', '<=', BigInt(last))
  return {
    /** Which entries with these numbers were billed, of all writers. */
    async hashes(deviceId: string, epoch: number, first: number, last: number): Promise<KnownHashes> {
      // Deliveries first: what is archived in between is found twice, not missed.
      const found = deliveriesWith(db, [deviceId, BigInt(epoch)], BigInt(first), BigInt(last))
      const rows = await found.select(DELIVERY).$narrowType<DeliveryColumns>().execute()
      const whole = new Set(rows.flatMap((row) => entriesOf(row).map(({ hash }) => hash)))
      const kept = await archived(deviceId, epoch, first, last).execute()
      const short = new Set(kept.flatMap(({ hashes }) => shortHashesOf(hashes)))
      return { has: (hash) => whole.has(hash) || short.has(shortened(hash)) }
    },
    /** Undefined: the merged chain has no such entry. Of an archived entry, the beginning of its hash. */
    async hashInChain(deviceId: string, epoch: number, n: number): Promise<string | undefined> {
      const row = await deliveries(deviceId, epoch)
        .where('first_entry', '<=', BigInt(n))
        .where(expression<boolean>`branch = 0`)
        .orderBy('first_entry', 'desc')
        .limit(1)
        .executeTakeFirst()
      if (row !== undefined && row.last_entry >= BigInt(n)) return entriesOf(row).find((entry) => entry.n === n)?.hash
      const kept = await archived(deviceId, epoch, n, n).where('branch', '=', 0n).executeTakeFirst()
      return kept === undefined ? undefined : shortHashesOf(kept.hashes)[n - Number(kept.first_entry)]
    },
    /** Those that are not archived, by number; entries of the chain first. An entry of a branch that joined the chain comes once. */
    async of(deviceId: string, epoch: number): Promise<readonly (LedgerEntry & { readonly branch: boolean })[]> {
      const rows = await deliveries(deviceId, epoch).orderBy('first_entry').execute()
      const found = new Map<string, LedgerEntry & { readonly branch: boolean }>()
      for (const row of rows.toSorted((a, b) => Number(a.branch - b.branch))) {
        for (const entry of entriesOf(row)) {
          if (!found.has(entry.hash)) found.set(entry.hash, { ...entry, branch: row.branch === 1n })
        }
      }
      return [...found.values()].sort((a, b) => a.n - b.n)
    },
  }
}

function shortHashesOf(hashes: Buffer): readonly string[] {
  const count = hashes.length / SHORT_HASH_BYTES
  return Array.from({ length: count }, (_, index) =>
    hashes.toString('hex', index * SHORT_HASH_BYTES, (index + 1) * SHORT_HASH_BYTES),
  )
}

function shortened(hash: string): string {
  return hash.slice(0, 2 * SHORT_HASH_BYTES)
}

function evidenceOf(row: Row<'evidence'>): Evidence {
  return {
    deviceId: row.device_id,
    epoch: Number(row.epoch),
    kind: row.kind,
    seq: Number(row.seq),
    hash: row.hash,
    recordedHash: row.recorded_hash,
    recordedDocument: row.recorded_document,
    problem: row.problem,
    document: row.document,
    receivedAt: Number(row.received_at),
  }
}
