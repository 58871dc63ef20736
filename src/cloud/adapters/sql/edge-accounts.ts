/** What incarnations hold of accounts, in SQL. The table itself refuses a row that has spent more than it was granted. */
import { sql as expression } from 'kysely'
import type { AccountId } from '../../../core/account.ts'
import type { Micro } from '../../../core/amount.ts'
import type { DeviceAccountRecord, Incarnation } from '../../app/edge/records.ts'
import type { EdgeReader, EdgeTransaction } from '../../app/edge/store.ts'
import { poolOf } from './accounts.ts'
import { type Sql, chunks, toFlag } from './sql.ts'
import type { Row } from './tables.ts'

export function deviceAccountReader({ db }: Sql): EdgeReader['deviceAccounts'] {
  const ofIncarnation = (deviceId: string, incarnation: number) =>
    db
      .selectFrom('device_accounts')
      .selectAll('device_accounts')
      .where('device_accounts.device_id', '=', deviceId)
      .where('device_accounts.incarnation', '=', BigInt(incarnation))
  const withRoom = (deviceId: string, incarnation: number) =>
    ofIncarnation(deviceId, incarnation).where(
      expression<boolean>`device_accounts.granted - device_accounts.returned > device_accounts.used - device_accounts.refunded`,
    )
  return {
    async get(deviceId, incarnation, accounts) {
      const records = new Map<AccountId, DeviceAccountRecord>()
      for (const some of chunks([...new Set(accounts)])) {
        const rows = await ofIncarnation(deviceId, incarnation).where('account', 'in', some).execute()
        for (const row of rows) records.set(row.account, recordOf(row))
      }
      return records
    },
    async ofIncarnation(deviceId, incarnation) {
      const rows = await ofIncarnation(deviceId, incarnation).orderBy('account').execute()
      return new Map(rows.map((row) => [row.account, recordOf(row)]))
    },
    async ofDevice(deviceId) {
      const rows = await db
        .selectFrom('device_accounts')
        .selectAll()
        .where('device_id', '=', deviceId)
        .orderBy('account')
        .orderBy('incarnation')
        .execute()
      return rows.map(recordOf)
    },
    async ofInstance(instanceId) {
      const rows = await db
        .selectFrom('accounts')
        .innerJoin('device_accounts', 'device_accounts.account', 'accounts.id')
        .innerJoin('incarnations', (join) =>
          join
            .onRef('incarnations.device_id', '=', 'device_accounts.device_id')
            .onRef('incarnations.number', '=', 'device_accounts.incarnation'),
        )
        .selectAll('device_accounts')
        .select(['incarnations.status', 'incarnations.forked'])
        .where('accounts.instance_id', '=', instanceId)
        .orderBy('device_accounts.account')
        .orderBy('device_accounts.device_id')
        .orderBy('device_accounts.incarnation')
        .execute()
      return rows.map((row) => ({
        record: recordOf(row),
        status: row.status as Incarnation['status'],
        forked: row.forked === 1n,
      }))
    },
    async limitedAgain(deviceId, incarnation, limit) {
      const rows = await ofIncarnation(deviceId, incarnation)
        .innerJoin('accounts', 'accounts.id', 'device_accounts.account')
        .where('device_accounts.metered', '=', 1n)
        .where('accounts.cap_target', 'is not', null)
        .orderBy('device_accounts.unlimited', 'desc')
        .orderBy('device_accounts.account')
        .limit(limit)
        .execute()
      return rows.map(recordOf)
    },
    async arrearsOf(accounts) {
      const sums = new Map<AccountId, Micro>()
      for (const some of chunks([...accounts])) {
        const rows = await db
          .selectFrom('device_accounts')
          .select(['account', expression<bigint>`CAST(sum(arrears + branch_arrears) AS BIGINT)`.as('arrears')])
          .where('account', 'in', some)
          .groupBy('account')
          .execute()
        for (const { account, arrears } of rows) sums.set(account, arrears)
      }
      return sums
    },
    async roomOfOthers(account, except, heardSince, limit) {
      const left = expression<bigint>`device_accounts.granted - device_accounts.returned - device_accounts.used + device_accounts.refunded`
      const rows = await db
        .selectFrom('device_accounts')
        .innerJoin('incarnations', (join) =>
          join
            .onRef('incarnations.device_id', '=', 'device_accounts.device_id')
            .onRef('incarnations.number', '=', 'device_accounts.incarnation'),
        )
        .innerJoin('devices', 'devices.id', 'device_accounts.device_id')
        .select(['device_accounts.device_id', left.as('room')])
        .where('device_accounts.account', '=', account)
        .where('device_accounts.device_id', '<>', except)
        .where('incarnations.status', '=', 'ACTIVE')
        .where('devices.last_sync_at', '>', BigInt(heardSince))
        .where(left, '>', 0n)
        .orderBy('room', 'desc')
        .orderBy('device_accounts.device_id')
        .limit(limit)
        .execute()
      return rows.map((row) => ({ deviceId: row.device_id, room: row.room }))
    },
    async hasRoom(deviceId, incarnation) {
      const row = await withRoom(deviceId, incarnation).limit(1).executeTakeFirst()
      return row !== undefined
    },
    async aboveCaps(deviceId, incarnation, limit) {
      const above = expression<bigint>`accounts.charged + accounts.granted_out - accounts.cap_target`
      return withRoom(deviceId, incarnation)
        .innerJoin('accounts', 'accounts.id', 'device_accounts.account')
        .select('device_accounts.account')
        .select(
          expression<bigint>`device_accounts.granted - device_accounts.returned - device_accounts.used + device_accounts.refunded`.as(
            'room',
          ),
        )
        .select(above.as('above'))
        .where(above, '>', 0n)
        .orderBy('device_accounts.account')
        .limit(limit)
        .execute()
    },
  }
}

export function deviceAccountTransaction(sql: Sql): EdgeTransaction['deviceAccounts'] {
  return {
    ...deviceAccountReader(sql),
    async save(records) {
      for (const some of chunks(records.map(rowOf), 50)) {
        await sql.db
          .insertInto('device_accounts')
          .values(some)
          .onConflict((conflict) =>
            conflict.columns(['device_id', 'incarnation', 'account']).doUpdateSet((excluded) => ({
              granted: excluded.ref('excluded.granted'),
              used: excluded.ref('excluded.used'),
              refunded: excluded.ref('excluded.refunded'),
              returned: excluded.ref('excluded.returned'),
              branch_used: excluded.ref('excluded.branch_used'),
              arrears: excluded.ref('excluded.arrears'),
              branch_arrears: excluded.ref('excluded.branch_arrears'),
              presumed: excluded.ref('excluded.presumed'),
              released: excluded.ref('excluded.released'),
              unlimited: excluded.ref('excluded.unlimited'),
              metered: excluded.ref('excluded.metered'),
            })),
          )
          .execute()
      }
    },
  }
}

export function poolsOf({ db }: Sql): EdgeReader['pools'] {
  return async (instanceId) => {
    const rows = await db
      .selectFrom('accounts')
      .selectAll()
      .where('instance_id', '=', instanceId)
      .orderBy('id')
      .execute()
    return rows.map(poolOf)
  }
}

function rowOf(record: DeviceAccountRecord): Row<'device_accounts'> {
  return {
    device_id: record.deviceId,
    incarnation: BigInt(record.incarnation),
    account: record.account,
    granted: record.granted,
    used: record.used,
    refunded: record.refunded,
    returned: record.returned,
    branch_used: record.branchUsed,
    arrears: record.arrears,
    branch_arrears: record.branchArrears,
    presumed: record.presumed,
    released: record.released,
    unlimited: toFlag(record.unlimited),
    metered: toFlag(record.metered),
  }
}

function recordOf(row: Row<'device_accounts'>): DeviceAccountRecord {
  return {
    deviceId: row.device_id,
    incarnation: Number(row.incarnation),
    account: row.account,
    granted: row.granted,
    used: row.used,
    refunded: row.refunded,
    returned: row.returned,
    branchUsed: row.branch_used,
    arrears: row.arrears,
    branchArrears: row.branch_arrears,
    presumed: row.presumed,
    released: row.released,
    unlimited: row.unlimited === 1n,
    metered: row.metered === 1n,
  }
}
