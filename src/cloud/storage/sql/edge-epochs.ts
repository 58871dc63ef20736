/** A unique index allows one active epoch per device. */
import { sql as expression } from 'kysely'
import type {
  Epoch,
  EpochWithSessionCount,
  EpochWithSessionPresence,
  InactiveEpoch,
  SettlementLoad,
} from '../device-records.ts'
import {
  type Sql,
  asFlag,
  changedOf,
  chunks,
  filledUp,
  prepared,
  preparedUpdate,
  tableOf,
  toBigint,
  toFlag,
  toNumber,
  updates,
} from './sql.ts'
import { HAS_NOT_ENDED } from './sessions.ts'
import type { Row } from './tables.ts'

/** As a literal, like in the partial index. */
const IS_OPEN = expression<boolean>`status <> 'CLOSED'`

export function epochReader({ db }: Sql) {
  const unsettledEpochs = () => db.selectFrom('epochs').where('settled_at', 'is', null).where(IS_OPEN)
  const inactive = (before: number) =>
    unsettledEpochs()
      .select(['device_id', 'number', 'quiet_since'])
      .where('quiet_since', '<', BigInt(before))
      .where((or) =>
        or.or([
          or('status', '=', 'FENCED'),
          or.exists(
            or
              .selectFrom('device_accounts')
              .select('device_accounts.account')
              .whereRef('device_accounts.device_id', '=', 'epochs.device_id')
              .whereRef('device_accounts.epoch', '=', 'epochs.number')
              .where(
                expression<boolean>`device_accounts.granted - device_accounts.returned > device_accounts.used - device_accounts.refunded + device_accounts.branch_used`,
              ),
          ),
        ]),
      )
      // A restored cloud may have lost contacts and grants after the backup.
      .where((where) =>
        where.not(
          where.exists(
            where
              .selectFrom('last_restore')
              .select('last_restore.slot')
              .where((or) => or.or([or('at', '>=', BigInt(before)), or('dated', '=', 0n)])),
          ),
        ),
      )
  return {
    async get(deviceId: string, number: number): Promise<Epoch | undefined> {
      const [row] = (await db.executeQuery(epochWithNumber(db, [deviceId, BigInt(number)]))).rows
      return row === undefined ? undefined : epochOf(row)
    },
    /** As `get`, and whether the device may have sessions that have not ended. */
    async getWithSessionPresence(deviceId: string, number: number): Promise<EpochWithSessionPresence> {
      const [row] = (await db.executeQuery(epochWithSessions(db, [deviceId, BigInt(number)]))).rows
      if (row === undefined) return { epoch: undefined, hasSessions: true }
      return { epoch: epochOf(row), hasSessions: row.hasSessions !== 0n }
    },
    /** One epoch of each device. Those that do not exist are left out. */
    async someWithSessionCount(
      keys: readonly { readonly deviceId: string; readonly number: number }[],
    ): Promise<ReadonlyMap<string, EpochWithSessionCount>> {
      const found = new Map<string, EpochWithSessionCount>()
      for (const some of chunks(keys, 100)) {
        const listed = filledUp(some)
        const parameters = listed.flatMap(({ deviceId, number }) => [deviceId, BigInt(number)])
        for (const row of (await db.executeQuery(epochsWithSessionCount(db, parameters, listed.length))).rows) {
          const sessions = { ownSessions: Number(row.ownSessions), keepsSessions: row.keepsSessions !== 0n }
          found.set(row.device_id, { epoch: epochOf(row), ...sessions })
        }
      }
      return found
    },
    async newest(deviceId: string, limit: number): Promise<readonly Epoch[]> {
      const all = db.selectFrom('epochs').selectAll().where('device_id', '=', deviceId)
      const rows = await all.orderBy('number', 'desc').limit(limit).execute()
      return rows.map(epochOf)
    },
    async newestBelow(deviceId: string, number: number): Promise<Epoch | undefined> {
      const all = db.selectFrom('epochs').selectAll().where('device_id', '=', deviceId)
      const row = await all.where('number', '<', BigInt(number)).orderBy('number', 'desc').limit(1).executeTakeFirst()
      return row === undefined ? undefined : epochOf(row)
    },
    async byNonce(deviceId: string, nonce: string): Promise<Epoch | undefined> {
      const row = await db
        .selectFrom('epochs')
        .selectAll()
        .where('device_id', '=', deviceId)
        .where('nonce', '=', nonce)
        .executeTakeFirst()
      return row === undefined ? undefined : epochOf(row)
    },
    /** When it last attached until `now`: later instants come from a clock that was ahead. */
    async lastAttached(deviceId: string, now: number): Promise<number | null> {
      const row = await db
        .selectFrom('epochs')
        .select((of) => of.fn.max('created_at').as('at'))
        .where('device_id', '=', deviceId)
        .where('created_at', '<=', BigInt(now))
        .where('nonce', 'is not', null)
        .executeTakeFirstOrThrow()
      return toNumber(row.at)
    },
    async attachedSince(deviceId: string, since: number): Promise<readonly number[]> {
      const rows = await db
        .selectFrom('epochs')
        .select('created_at')
        .where('device_id', '=', deviceId)
        .where('created_at', '>', BigInt(since))
        .where('nonce', 'is not', null)
        .orderBy('created_at')
        .execute()
      return rows.map(({ created_at }) => Number(created_at))
    },
    /**
     * The longest inactive epoch since before the instant: neither closed nor settled and, unless fenced, with
     * unaccounted tokens. None if the cloud was restored since then, or at a time that is not known yet.
     */
    async nextInactive(before: number): Promise<InactiveEpoch | undefined> {
      const row = await inactive(before).orderBy('quiet_since').limit(1).executeTakeFirst()
      return row === undefined
        ? undefined
        : { deviceId: row.device_id, number: Number(row.number), quietSince: Number(row.quiet_since) }
    },
    /** Devices to settle, inactive since before `before`, and those settled after `settledSince`. */
    async settlementLoad(before: number, settledSince: number): Promise<SettlementLoad> {
      const count = expression<bigint>`count(DISTINCT device_id)`.as('count')
      const due = await db.selectFrom(inactive(before).as('due')).select(count).executeTakeFirstOrThrow()
      const unsettled = await unsettledEpochs().select(count).executeTakeFirstOrThrow()
      const settled = await db
        .selectFrom('epochs')
        .select(count)
        .where('settled_at', 'is not', null)
        .where('settled_at', '>', BigInt(settledSince))
        .executeTakeFirstOrThrow()
      return { due: Number(due.count), unsettled: Number(unsettled.count), settled: Number(settled.count) }
    },
  }
}

const epochWithNumber = prepared((db) =>
  db.selectFrom('epochs').selectAll().where('device_id', '=', '').where('number', '=', 0n),
)

const notEndedBy = (column: 'device_id' | 'kept_by') =>
  expression`FROM sessions WHERE sessions.${expression.ref(column)} = epochs.device_id AND ${HAS_NOT_ENDED}`

const OWN_SESSIONS = expression<bigint>`(SELECT count(*) ${notEndedBy('device_id')})`
const KEEPS_SESSIONS = expression<boolean>`EXISTS (SELECT 1 ${notEndedBy('kept_by')})`
// Each half uses its column's index; OR would not.
const HAS_SESSIONS = asFlag(expression`EXISTS (SELECT 1 ${notEndedBy('device_id')}) OR ${KEEPS_SESSIONS}`)

const epochWithSessions = prepared((db) =>
  db
    .selectFrom('epochs')
    .selectAll()
    .select(HAS_SESSIONS.as('hasSessions'))
    .where('device_id', '=', '')
    .where('number', '=', 0n),
)

const given = (db: Sql['db'], count: number) =>
  db
    .selectFrom(tableOf(['TEXT', 'BIGINT'], count).as('given'))
    // SQLite joins in this order.
    .crossJoin('epochs')
    .where(expression<boolean>`epochs.device_id = given.column1 AND epochs.number = given.column2`)

const epochsWithSessionCount = prepared((db, count) =>
  given(db, count)
    .selectAll('epochs')
    .select([OWN_SESSIONS.as('ownSessions'), asFlag(KEEPS_SESSIONS).as('keepsSessions')]),
)

const lockedEpochs = prepared((db, count) =>
  given(db, count)
    .select('epochs.number')
    .orderBy('epochs.device_id')
    .orderBy('epochs.number')
    .forNoKeyUpdate('epochs'),
)

const updatedEpoch = preparedUpdate((db, columns) =>
  db.updateTable('epochs').set(columns).where('device_id', '=', '').where('number', '=', 0n),
)

const updatedEpochs = updates('epochs', ['device_id', 'number'])

export function epochTransaction(sql: Sql) {
  const { db, lockRows, ahead } = sql
  return {
    ...epochReader(sql),
    async insert(epoch: Epoch): Promise<void> {
      const { deviceId: device_id, number } = epoch
      await db
        .insertInto('epochs')
        .values({ device_id, number: BigInt(number), ...columnsOf(epoch) })
        .execute()
    },
    /** @param stored as it was read in this transaction: then only what differs is written */
    async save(epoch: Epoch, stored?: Epoch): Promise<void> {
      const columns = columnsOf(epoch)
      const changed = stored === undefined ? columns : changedOf(columnsOf(stored), columns)
      if (Object.keys(changed).length === 0) return
      await db.executeQuery(updatedEpoch(db, changed, [epoch.deviceId, BigInt(epoch.number)]))
    },
    /** As `save`. Locks them in sequence before: an update locks rows in any. */
    async saveSome(changes: readonly { readonly epoch: Epoch; readonly stored: Epoch }[]): Promise<void> {
      const rows = changes.map(({ epoch, stored }) => ({
        key: [epoch.deviceId, BigInt(epoch.number)],
        before: columnsOf(stored),
        after: columnsOf(epoch),
      }))
      for (const some of chunks(lockRows ? rows : [], 100)) {
        const listed = filledUp(some)
        const parameters = listed.flatMap(({ key }) => key)
        await ahead?.({ compile: () => lockedEpochs(db, parameters, listed.length) })
      }
      await updatedEpochs(db, rows)
    },
    /** Moves the start of inactivity of every unsettled epoch, and the last restore, at most to `latest`. */
    async moveInactivity(byMs: number, latest: number): Promise<void> {
      // As in `saveSome`.
      if (lockRows) {
        const open = db.selectFrom('epochs').select('number').where(IS_OPEN).where('settled_at', 'is', null)
        const locked = open.orderBy('device_id').orderBy('number').forNoKeyUpdate()
        await db
          .selectFrom(locked.as('locked'))
          .select((of) => of.fn.countAll().as('count'))
          .execute()
      }
      const moved = (column: string) => {
        const later = expression<bigint>`${expression.ref(column)} + ${BigInt(byMs)}`
        return expression<bigint>`CASE WHEN ${later} < ${BigInt(latest)} THEN ${later} ELSE ${BigInt(latest)} END`
      }
      await db
        .updateTable('epochs')
        .set({ quiet_since: moved('quiet_since') })
        .where(IS_OPEN)
        .where('settled_at', 'is', null)
        .execute()
      await db
        .updateTable('last_restore')
        .set({ at: moved('at') })
        .execute()
    },
  }
}

function columnsOf(epoch: Epoch): Omit<Row<'epochs'>, 'device_id' | 'number'> {
  return {
    status: epoch.status,
    created_at: BigInt(epoch.createdAt),
    fenced_at: toBigint(epoch.fencedAt),
    fence_reason: epoch.fenceReason,
    quiet_since: BigInt(epoch.quietSince),
    settlement: epoch.settlement,
    settled_at: toBigint(epoch.settledAt),
    forked: toFlag(epoch.forked),
    rejected: toFlag(epoch.rejected),
    grants_forgotten: toFlag(epoch.grantsForgotten),
    carried_on: toFlag(epoch.carriedOn),
    last_seq: BigInt(epoch.lastSeq),
    last_hash: epoch.lastHash,
    last_entry: BigInt(epoch.lastEntry),
    entry_head: epoch.entryHead,
    term: BigInt(epoch.term),
    recovery: BigInt(epoch.recovery),
    nonce: epoch.nonce,
    attach_answer: epoch.attachAnswer,
  }
}

function epochOf(row: Row<'epochs'>): Epoch {
  return {
    deviceId: row.device_id,
    number: Number(row.number),
    status: row.status,
    createdAt: Number(row.created_at),
    fencedAt: toNumber(row.fenced_at),
    fenceReason: row.fence_reason,
    quietSince: Number(row.quiet_since),
    settlement: row.settlement,
    settledAt: toNumber(row.settled_at),
    forked: row.forked === 1n,
    rejected: row.rejected === 1n,
    grantsForgotten: row.grants_forgotten === 1n,
    carriedOn: row.carried_on === 1n,
    lastSeq: Number(row.last_seq),
    lastHash: row.last_hash,
    lastEntry: Number(row.last_entry),
    entryHead: row.entry_head,
    term: Number(row.term),
    recovery: Number(row.recovery),
    nonce: row.nonce,
    attachAnswer: row.attach_answer,
  }
}
