/** Rows are read under the lock of the rules, so they are current. */
import type { AccountId } from '../../../core/accounts/account.ts'
import type { PolicyRevision } from '../records.ts'
import { type Sql, chunks, filledUp, prepared, toBigint, toNumber } from './sql.ts'
import type { Row } from './tables.ts'

export function policyRevisionReader({ db }: Sql) {
  return {
    async get(instanceId: string): Promise<PolicyRevision | undefined> {
      const [row] = (await db.executeQuery(revisionWithId(db, [instanceId]))).rows
      return row === undefined ? undefined : revisionOf(row)
    },
    /** The revisions of the instances after this id, in the order of their ids. */
    async list(
      after: string,
      limit: number,
    ): Promise<readonly { readonly instanceId: string; readonly revision: number }[]> {
      const rows = await db
        .selectFrom('policy_revisions')
        .select(['instance_id', 'revision'])
        .where('instance_id', '>', after)
        .orderBy('instance_id')
        .limit(limit)
        .execute()
      return rows.map(({ instance_id, revision }) => ({ instanceId: instance_id, revision: Number(revision) }))
    },
    /** Instances whose calendars are due, or whose policy was bumped after `bumpedAfter` or by an engine below `engine`. */
    async due(
      { now, bumpedAfter, engine }: { readonly now: number; readonly bumpedAfter: number; readonly engine: number },
      limit: number,
    ): Promise<readonly string[]> {
      const rows = await db
        .selectFrom('policy_revisions')
        .select('instance_id')
        .where((eb) =>
          eb.or([
            eb('calendar_due', '<=', BigInt(now)),
            eb('bumped_at', '>', BigInt(bumpedAfter)),
            eb('engine', '<', BigInt(engine)),
          ]),
        )
        .orderBy('calendar_due')
        .limit(limit)
        .execute()
      return rows.map(({ instance_id }) => instance_id)
    },
  }
}

/** Most locks of one statement. */
const INSTANCES_MAX = 64

const revisionsWithIds = prepared((db, count) =>
  db
    .selectFrom('policy_revisions')
    .selectAll()
    .where('instance_id', 'in', Array<string>(count).fill(''))
    .orderBy('instance_id'),
)

const revisionWithId = prepared((db) => db.selectFrom('policy_revisions').selectAll().where('instance_id', '=', ''))

export function policyRevisionTransaction(sql: Sql, lockAhead: (accounts: readonly AccountId[]) => Promise<void>) {
  const { db, rules } = sql
  const reader = policyRevisionReader(sql)
  return {
    ...reader,
    /** Locks the instance's rules against a change. Decisions do this first. */
    async lockShared(instanceId: string): Promise<PolicyRevision | undefined> {
      await rules.lockShared(instanceId)
      return reader.get(instanceId)
    },
    /**
     * As `lockShared`, of several instances, in the sequence of their ids.
     * @param likely accounts that will probably be locked next: some stores lock them in the same round trip
     * @param beginReads called when all locks are requested: what it sends is answered under them
     */
    async lockSomeShared(
      instanceIds: readonly string[],
      likely: readonly AccountId[] = [],
      beginReads: () => void = () => undefined,
    ): Promise<readonly PolicyRevision[]> {
      const found: PolicyRevision[] = []
      const parts = [...chunks(instanceIds, INSTANCES_MAX)]
      for (const some of parts) await rules.lockShared(...filledUp(some))
      await lockAhead(likely)
      if (parts.length === 0) beginReads()
      for (const [index, some] of parts.entries()) {
        const listed = filledUp(some)
        const reading = db.executeQuery(revisionsWithIds(db, listed, listed.length))
        if (index === parts.length - 1) beginReads()
        found.push(...(await reading).rows.map(revisionOf))
      }
      return found
    },
    /** Locks the instance's rules for a change. Changes do this first. */
    async lock(instanceId: string): Promise<PolicyRevision | undefined> {
      await rules.lock(instanceId)
      return reader.get(instanceId)
    },
    /**
     * Turns shared locks into exclusive ones.
     * @throws WouldWait where transactions run at the same time: two that share the lock would wait for each other
     */
    upgrade: (instanceIds: readonly string[]): Promise<void> => rules.upgrade(...instanceIds),
    lockAll: (): Promise<void> => rules.lockAll(),
    /**
     * Bumps each revision by one, or above `beyond`, after `lockAll`. `bumpedAt` and `listedAt` become `now` if that is
     * later. The calendars stay due when they were: an earlier time is never wrong.
     * @param engine version of the cloud's engine
     */
    async bumpAll(now: number, engine: number, beyond = 0): Promise<void> {
      const [at, least] = [BigInt(now), BigInt(beyond)]
      await db
        .updateTable('policy_revisions')
        .set((expression) => ({
          revision: expression(
            expression.case().when('revision', '<', least).then(least).else(expression.ref('revision')).end(),
            '+',
            1n,
          ),
          bumped_at: expression.case().when('bumped_at', '<', at).then(at).else(expression.ref('bumped_at')).end(),
          engine: BigInt(engine),
          listed_at: expression.case().when('listed_at', '<', at).then(at).else(expression.ref('listed_at')).end(),
        }))
        .execute()
    },
    async insert(revision: PolicyRevision): Promise<void> {
      await rules.lockForInsert()
      await db
        .insertInto('policy_revisions')
        .values({ instance_id: revision.instanceId, ...columnsOf(revision) })
        .execute()
    },
    async save(revision: PolicyRevision): Promise<void> {
      await db
        .updateTable('policy_revisions')
        .set(columnsOf(revision))
        .where('instance_id', '=', revision.instanceId)
        .execute()
    },
  }
}

function columnsOf(revision: PolicyRevision) {
  return {
    revision: BigInt(revision.revision),
    bumped_at: BigInt(revision.bumpedAt),
    listed_at: BigInt(revision.listedAt),
    calendar_due: toBigint(revision.calendarDue),
    engine: BigInt(revision.engine),
  }
}

function revisionOf(row: Row<'policy_revisions'>): PolicyRevision {
  return {
    instanceId: row.instance_id,
    revision: Number(row.revision),
    bumpedAt: Number(row.bumped_at),
    listedAt: Number(row.listed_at),
    calendarDue: toNumber(row.calendar_due),
    engine: Number(row.engine),
  }
}

export function policyDocumentReader({ db }: Sql) {
  return {
    async get(instanceId: string, revision: number): Promise<string | undefined> {
      const row = await db
        .selectFrom('policy_documents')
        .select('document')
        .where('instance_id', '=', instanceId)
        .where('revision', '=', BigInt(revision))
        .executeTakeFirst()
      return row?.document
    },
  }
}

export function policyDocumentTransaction(sql: Sql) {
  const { db } = sql
  return {
    ...policyDocumentReader(sql),
    async removeAll(): Promise<void> {
      await db.deleteFrom('policy_documents').execute()
    },
    /** Keeps a revision's first document and deletes older revisions. */
    async save(instanceId: string, revision: number, document: string): Promise<void> {
      await db
        .deleteFrom('policy_documents')
        .where('instance_id', '=', instanceId)
        .where('revision', '<', BigInt(revision))
        .execute()
      await db
        .insertInto('policy_documents')
        .values({ instance_id: instanceId, revision: BigInt(revision), document })
        .onConflict((conflict) => conflict.columns(['instance_id', 'revision']).doNothing())
        .execute()
    },
  }
}
