/** Without an account's lock, skips rows locked by others. */
import type { Micro } from '../../../core/pricing/amount.ts'
import { type RawBuilder, sql as expression } from 'kysely'
import { parseAccount, type AccountId } from '../../../core/accounts/account.ts'
import {
  type NotedTimes,
  NO_SHORTAGES,
  type Recall,
  type ServableTimes,
  type ShortTimes,
  type Shortage,
  type Shortages,
} from '../device-records.ts'
import { ABOVE_CAP, HAS_LEFT, LEFT, isShort } from './edge-accounts.ts'
import type { Lacking } from './fleet-figures.ts'
import { type Sql, chunks, filledUp, prepared, rowsOf, toBigint, toNumber, upsert } from './sql.ts'
import type { Row } from './tables.ts'

const NONE = expression<bigint | null>`CAST(NULL AS BIGINT)`

/** Null: not limited. */
const FREE = expression<bigint>`accounts.cap_target - accounts.withheld - accounts.charged - accounts.granted_out`

/** Those furthest above their level first. */
export interface RecallsFrom {
  /** Accounts whose outstanding tokens exceed their cap: the balance of the epoch, and the excess. */
  readonly aboveCaps: readonly { readonly account: AccountId; readonly available: Micro; readonly above: Micro }[]
  /** For current shortages noted in the time. */
  readonly recalls: readonly (Recall & { readonly available: Micro })[]
}

export function shortageReader({ db, fleet }: Sql) {
  return {
    /** Of each of these accounts with a shortage noted in this time. @param who the asking one's name */
    async of(
      accounts: readonly AccountId[],
      times: ShortTimes,
      who: string,
    ): Promise<ReadonlyMap<AccountId, Shortages>> {
      const { since, until } = times
      const short = BigInt(times.shortSince)
      const found = new Map<AccountId, Shortages>()
      for (const some of chunks([...new Set(accounts)])) {
        const known = new Map(some.map((account) => [account, fleet.lacking.get(account, until)?.value]))
        const unknown = some.filter((account) => known.get(account) === undefined)
        const noted = [who, BigInt(since), BigInt(until)]
        const listed = filledUp(some)
        const others = filledUp(unknown, listed.length)
        const query =
          unknown.length === 0
            ? ownOf(db, [...noted, ...listed], listed.length)
            : allOf(db, [...noted, ...listed, short, short, ...noted, ...others], listed.length)
        const { rows } = await db.executeQuery(query)
        const own = rows.filter(({ devices }) => devices === null)
        for (const row of own) {
          found.set(row.account, { ...NO_SHORTAGES, own: shortageOf({ ...row, who }) })
        }
        for (const [account, figure] of known) {
          if (figure !== undefined) found.set(account, without(figure, found.get(account)?.own, times))
        }
        for (const { account, lacking: low, lacking_high: high, devices, recalled_at } of rows) {
          if (devices === null) continue
          const lacking = ((high ?? 0n) << 32n) + low
          const own = found.get(account)?.own
          const recalledAt = Number(recalled_at)
          found.set(account, { own, othersLacking: lacking, othersRecalledAt: recalledAt })
          const ofAll = Math.max(recalledAt, own?.recalledAt ?? 0)
          const value = { lacking: lacking + currentOf(own, times), recalledAt: ofAll }
          fleet.lacking.set(account, { value, devices: Number(devices), at: until })
        }
      }
      return found
    },
    /** Those of these accounts that have a shortage, of whatever age. */
    async among(accounts: readonly AccountId[]): Promise<ReadonlySet<AccountId>> {
      return new Set((await rowsOf(db, withShortages, accounts)).map(({ id }) => id))
    },
    /** What the epoch must return. */
    async recallsFrom(
      deviceId: string,
      epoch: number,
      { since, until }: NotedTimes,
      limit: number,
    ): Promise<RecallsFrom> {
      const ofEpoch = [deviceId, BigInt(epoch)]
      const parameters = [...ofEpoch, limit, deviceId, BigInt(since), BigInt(until), ...ofEpoch, limit]
      const { rows } = await db.executeQuery(recallsOf(db, parameters))
      const aboveCaps = rows.filter(({ keep }) => keep === null)
      return {
        aboveCaps: aboveCaps.map(({ account, available, above }) => ({ account, available, above })),
        recalls: rows.flatMap(({ account, available, keep }) => (keep === null ? [] : [{ account, available, keep }])),
      }
    },
    /** Devices short of a pool that has tokens again, and not notified since. */
    async servable(
      { now, since, notifiedBefore }: ServableTimes,
      limit: number,
    ): Promise<readonly { readonly account: AccountId; readonly who: string }[]> {
      const parameters = [BigInt(since), BigInt(now), BigInt(now), BigInt(notifiedBefore), limit]
      return (await db.executeQuery(firstServable(db, parameters))).rows
    },
  }
}

const firstServable = prepared((db) => servable(db, { now: 0, since: 0, notifiedBefore: 0 }, 0))

const withShortages = prepared((db, count) =>
  db
    .selectFrom('accounts')
    .select('id')
    .where('id', 'in', Array<AccountId>(count).fill(''))
    .where(isShort('accounts.id')),
)

/** Of the requester; `devices` is null. */
const ownRows = (db: Sql['db'], count: number) =>
  db
    .selectFrom('shortages')
    .select(['account', 'lacking', 'enough', 'keep', 'since', 'at', 'recalled_at', 'notified_at'])
    .select([NONE.as('lacking_high'), NONE.as('devices')])
    .where('who', '=', '')
    .where('at', '>', 0n)
    .where('at', '<=', 0n)
    .where('account', 'in', Array<AccountId>(count).fill(''))

const sumOfShort = (amount: RawBuilder<bigint>) =>
  expression<bigint>`CAST(sum(CASE WHEN keep IS NOT NULL AND at > ${0n} THEN ${amount} ELSE 0 END) AS BIGINT)`

/** Sums of the others, in the same columns. Their shortages together may need more than 64 bits: one sum for each half. */
const otherRows = (db: Sql['db'], count: number) =>
  db
    .selectFrom('shortages')
    .select('account')
    .select(sumOfShort(expression`(lacking & 4294967295)`).as('lacking'))
    .select(({ fn }) => [
      expression<bigint>`0`.as('enough'),
      NONE.as('keep'),
      expression<bigint>`0`.as('since'),
      expression<bigint>`0`.as('at'),
      fn.max('recalled_at').as('recalled_at'),
      NONE.as('notified_at'),
      expression<bigint | null>`${sumOfShort(expression`(lacking >> 32)`)}`.as('lacking_high'),
      expression<bigint | null>`count(*)`.as('devices'),
    ])
    .where('who', '<>', '')
    .where('at', '>', 0n)
    .where('at', '<=', 0n)
    .where('account', 'in', Array<AccountId>(count).fill(''))
    .where('recalled_at', 'is not', null)
    .groupBy('account')

const ownOf = prepared(ownRows)

/** One statement, in which each half uses its index. */
const allOf = prepared((db, count) => ownRows(db, count).unionAll(otherRows(db, count)))

/** One statement for both: most epochs have no rows of either. */
const recallsOf = prepared((db) => {
  // Many may be short of one account: the index names the lowest level without reading them all.
  const lowest = db
    .selectFrom('shortages')
    .select('shortages.keep')
    .where(expression<boolean>`shortages.account = device_accounts.account`)
    .where('shortages.recalled_at', 'is not', null)
    .where('shortages.keep', 'is not', null)
    .where('shortages.who', '<>', '')
    // The sum keeps PostgreSQL from reading all shortages of that time instead.
    .where(expression<bigint>`shortages.at + 0`, '>', 0n)
    .where(expression<bigint>`shortages.at + 0`, '<=', 0n)
    .where(expression<boolean>`${FREE} < shortages.enough`)
    .orderBy('shortages.keep')
    .limit(expression.lit(1))
  const levels = db
    .selectFrom('device_accounts')
    .innerJoin('accounts', 'accounts.id', 'device_accounts.account')
    .select(['device_accounts.account', lowest.as('keep'), LEFT.as('available')])
    .where('device_accounts.device_id', '=', '')
    .where('device_accounts.epoch', '=', 0n)
    .where(expression<boolean>`${LEFT} > 0`)
  const recalled = db
    // Looks for each level once, not wherever it is used.
    .with(
      (named) => named('levels').materialized(),
      () => levels,
    )
    .selectFrom('levels')
    .select(['account', 'available'])
    .select((of) => of.ref('keep').$castTo<bigint | null>().as('keep'))
    .select([expression<bigint>`0`.as('above'), expression<bigint>`keep - available`.as('rank')])
    .where('keep', 'is not', null)
    .orderBy('rank')
    .orderBy('account')
    .limit(0)
  const aboveCaps = db
    .selectFrom('device_accounts')
    .innerJoin('accounts', 'accounts.id', 'device_accounts.account')
    .select(['device_accounts.account', LEFT.as('available'), NONE.as('keep'), ABOVE_CAP.as('above')])
    .select(expression<bigint>`0`.as('rank'))
    .where('device_accounts.device_id', '=', '')
    .where('device_accounts.epoch', '=', 0n)
    .where(HAS_LEFT)
    .where(expression<boolean>`${ABOVE_CAP} > 0`)
    .orderBy('device_accounts.account')
    .limit(0)
  return db
    .selectFrom(aboveCaps.as('above_caps'))
    .selectAll()
    .unionAll(db.selectFrom(recalled.as('recalled')).selectAll())
    .orderBy('rank')
    .orderBy('account')
})

export function shortageTransaction(sql: Sql) {
  const { db, lockRows } = sql
  return {
    ...shortageReader(sql),
    /** Inserts or replaces the shortage of this account and name. Under the account's lock. */
    async save(shortage: Shortage): Promise<void> {
      const parsed = parseAccount(shortage.account)
      if (parsed === undefined) throw new Error('invariant: an account id is one that core made')
      await upsert(
        db,
        'shortages',
        { account: shortage.account, who: shortage.who },
        {
          lacking: shortage.lacking,
          enough: shortage.enough,
          keep: shortage.keep,
          since: BigInt(shortage.since),
          at: BigInt(shortage.at),
          recalled_at: toBigint(shortage.recalledAt),
          notified_at: toBigint(shortage.notifiedAt),
        },
      )
    },
    /** Ids of some `servable` devices, which count as notified at `now`. */
    async takeServable(times: ServableTimes, limit: number): Promise<readonly string[]> {
      const query = servable(db, times, limit)
      const rows = await (lockRows ? query.forNoKeyUpdate('shortages').skipLocked() : query).execute()
      for (const { account, who } of rows) {
        await db
          .updateTable('shortages')
          .set({ notified_at: BigInt(times.now) })
          .where('account', '=', account)
          .where('who', '=', who)
          .execute()
      }
      return [...new Set(rows.map(({ who }) => who))]
    },
    /** Removes some noted before `before` or after `after`. */
    async forget({ before, after }: { readonly before: number; readonly after: number }, limit: number): Promise<void> {
      const query = db
        .selectFrom('shortages')
        .select(['account', 'who'])
        .where((where) => where.or([where('at', '<', BigInt(before)), where('at', '>', BigInt(after))]))
        .limit(limit)
      const rows = await (lockRows ? query.forUpdate().skipLocked() : query).execute()
      for (const { account, who } of rows) {
        await db.deleteFrom('shortages').where('account', '=', account).where('who', '=', who).execute()
      }
    },
  }
}

/**
 * Excludes accounts of a restored cloud with unknown sales. Instants after `now` come from a clock that was ahead: such
 * shortages are skipped, such notifications ignored.
 */
function servable(db: Sql['db'], { now, since, notifiedBefore }: ServableTimes, limit: number) {
  return db
    .selectFrom('shortages')
    .innerJoin('accounts', 'accounts.id', 'shortages.account')
    .innerJoin('devices', 'devices.id', 'shortages.who')
    .select(['shortages.account', 'shortages.who'])
    .where('shortages.at', '>', BigInt(since))
    .where('shortages.at', '<=', BigInt(now))
    .where((where) =>
      where.or([
        where('shortages.notified_at', 'is', null),
        where('shortages.notified_at', '>', BigInt(now)),
        where.and([
          where('shortages.notified_at', '<=', BigInt(notifiedBefore)),
          where('shortages.notified_at', '<', where.ref('shortages.at')),
        ]),
      ]),
    )
    .where((where) =>
      where.or([where('accounts.cap_target', 'is', null), expression<boolean>`${FREE} >= shortages.enough`]),
    )
    .where((where) =>
      where.not(
        where.exists(
          where
            .selectFrom('recoveries')
            .select('recoveries.since')
            .whereRef('recoveries.instance_id', '=', 'accounts.instance_id')
            .where('recoveries.ended_at', 'is', null)
            .where('recoveries.unproven', 'is not', null),
        ),
      ),
    )
    .orderBy('shortages.at')
    .orderBy('shortages.who')
    .limit(limit)
}

/** What the shortage counts among those that `Lacking` sums up. */
function currentOf(shortage: Shortage | undefined, { shortSince }: ShortTimes): Micro {
  if (shortage === undefined || shortage.recalledAt === null || shortage.keep === null) return 0n
  return shortage.at > shortSince ? shortage.lacking : 0n
}

/** A remembered sum may be less than the shortage of the asking one by now. */
function without({ lacking, recalledAt }: Lacking, own: Shortage | undefined, times: ShortTimes): Shortages {
  const others = lacking - currentOf(own, times)
  return { own, othersLacking: others > 0n ? others : 0n, othersRecalledAt: recalledAt }
}

function shortageOf(row: Row<'shortages'>): Shortage {
  return {
    account: row.account,
    who: row.who,
    lacking: row.lacking,
    enough: row.enough,
    keep: row.keep,
    since: Number(row.since),
    at: Number(row.at),
    recalledAt: toNumber(row.recalled_at),
    notifiedAt: toNumber(row.notified_at),
  }
}
