import { sql as raw } from 'kysely'
import type { Role } from '../../../protocol/service/keys.ts'
import type { KeyRecord, KeyType, KeyVersion } from '../records.ts'
import { type Sql, countOf, prepared, rowsOf, toBigint, toNumber, upsert } from './sql.ts'
import type { Row } from './tables.ts'

export function keyReader({ db }: Sql) {
  return {
    async get(type: KeyType, id: string): Promise<KeyRecord | undefined> {
      const [row] = (await db.executeQuery(keyWithId(db, [type, id]))).rows
      return row === undefined ? undefined : keyOf(row)
    },
    /** Of any type. */
    async withIds(ids: readonly string[]): Promise<readonly KeyRecord[]> {
      return (await rowsOf(db, keysWithIds, ids)).map(keyOf)
    },
    /** By creation. */
    async list(offset: number, limit: number): Promise<readonly KeyRecord[]> {
      const rows = await db
        .selectFrom('public_keys')
        .selectAll()
        .where('retires_at', 'is', null)
        .orderBy('seq')
        .offset(offset)
        .limit(limit)
        .execute()
      return rows.map(keyOf)
    },
    /** With deleted ones that still verify. By creation. */
    async all(): Promise<readonly KeyRecord[]> {
      return (await db.selectFrom('public_keys').selectAll().orderBy('seq').execute()).map(keyOf)
    },
    /** Administration keys that can save keys. Excludes deleted keys. */
    countAdministration(): Promise<number> {
      return countOf(
        db
          .selectFrom('public_keys')
          .where('type', '=', 'administration-key')
          .where('retires_at', 'is', null)
          .where((where) => where.or([where('roles', 'is', null), where('roles', 'like', '%"keys"%')])),
      )
    },
  }
}

const keysWithIds = prepared((db, count) =>
  db
    .selectFrom('public_keys')
    .selectAll()
    // Named for the index, which begins with it.
    .where(raw<boolean>`type IN ('administration-key', 'client-key')`)
    .where('id', 'in', Array<string>(count).fill('')),
)

const keyWithId = prepared((db) =>
  db.selectFrom('public_keys').selectAll().where('type', '=', 'client-key').where('id', '=', ''),
)

/** @param written called when the transaction changes a key */
export function keyTransaction(sql: Sql, written: () => void) {
  const { db, lockRows } = sql
  return {
    ...keyReader(sql),
    /** Serializes changes of keys: the last administration key must stay. */
    async lock(): Promise<void> {
      if (lockRows) await db.selectFrom('public_keys').select('seq').orderBy('seq').forUpdate().execute()
    },
    async save(key: KeyRecord): Promise<void> {
      written()
      await upsert(
        db,
        'public_keys',
        { type: key.type, id: key.id },
        {
          name: key.name,
          roles: toJson(key.roles),
          instances: toJson(key.instances),
          pem: key.pem,
          active_from: BigInt(key.activeFrom),
          previous: key.previous === null ? null : JSON.stringify(key.previous),
          retires_at: toBigint(key.retiresAt),
          created: BigInt(key.created),
          modified: BigInt(key.modified),
        },
      )
    },
    async remove(type: KeyType, id: string): Promise<void> {
      written()
      await db.deleteFrom('public_keys').where('type', '=', type).where('id', '=', id).execute()
    },
  }
}

function toJson(list: readonly string[] | null): string | null {
  return list === null ? null : JSON.stringify(list)
}

function keyOf(row: Row<'public_keys'>): KeyRecord {
  return {
    type: row.type,
    id: row.id,
    name: row.name,
    roles: row.roles === null ? null : (JSON.parse(row.roles) as Role[]),
    instances: row.instances === null ? null : (JSON.parse(row.instances) as string[]),
    pem: row.pem,
    activeFrom: Number(row.active_from),
    previous: row.previous === null ? null : (JSON.parse(row.previous) as KeyVersion),
    retiresAt: toNumber(row.retires_at),
    created: Number(row.created),
    modified: Number(row.modified),
  }
}

export function signingKeyReader({ db }: Sql) {
  return {
    /** Thumbprint of the key that signs for all nodes; undefined: no node has started yet. */
    async get(): Promise<string | undefined> {
      const row = await db.selectFrom('signing_key').select('thumbprint').executeTakeFirst()
      return row?.thumbprint
    },
  }
}

export function signingKeyTransaction(sql: Sql) {
  return {
    ...signingKeyReader(sql),
    /** Replaces the registered key. Under the keys' lock. */
    async register(thumbprint: string, now: number): Promise<void> {
      await upsert(sql.db, 'signing_key', { slot: 1n }, { thumbprint, since: BigInt(now) })
    },
  }
}
