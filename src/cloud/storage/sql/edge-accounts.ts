/** A CHECK constraint refuses spending above the grants. */
import { sql as expression } from 'kysely'
import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import {
  type DeviceAccountRecord,
  type Epoch,
  NOTHING_RETURNABLE,
  type Returnable,
  newDeviceAccount,
} from '../device-records.ts'
import {
  type Sql,
  asFlag,
  chunks,
  filledLength,
  filledUp,
  parts,
  prepared,
  repeated,
  replacing,
  rowsIn,
  tableOf,
  toFlag,
} from './sql.ts'
import type { Row } from './tables.ts'

/** Unspent tokens on the device. */
export const LEFT = expression<bigint>`device_accounts.granted - device_accounts.returned - device_accounts.used + device_accounts.refunded`

export const HAS_LEFT = expression<boolean>`device_accounts.granted - device_accounts.returned > device_accounts.used - device_accounts.refunded`

const RESERVED = expression<bigint>`CASE WHEN granted - returned - released > used - refunded + branch_used
  THEN granted - returned - released ELSE used - refunded + branch_used END`

export const ABOVE_CAP = expression<bigint>`accounts.charged + accounts.granted_out - accounts.cap_target`

function allOfEpoch(db: Sql['db'], deviceId = '', epoch = 0n) {
  return db
    .selectFrom('device_accounts')
    .selectAll('device_accounts')
    .where('device_accounts.device_id', '=', deviceId)
    .where('device_accounts.epoch', '=', epoch)
}

function withEpochs(db: Sql['db']) {
  return db
    .selectFrom('device_accounts')
    .innerJoin('epochs', (join) =>
      join
        .onRef('epochs.device_id', '=', 'device_accounts.device_id')
        .onRef('epochs.number', '=', 'device_accounts.epoch'),
    )
}

const recordsOfEpoch = prepared((db, count) => allOfEpoch(db).where('account', 'in', Array<AccountId>(count).fill('')))

const limitedOfEpoch = (db: Sql['db']) =>
  allOfEpoch(db)
    .innerJoin('accounts', 'accounts.id', 'device_accounts.account')
    .select(expression<bigint>`CAST(1 AS BIGINT)`.as('limited'))
    .where(expression<boolean>`device_accounts.metered = 1`)
    .where('accounts.cap_target', 'is not', null)
    .orderBy('device_accounts.unlimited', 'desc')
    .orderBy('device_accounts.account')
    .limit(0)

const onlyLimitedOfEpoch = prepared(limitedOfEpoch)

/** One statement for both: most epochs have no limited accounts. */
const someAndLimitedOfEpoch = prepared((db, count) =>
  allOfEpoch(db)
    .select(expression<bigint>`CAST(0 AS BIGINT)`.as('limited'))
    .where('account', 'in', Array<AccountId>(count).fill(''))
    .unionAll(db.selectFrom(limitedOfEpoch(db).as('limited_again')).selectAll()),
)

const IS_LIMITED = expression<boolean>`(device_accounts.metered = 1 AND accounts.cap_target IS NOT NULL)`

/** Whether a device or the cloud is short of the account. With EXISTS, PostgreSQL may read the shortages of all accounts. */
export function isShort(account: 'accounts.id' | 'device_accounts.account') {
  return expression<boolean>`(SELECT min(who) FROM shortages WHERE account = ${expression.ref(account)}) IS NOT NULL`
}

/** The account is above its cap, or is one that a device or the cloud is short of. */
const MAY_BE_RECALLED = expression<boolean>`(${ABOVE_CAP} > 0 OR ${isShort('device_accounts.account')})`

const listedOrMarked = prepared((db, count) =>
  db
    .selectFrom(tableOf(['TEXT', 'BIGINT'], count).as('given'))
    // SQLite joins in this order.
    .crossJoin('device_accounts')
    .innerJoin('accounts', 'accounts.id', 'device_accounts.account')
    .selectAll('device_accounts')
    .select([asFlag(IS_LIMITED).as('limited'), asFlag(MAY_BE_RECALLED).as('recalled')])
    .where(expression<boolean>`device_accounts.device_id = given.column1 AND device_accounts.epoch = given.column2`)
    .where((where) =>
      where.or([where('device_accounts.account', 'in', Array<AccountId>(count).fill('')), IS_LIMITED, MAY_BE_RECALLED]),
    ),
)

interface Sums extends Returnable {
  readonly devices: number
}

export function deviceAccountReader(sql: Sql) {
  const { db } = sql
  const ofEpoch = (deviceId: string, epoch: number) => allOfEpoch(db, deviceId, BigInt(epoch))
  const get = async (
    deviceId: string,
    epoch: number,
    accounts: readonly AccountId[],
  ): Promise<ReadonlyMap<AccountId, DeviceAccountRecord>> => {
    const records = new Map<AccountId, DeviceAccountRecord>()
    for (const some of chunks([...new Set(accounts)])) {
      const listed = filledUp(some)
      const query = recordsOfEpoch(db, [deviceId, BigInt(epoch), ...listed], listed.length)
      for (const row of (await db.executeQuery(query)).rows) records.set(row.account, recordOf(row))
    }
    return records
  }
  return {
    ...otherDevicesReader(sql),
    /** Those that exist. */
    get,
    /** By account. */
    async someOfEpoch(deviceId: string, epoch: number, limit: number): Promise<readonly DeviceAccountRecord[]> {
      return (await ofEpoch(deviceId, epoch).orderBy('account').limit(limit).execute()).map(recordOf)
    },
    async ofEpoch(deviceId: string, epoch: number): Promise<ReadonlyMap<AccountId, DeviceAccountRecord>> {
      const rows = await ofEpoch(deviceId, epoch).orderBy('account').execute()
      return new Map(rows.map((row) => [row.account, recordOf(row)]))
    },
    /** Of all epochs, without limits of requesters: there may be very many, and they count tokens of line items. */
    async ofDevice(deviceId: string): Promise<readonly DeviceAccountRecord[]> {
      const rows = await db
        .selectFrom('device_accounts')
        .selectAll()
        .where('device_id', '=', deviceId)
        .where('account', 'not like', 'limit/%')
        .orderBy('account')
        .orderBy('epoch')
        .execute()
      return rows.map(recordOf)
    },
    /** Of all epochs of all devices. */
    async ofAccounts(accounts: readonly AccountId[]): Promise<
      readonly {
        readonly record: DeviceAccountRecord
        readonly status: Epoch['status']
        readonly forked: boolean
      }[]
    > {
      const rows = await rowsIn(accounts, (some) =>
        withEpochs(db)
          .selectAll('device_accounts')
          .select(['epochs.status', 'epochs.forked'])
          .where('device_accounts.account', 'in', some)
          .orderBy('device_accounts.account')
          .orderBy('device_accounts.device_id')
          .orderBy('device_accounts.epoch'),
      )
      return rows.map((row) => ({
        record: recordOf(row),
        status: row.status,
        forked: row.forked === 1n,
      }))
    },
    /** How many {@link ofAccounts} returns of each. */
    async countsOf(accounts: readonly AccountId[]): Promise<ReadonlyMap<AccountId, number>> {
      const rows = await rowsIn(accounts, (some) =>
        db
          .selectFrom('device_accounts')
          .select(({ fn }) => ['account', fn.countAll<bigint>().as('count')])
          .where('account', 'in', some)
          .groupBy('account'),
      )
      return new Map(rows.map(({ account, count }) => [account, Number(count)]))
    },
    /**
     * Those of these accounts that exist, and metered accounts that have a limit by the current rules, those granted without
     * one first.
     */
    async getWithLimited(
      deviceId: string,
      epoch: number,
      accounts: readonly AccountId[],
      limit: number,
    ): Promise<{
      readonly records: ReadonlyMap<AccountId, DeviceAccountRecord>
      readonly limited: readonly DeviceAccountRecord[]
    }> {
      const [some = [], ...more] = chunks([...new Set(accounts)])
      const key = [deviceId, BigInt(epoch)]
      const listed = filledUp(some)
      const query =
        some.length === 0
          ? onlyLimitedOfEpoch(db, [...key, limit])
          : someAndLimitedOfEpoch(db, [...key, ...listed, ...key, limit], listed.length)
      const { rows } = await db.executeQuery(query)
      const records = new Map<AccountId, DeviceAccountRecord>()
      const limited: DeviceAccountRecord[] = []
      for (const { limited: isLimited, ...row } of rows) {
        if (isLimited === 1n) limited.push(recordOf(row))
        else records.set(row.account, recordOf(row))
      }
      for (const part of more)
        for (const [account, record] of await get(deviceId, epoch, part)) records.set(account, record)
      limited.sort(byUnlimited)
      return { records, limited }
    },
    /**
     * Of one epoch of each device: records of these accounts, by device. `limited`: devices with an account that is limited
     * again. `recalled`: devices that may have to return tokens.
     */
    async ofSome(
      epochs: readonly { readonly deviceId: string; readonly number: number }[],
      accounts: readonly AccountId[],
    ): Promise<{
      readonly records: ReadonlyMap<string, ReadonlyMap<AccountId, DeviceAccountRecord>>
      readonly limited: ReadonlySet<string>
      readonly recalled: ReadonlySet<string>
    }> {
      const records = new Map<string, Map<AccountId, DeviceAccountRecord>>()
      const limited = new Set<string>()
      const recalled = new Set<string>()
      const length = filledLength(Math.max(epochs.length, accounts.length))
      const keys = filledUp(epochs, length).flatMap(({ deviceId, number }) => [deviceId, BigInt(number)])
      const listed = accounts.length === 0 ? Array<AccountId>(length).fill('') : filledUp(accounts, length)
      const { rows } = await db.executeQuery(listedOrMarked(db, [...keys, ...listed], length))
      for (const { limited: isLimited, recalled: isRecalled, ...row } of rows) {
        const own = records.get(row.device_id) ?? new Map<AccountId, DeviceAccountRecord>()
        records.set(row.device_id, own.set(row.account, recordOf(row)))
        if (isLimited === 1n) limited.add(row.device_id)
        if (isRecalled === 1n) recalled.add(row.device_id)
      }
      return { records, limited, recalled }
    },
    async overspendOf(accounts: Iterable<AccountId>): Promise<ReadonlyMap<AccountId, Micro>> {
      const rows = await rowsIn([...accounts], (some) =>
        db
          .selectFrom('device_accounts')
          .select(['account', expression<bigint>`CAST(sum(overspend + branch_overspend) AS BIGINT)`.as('overspend')])
          .where('account', 'in', some)
          .groupBy('account'),
      )
      return new Map(rows.map(({ account, overspend }) => [account, overspend]))
    },
    /** Tokens that the pool reserves for the other epochs of the device: sums of `reservedOn`. */
    async reservedInOtherEpochs(
      { deviceId, number }: Pick<Epoch, 'deviceId' | 'number'>,
      accounts: Iterable<AccountId>,
    ): Promise<ReadonlyMap<AccountId, Micro>> {
      const rows = await rowsIn([...accounts], (some) =>
        db
          .selectFrom('device_accounts')
          .select(['account', expression<bigint>`CAST(sum(${RESERVED}) AS BIGINT)`.as('reserved')])
          .where('device_id', '=', deviceId)
          .where('epoch', '<>', BigInt(number))
          .where('account', 'in', some)
          .groupBy('account'),
      )
      return new Map(rows.map(({ account, reserved }) => [account, reserved]))
    },
    async hasLeft(deviceId: string, epoch: number): Promise<boolean> {
      const row = await ofEpoch(deviceId, epoch).where(HAS_LEFT).limit(1).executeTakeFirst()
      return row !== undefined
    },
  }
}

/** Queries about the balances of other devices in active epochs. */
function otherDevicesReader({ db, fleet }: Sql) {
  const active = () =>
    withEpochs(db)
      .innerJoin('devices', 'devices.id', 'device_accounts.device_id')
      .where(expression<boolean>`epochs.status = 'ACTIVE'`)
  /** Sums of all devices, or of one. */
  const sumsOf = async (
    accounts: readonly AccountId[],
    reportedSince: number,
    deviceId: string | null,
  ): Promise<ReadonlyMap<AccountId, Sums>> => {
    const inContact = expression<bigint>`CASE WHEN devices.last_sync_at > ${BigInt(reportedSince)} THEN ${LEFT} ELSE 0 END`
    const rows = await rowsIn(accounts, (some) => {
      const query = active()
        .select('device_accounts.account')
        .select(expression<bigint>`CAST(sum(${LEFT}) AS BIGINT)`.as('all'))
        .select(expression<bigint>`CAST(sum(${inContact}) AS BIGINT)`.as('inContact'))
        .select(({ fn }) => fn.countAll<bigint>().as('devices'))
        .where('device_accounts.account', 'in', some)
        .groupBy('device_accounts.account')
      return deviceId === null ? query : query.where('device_accounts.device_id', '=', deviceId)
    })
    return new Map(rows.map(({ account, ...sum }) => [account, { ...sum, devices: Number(sum.devices) }]))
  }
  return {
    /** Balances of those that reported since then, largest first. */
    async availableOfOthers(
      account: AccountId,
      except: string,
      reportedSince: number,
      limit: number,
    ): Promise<readonly { readonly deviceId: string; readonly available: Micro }[]> {
      const known = fleet.largest.get(account, reportedSince)
      if (known !== undefined) return known.value.filter(({ deviceId }) => deviceId !== except).slice(0, limit)
      const rows = await active()
        .select(['device_accounts.device_id', LEFT.as('available')])
        .where('device_accounts.account', '=', account)
        .where('devices.last_sync_at', '>', BigInt(reportedSince))
        .where(LEFT, '>', 0n)
        .orderBy('available', 'desc')
        .orderBy('device_accounts.device_id')
        .limit(limit + 1)
        .execute()
      const largest = rows.map((row) => ({ deviceId: row.device_id, available: row.available }))
      const devices = fleet.returnable.get(account, reportedSince)?.devices ?? 0
      fleet.largest.set(account, { value: largest, devices, at: reportedSince })
      return largest.filter(({ deviceId }) => deviceId !== except).slice(0, limit)
    },
    /** What they could return of each account. Without entry: nothing. */
    async returnable(
      accounts: readonly AccountId[],
      except: string,
      reportedSince: number,
    ): Promise<ReadonlyMap<AccountId, Returnable>> {
      if (accounts.length === 0) return new Map()
      const unknown = accounts.filter((account) => fleet.returnable.get(account, reportedSince) === undefined)
      const read = await sumsOf(unknown, reportedSince, null)
      for (const [account, value] of read) {
        fleet.returnable.set(account, { value, devices: value.devices, at: reportedSince })
      }
      const own = await sumsOf(except === '' ? [] : accounts, reportedSince, except)
      const found = new Map<AccountId, Returnable>()
      for (const account of accounts) {
        const sums = read.get(account) ?? fleet.returnable.get(account, reportedSince)?.value
        if (sums === undefined) continue
        const { all, inContact } = own.get(account) ?? NOTHING_RETURNABLE
        // A remembered sum may be less than the device has by now.
        found.set(account, {
          all: sums.all > all ? sums.all - all : 0n,
          inContact: sums.inContact > inContact ? sums.inContact - inContact : 0n,
        })
      }
      return found
    },
  }
}

export function deviceAccountTransaction(sql: Sql) {
  return {
    ...deviceAccountReader(sql),
    async save(records: readonly DeviceAccountRecord[]): Promise<void> {
      for (const some of parts(records.map(rowOf))) {
        const parameters = some.flatMap((row) => Object.values(row))
        await sql.db.executeQuery(saving(sql.db, parameters, some.length))
      }
    },
  }
}

/** Parameters follow the field sequence of {@link rowOf}. */
const saving = prepared((db, count) =>
  replacing(db, 'device_accounts', repeated(count, rowOf(newDeviceAccount('', 0, ''))), {
    key: ['device_id', 'epoch', 'account'],
  }),
)

/** A union does not promise the order of its parts. */
function byUnlimited(a: DeviceAccountRecord, b: DeviceAccountRecord): number {
  return Number(b.unlimited) - Number(a.unlimited) || (a.account < b.account ? -1 : 1)
}

function rowOf(record: DeviceAccountRecord): Row<'device_accounts'> {
  return {
    device_id: record.deviceId,
    epoch: BigInt(record.epoch),
    account: record.account,
    granted: record.granted,
    used: record.used,
    refunded: record.refunded,
    returned: record.returned,
    branch_used: record.branchUsed,
    overspend: record.overspend,
    branch_overspend: record.branchOverspend,
    presumed: record.presumed,
    released: record.released,
    unlimited: toFlag(record.unlimited),
    metered: toFlag(record.metered),
    was_metered: toFlag(record.wasMetered),
  }
}

function recordOf(row: Row<'device_accounts'>): DeviceAccountRecord {
  return {
    deviceId: row.device_id,
    epoch: Number(row.epoch),
    account: row.account,
    granted: row.granted,
    used: row.used,
    refunded: row.refunded,
    returned: row.returned,
    branchUsed: row.branch_used,
    overspend: row.overspend,
    branchOverspend: row.branch_overspend,
    presumed: row.presumed,
    released: row.released,
    unlimited: row.unlimited === 1n,
    metered: row.metered === 1n,
    wasMetered: row.was_metered === 1n,
  }
}
