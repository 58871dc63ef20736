/** Without an account's lock, skips rows locked by others. */
import type { Micro } from '../../../core/pricing/amount.ts'
import { sql as expression } from 'kysely'
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
import { LEFT } from './edge-accounts.ts'
import type { Lacking } from './fleet-figures.ts'
import { type Sql, chunks, filledUp, prepared, toBigint, toNumber } from './sql.ts'
import type { Row } from './tables.ts'

/** Null: not limited. */
const FREE = expression<bigint>`accounts.cap_target - accounts.withheld - accounts.charged - accounts.granted_out`

export function shortageReader({ db, fleet }: Sql) {
  return {
    /** Of each of these accounts with a shortage noted in this time. @param who the asking one's name */
    async of(
      accounts: readonly AccountId[],
      times: ShortTimes,
      who: string,
    ): Promise<ReadonlyMap<AccountId, Shortages>> {
      const { since, until, shortSince } = times
      const found = new Map<AccountId, Shortages>()
      for (const some of chunks([...new Set(accounts)])) {
        const known = new Map(some.map((account) => [account, fleet.lacking.get(account, until)?.value]))
        const unknown = some.filter((account) => known.get(account) === undefined)
        const noted = [who, BigInt(since), BigInt(until)]
        const [own, others] = await Promise.all([
          rowsOf(some, (listed) => db.executeQuery(ownOf(db, [...noted, ...listed], listed.length))),
          rowsOf(unknown, (listed) =>
            db.executeQuery(othersOf(db, [BigInt(shortSince), ...noted, ...listed], listed.length)),
          ),
        ])
        for (const row of own) found.set(row.account, { ...NO_SHORTAGES, own: shortageOf(row) })
        for (const [account, figure] of known) {
          if (figure !== undefined) found.set(account, without(figure, found.get(account)?.own, times))
        }
        for (const { account, lacking, devices, ...row } of others) {
          const own = found.get(account)?.own
          const recalledAt = Number(row.recalledAt)
          found.set(account, { own, othersLacking: lacking, othersRecalledAt: recalledAt })
          const ofAll = Math.max(recalledAt, own?.recalledAt ?? 0)
          const value = { lacking: lacking + currentOf(own, times), recalledAt: ofAll }
          fleet.lacking.set(account, { value, devices: Number(devices), at: until })
        }
      }
      return found
    },
    /** Recalls from the epoch for current shortages noted in this time; those furthest above their level first. */
    async recallsFrom(
      deviceId: string,
      epoch: number,
      { since, until }: NotedTimes,
      limit: number,
    ): Promise<readonly (Recall & { readonly available: Micro })[]> {
      const parameters = [deviceId, BigInt(since), BigInt(until), deviceId, BigInt(epoch), limit]
      return (await db.executeQuery(recallsOf(db, parameters))).rows
    },
    /** Devices short of a pool that has tokens again, and not notified since. */
    servable: (
      times: ServableTimes,
      limit: number,
    ): Promise<readonly { readonly account: AccountId; readonly who: string }[]> =>
      servable(db, times, limit).execute(),
  }
}

/** @returns the rows of a query for a list, filled up; without a query, none for an empty list */
async function rowsOf<T, R>(
  list: readonly T[],
  query: (listed: readonly T[]) => Promise<{ readonly rows: readonly R[] }>,
): Promise<readonly R[]> {
  return list.length === 0 ? [] : (await query(filledUp(list))).rows
}

const ownOf = prepared((db, count) =>
  db
    .selectFrom('shortages')
    .selectAll()
    .where('who', '=', '')
    .where('at', '>', 0n)
    .where('at', '<=', 0n)
    .where('account', 'in', Array<AccountId>(count).fill('')),
)

const othersOf = prepared((db, count) =>
  db
    .selectFrom('shortages')
    .select('account')
    .select(({ fn }) => [fn.max('recalled_at').as('recalledAt'), fn.countAll<bigint>().as('devices')])
    .select(
      expression<bigint>`CAST(sum(CASE WHEN keep IS NOT NULL AND at > ${0n} THEN lacking ELSE 0 END) AS BIGINT)`.as(
        'lacking',
      ),
    )
    .where('who', '<>', '')
    .where('at', '>', 0n)
    .where('at', '<=', 0n)
    .where('account', 'in', Array<AccountId>(count).fill(''))
    .where('recalled_at', 'is not', null)
    .groupBy('account'),
)

const recallsOf = prepared((db) => {
  // Many may be short of one account: the index names the lowest level without reading them all.
  const lowest = db
    .selectFrom('shortages')
    .select('shortages.keep')
    .where(expression<boolean>`shortages.account = device_accounts.account`)
    .where('shortages.recalled_at', 'is not', null)
    .where('shortages.keep', 'is not', null)
    .where('shortages.who', '<>', '')
    .where('shortages.at', '>', 0n)
    .where('shortages.at', '<=', 0n)
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
  return db
    .selectFrom(levels.as('levels'))
    .select(['account', 'available'])
    .select((of) => of.ref('keep').$castTo<bigint>().as('keep'))
    .where('keep', 'is not', null)
    .orderBy(expression`available - keep`, 'desc')
    .orderBy('account')
    .limit(0)
})

export function shortageTransaction(sql: Sql) {
  const { db, lockRows } = sql
  return {
    ...shortageReader(sql),
    /** Inserts or replaces the shortage of this account and name. Under the account's lock. */
    async save(shortage: Shortage): Promise<void> {
      const parsed = parseAccount(shortage.account)
      if (parsed === undefined) throw new Error('invariant: an account id is one that core made')
      const columns = {
        lacking: shortage.lacking,
        enough: shortage.enough,
        keep: shortage.keep,
        since: BigInt(shortage.since),
        at: BigInt(shortage.at),
        recalled_at: toBigint(shortage.recalledAt),
        notified_at: toBigint(shortage.notifiedAt),
      }
      await db
        .insertInto('shortages')
        .values({ account: shortage.account, who: shortage.who, ...columns })
        .onConflict((conflict) => conflict.columns(['account', 'who']).doUpdateSet(columns))
        .execute()
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
