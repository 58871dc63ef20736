/** A CHECK constraint enforces the invariant of a pool. */
import type { Micro } from '../../../core/pricing/amount.ts'
import { sql as statement } from 'kysely'
import { type AccountId, isLineAccount, lineAccount, parseAccount } from '../../../core/accounts/account.ts'
import { newPool } from '../../accounts/pool.ts'
import type { Pool } from '../records.ts'
import {
  type Sql,
  chunks,
  WouldWait,
  filledUp,
  isLockNotAvailable,
  parts,
  prepared,
  repeated,
  replacing,
} from './sql.ts'
import type { Row } from './tables.ts'

export function accountReader(sql: Sql) {
  return {
    /** Those that exist. */
    get: (accounts: readonly AccountId[]): Promise<ReadonlyMap<AccountId, Pool>> => select(sql, accounts, 'NONE'),
    async ofInstance(instanceId: string): Promise<readonly Pool[]> {
      return (await ofInstance(sql, instanceId).orderBy('id').execute()).map(poolOf)
    },
    /** By line item, in the order of the index. */
    async page(instanceId: string, offset: number, limit: number): Promise<readonly Pool[]> {
      const inOrder = ofInstance(sql, instanceId).orderBy('line_item_id').orderBy('limit_period').orderBy('id')
      return (await inOrder.offset(offset).limit(limit).execute()).map(poolOf)
    },
    /** Pools by period, allocations of actions, limits of requesters. */
    async ofLineItem(instanceId: string, lineItemId: string): Promise<readonly Pool[]> {
      return (await ofLineItem(sql, instanceId, lineItemId).orderBy('id').execute()).map(poolOf)
    },
    /**
     * As `ofLineItem`; of the limits of requesters only those from this period on whose cap differs from this one: each
     * requester adds one in each period.
     */
    async toRetarget(
      instanceId: string,
      lineItemId: string,
      limits: { readonly from: number; readonly unlike: Micro },
    ): Promise<readonly Pool[]> {
      const later = ofLineItem(sql, instanceId, lineItemId)
        .where('limit_period', '>=', BigInt(limits.from))
        .where('cap_target', '<>', limits.unlike)
      const others = ofLineItem(sql, instanceId, lineItemId).where('limit_period', 'is', null)
      const rows = await others.unionAll(later).execute()
      return rows.map(poolOf)
    },
  }
}

function ofInstance({ db }: Sql, instanceId: string) {
  return db.selectFrom('accounts').selectAll().where('instance_id', '=', instanceId)
}

function ofLineItem(sql: Sql, instanceId: string, lineItemId: string) {
  return ofInstance(sql, instanceId).where('line_item_id', '=', lineItemId)
}

/** The accounts that a transaction has locked. It waits only for later ones, so no two transactions wait for each other. */
class HeldLocks {
  readonly #accounts = new Set<AccountId>()
  #last: AccountId | undefined

  get isEmpty(): boolean {
    return this.#last === undefined
  }

  add(accounts: Iterable<AccountId>): void {
    for (const account of accounts) {
      this.#accounts.add(account)
      if (this.#last === undefined || lockOrder(this.#last, account) < 0) this.#last = account
    }
  }

  mayWaitFor(accounts: readonly AccountId[]): boolean {
    const last = this.#last
    return last === undefined || accounts.every((each) => this.#accounts.has(each) || lockOrder(last, each) < 0)
  }
}

/** @returns the accessor, and a function that locks accounts ahead of the statement before their `lock` */
export function accountTransaction(sql: Sql) {
  const { db, lockRows } = sql
  const locks = new HeldLocks()
  /** Waits only for accounts after the last locked one; an earlier one must be free. */
  const lockPools = async (accounts: readonly AccountId[]): Promise<Map<AccountId, Pool>> => {
    if (!lockRows) return select(sql, accounts, 'NONE')
    const known = takeAhead(accounts)
    const others = accounts.filter((account) => !known.requested.has(account))
    const pools = await select(sql, others, locks.mayWaitFor(others) ? 'WAIT' : 'NO_WAIT')
    locks.add(pools.keys())
    for (const [account, pool] of known.pools) pools.set(account, pool)
    return pools
  }
  let ahead: { readonly requested: ReadonlySet<AccountId>; readonly rows: () => readonly Row<'accounts'>[] } | undefined
  const lockAhead = async (accounts: readonly AccountId[]): Promise<void> => {
    const [some, more] = chunks([...new Set(accounts)].sort(lockOrder))
    if (sql.ahead === null || some === undefined || more !== undefined) return
    // Waiting is safe only after all existing locks.
    if (!locks.isEmpty || ahead !== undefined) return
    ahead = { requested: new Set(some), rows: await sql.ahead({ compile: () => locking(db, some, 'WAIT') }) }
  }
  /** Accounts locked ahead. Valid immediately: later, the transaction may have changed them. */
  const takeAhead = (wanted: readonly AccountId[]) => {
    const pools = new Map<AccountId, Pool>()
    const requested = new Set<AccountId>()
    if (ahead === undefined) return { requested, pools }
    const rows = new Map(ahead.rows().map((row) => [row.id, row]))
    locks.add(rows.keys())
    for (const account of wanted) {
      if (!ahead.requested.has(account)) continue
      requested.add(account)
      const row = rows.get(account)
      if (row !== undefined) pools.set(account, poolOf(row))
    }
    ahead = undefined
    return { requested, pools }
  }
  /** Inserts or locks in the given sequence: one created meanwhile by another transaction is locked in turn. */
  const insert = async (rows: readonly Row<'accounts'>[]): Promise<readonly Row<'accounts'>[]> => {
    const ids = rows.map(({ id }) => id)
    const mayWait = !lockRows || locks.mayWaitFor(ids)
    const made: Row<'accounts'>[] = []
    for (const some of chunks(rows, 50)) {
      const inserting = db
        .insertInto('accounts')
        .values(some)
        .onConflict((conflict) =>
          conflict.column('id').doUpdateSet((excluded) => ({ id: excluded.ref('excluded.id') })),
        )
        .returningAll()
      made.push(...(await (mayWait ? inserting.execute() : withoutWaiting(sql, () => inserting.execute()))))
    }
    if (lockRows) locks.add(ids)
    return made
  }
  const accounts = {
    ...accountReader(sql),
    /** Locks and reads those that exist, by id. */
    lock: (accounts: readonly AccountId[]): Promise<ReadonlyMap<AccountId, Pool>> => lockPools(accounts),
    /** Like `lock`; creates missing ones with zero counters and this cap (null: metered only). */
    async open(wanted: readonly { account: AccountId; cap: Micro | null }[]): Promise<ReadonlyMap<AccountId, Pool>> {
      const accounts = wanted.map(({ account }) => account)
      const pools = await lockPools(accounts)
      const missing = new Map(wanted.filter(({ account }) => !pools.has(account)).map((each) => [each.account, each]))
      if (missing.size === 0) return pools
      // An insert waits for another one of the same id, so the sequence matters here too.
      const rows = [...missing.keys()]
        .sort(lockOrder)
        .map((account) => rowOf(newPool(account, missing.get(account)?.cap ?? null)))
      for (const row of await insert(rows)) pools.set(row.id, poolOf(row))
      return pools
    },
    async save(pools: readonly Pool[]): Promise<void> {
      for (const some of parts(pools.map(rowOf))) {
        const parameters = some.flatMap((row) => Object.values(row))
        await db.executeQuery(saving(db, parameters, some.length))
      }
    },
  }
  return { accounts, lockAhead }
}

/** Parameters follow the field sequence of {@link rowOf}. */
const saving = prepared((db, count) =>
  replacing(db, 'accounts', repeated(count, rowOf(newPool(lineAccount('', '', 0), 0n))), {
    key: ['id'],
    fixed: ['instance_id', 'line_item_id', 'limit_period'],
  }),
)

/**
 * Line item pools first: users of an allocation or limit also use its line item, so two that create the same account
 * have met there.
 */
function lockOrder(a: AccountId, b: AccountId): number {
  const [first, second] = [isLineAccount(a), isLineAccount(b)]
  if (first !== second) return first ? -1 : 1
  if (a === b) return 0
  return a < b ? -1 : 1
}

/** An insert waits for another one of the same id and has no NOWAIT. */
async function withoutWaiting<T>({ db }: Sql, insert: () => Promise<T>): Promise<T> {
  const before = await statement<{ timeout: string }>`
    SELECT current_setting('lock_timeout') AS timeout, set_config('lock_timeout', '1', true)`.execute(db)
  const made = await insert().catch((error: unknown) => {
    throw isLockNotAvailable(error) ? new WouldWait(error) : error
  })
  await statement`SELECT set_config('lock_timeout', ${before.rows[0]?.timeout ?? '0'}, true)`.execute(db)
  return made
}

/** Sorted, to avoid deadlocks. */
async function select({ db }: Sql, accounts: readonly AccountId[], how: Locking): Promise<Map<AccountId, Pool>> {
  const pools = new Map<AccountId, Pool>()
  for (const some of chunks([...new Set(accounts)].sort(lockOrder))) {
    const { rows } = await db.executeQuery(locking(db, some, how)).catch((error: unknown) => {
      throw how === 'NO_WAIT' && isLockNotAvailable(error) ? new WouldWait(error) : error
    })
    for (const row of rows) pools.set(row.id, poolOf(row))
  }
  return pools
}

type Locking = 'NONE' | 'WAIT' | 'NO_WAIT'

function locking(db: Sql['db'], accounts: readonly AccountId[], how: Locking) {
  const ids = filledUp(accounts)
  return LOCKING[how](db, ids, ids.length)
}

const listing = (db: Sql['db'], count: number) =>
  db.selectFrom('accounts').selectAll().where('id', 'in', Array<AccountId>(count).fill(''))

const listingLocked = (db: Sql['db'], count: number) =>
  listing(db, count)
    .orderBy(statement<boolean>`id NOT LIKE 'line/%'`)
    .orderBy('id')
    .forNoKeyUpdate()

const LOCKING = {
  NONE: prepared(listing),
  WAIT: prepared(listingLocked),
  NO_WAIT: prepared((db, count) => listingLocked(db, count).noWait()),
}

function rowOf(pool: Pool): Row<'accounts'> {
  const parsed = parseAccount(pool.account)
  if (parsed === undefined) throw new Error('invariant: an account id is one that core made')
  return {
    id: pool.account,
    instance_id: parsed.instanceId,
    line_item_id: parsed.lineItemId,
    limit_period: parsed.kind === 'limit' ? BigInt(parsed.period) : null,
    charged: pool.charged,
    granted_out: pool.grantedOut,
    claimed: pool.claimed,
    billed_by_devices: pool.billedByDevices,
    sold: pool.sold,
    withheld: pool.withheld,
    cap_target: pool.capTarget,
    cap_in_force: pool.capInForce,
    cap_highest: pool.capHighest,
  }
}

function poolOf(row: Row<'accounts'>): Pool {
  return {
    account: row.id,
    charged: row.charged,
    grantedOut: row.granted_out,
    claimed: row.claimed,
    billedByDevices: row.billed_by_devices,
    sold: row.sold,
    withheld: row.withheld,
    capTarget: row.cap_target,
    capInForce: row.cap_in_force,
    capHighest: row.cap_highest,
  }
}
