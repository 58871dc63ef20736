/** Cursors of sinks, and the events that they have rejected. */
import { type DeadLetter, DEAD_LETTERS_MAX, type SinkLease, type SinkState } from '../records.ts'
import { type Sql, countOf, toNumber, upsert } from './sql.ts'
import type { Row } from './tables.ts'

export function eventSinkReader({ db }: Sql) {
  const deadLetters = (sink: string) => db.selectFrom('dead_letters').selectAll().where('sink', '=', sink)
  return {
    async list(): Promise<readonly SinkState[]> {
      const rows = await db.selectFrom('event_sinks').selectAll().orderBy('name').execute()
      const counts = await db
        .selectFrom('dead_letters')
        .select((of) => ['sink', of.fn.countAll<bigint>().as('count')])
        .groupBy('sink')
        .execute()
      return rows.map((row) => stateOf(row, Number(counts.find(({ sink }) => sink === row.name)?.count ?? 0n)))
    },
    /** Null: the sink has not started yet. */
    async next(name: string): Promise<Pick<SinkState, 'position' | 'retryAt'> | null> {
      const row = await db
        .selectFrom('event_sinks')
        .select(['position', 'retry_at'])
        .where('name', '=', name)
        .executeTakeFirst()
      return row === undefined ? null : { position: row.position, retryAt: toNumber(row.retry_at) }
    },
    /** Oldest first. */
    async deadLetters(sink: string, after: bigint, limit: number): Promise<readonly DeadLetter[]> {
      const rows = await deadLetters(sink).where('position', '>', after).orderBy('position').limit(limit).execute()
      return rows.map(deadLetterOf)
    },
    async nextReplayed(sink: string): Promise<DeadLetter | undefined> {
      const row = await deadLetters(sink).where('replayed', '=', 1n).orderBy('position').limit(1).executeTakeFirst()
      return row === undefined ? undefined : deadLetterOf(row)
    },
    /** Sinks still need the records after this position; null: there are no sinks. */
    async neededAfter(): Promise<bigint | null> {
      const { position } = await db
        .selectFrom('event_sinks')
        .select((of) => of.fn.min<bigint | null>('position').as('position'))
        .executeTakeFirstOrThrow()
      const dead = await db
        .selectFrom('dead_letters')
        .select((of) => of.fn.min<bigint | null>('position').as('position'))
        .executeTakeFirstOrThrow()
      return dead.position !== null && position !== null && dead.position <= position ? dead.position - 1n : position
    },
  }
}

const NO_PROBLEM = { failing_since: null, problem: null, retry_at: null }

export interface SinkCursor {
  readonly position: bigint
  /** POSIX ms; 0: never. */
  readonly deliveredAt: number
}

export function eventSinkTransaction(sql: Sql) {
  const { db, lockRows } = sql
  const leased = (name: string, by: string) =>
    db.updateTable('event_sinks').where('name', '=', name).where('leased_by', '=', by)
  const reader = eventSinkReader(sql)
  /** Of all sinks. Until the transaction ends, none moves. */
  const lockCursors = async (): Promise<readonly SinkCursor[]> => {
    const query = db.selectFrom('event_sinks').select(['position', 'delivered_at']).orderBy('name')
    const rows = await (lockRows ? query.forUpdate() : query).execute()
    return rows.map(({ position, delivered_at }) => ({ position, deliveredAt: Number(delivered_at ?? 0n) }))
  }
  return {
    ...reader,
    /**
     * Reserves the sink for a node.
     * @param start position of a new sink
     * @returns its position; null: another node has it
     */
    async claim(name: string, { by, now, until }: SinkLease, start: () => Promise<bigint>): Promise<bigint | null> {
      const lease = { leased_by: by, leased_until: BigInt(until) }
      const query = db.selectFrom('event_sinks').selectAll().where('name', '=', name)
      const row = await (lockRows ? query.forUpdate() : query).executeTakeFirst()
      if (row === undefined) {
        const none = { delivered_at: null, ...NO_PROBLEM }
        const made = await db
          .insertInto('event_sinks')
          .values({ name, position: await start(), ...lease, ...none })
          .onConflict((conflict) => conflict.column('name').doNothing())
          .returning('position')
          .executeTakeFirst()
        return made?.position ?? null
      }
      // No valid lease is longer: this one was made when the clock was ahead.
      const isOthers = row.leased_until > BigInt(now) && row.leased_until <= BigInt(2 * until - now)
      if (row.leased_by !== by && isOthers) return null
      await db.updateTable('event_sinks').set(lease).where('name', '=', name).execute()
      return row.position
    },
    /** As {@link reader.neededAfter}. Until the transaction ends, no sink moves. */
    async lockNeededAfter(): Promise<bigint | null> {
      await lockCursors()
      return reader.neededAfter()
    },
    lockCursors,
    /** When events after the one position, up to the other, became dead letters. POSIX ms by position. */
    async deadWithin(after: bigint, upTo: bigint): Promise<ReadonlyMap<bigint, number>> {
      const rows = await db
        .selectFrom('dead_letters')
        .select(['position', 'at'])
        .where('position', '>', after)
        .where('position', '<=', upTo)
        .orderBy('at')
        .execute()
      return new Map(rows.map(({ position, at }) => [position, Number(at)]))
    },
    /** Until the transaction ends, the sink does not move, and nothing is archived. Null: it has not started yet. */
    async lockPosition(name: string): Promise<bigint | null> {
      const query = db.selectFrom('event_sinks').select('position').where('name', '=', name)
      return (await (lockRows ? query.forUpdate() : query).executeTakeFirst())?.position ?? null
    },
    /** Also ends the pause after a failed attempt: the settings of the node may be the reason. */
    async release(name: string, by: string): Promise<void> {
      await leased(name, by).set({ leased_until: 0n, retry_at: null }).execute()
    },
    /** Extends the lease. False: another node has the sink, or an administrator has moved it. */
    async move(name: string, { by, now, until }: SinkLease, from: bigint, to: bigint): Promise<boolean> {
      const moved = await leased(name, by)
        .where('position', '=', from)
        .set({ position: to, leased_until: BigInt(until), delivered_at: BigInt(now), ...NO_PROBLEM })
        .returning('name')
        .execute()
      return moved.length === 1
    },
    /** Without a change of the position: a dead letter was sent again. */
    async respond(name: string, { by, now }: SinkLease): Promise<void> {
      await leased(name, by)
        .set({ delivered_at: BigInt(now), ...NO_PROBLEM })
        .execute()
    },
    async fail(name: string, { by, now }: SinkLease, problem: string, retryAt: number): Promise<void> {
      await leased(name, by)
        .set((of) => ({
          failing_since: of.fn.coalesce('failing_since', of.val(BigInt(now))),
          problem,
          retry_at: BigInt(retryAt),
        }))
        .execute()
    },
    /** Ends the pause after a failed attempt. */
    async retry(name: string): Promise<void> {
      await db.updateTable('event_sinks').set({ retry_at: null }).where('name', '=', name).execute()
    },
    async countDeadLetters(sink: string): Promise<number> {
      const some = db.selectFrom('dead_letters').select('sink').where('sink', '=', sink).limit(DEAD_LETTERS_MAX)
      return countOf(db.selectFrom(some.as('some')))
    },
    async addDeadLetter(sink: string, { position, eventId, type, problem, at }: DeadLetter): Promise<void> {
      const columns = { event_id: eventId, type, problem, at: BigInt(at), replayed: 0n }
      await upsert(db, 'dead_letters', { sink, position }, columns)
    },
    /** It was rejected again, unless an administrator has discarded it: then it may be archived. */
    async keepDeadLetter(sink: string, { position, problem, at }: DeadLetter): Promise<void> {
      await db
        .updateTable('dead_letters')
        .set({ problem, at: BigInt(at), replayed: 0n })
        .where('sink', '=', sink)
        .where('position', '=', position)
        .execute()
    },
    /** It was delivered. */
    async removeDeadLetter(sink: string, position: bigint): Promise<void> {
      await db.deleteFrom('dead_letters').where('sink', '=', sink).where('position', '=', position).execute()
    },
    async moveTo(name: string, position: bigint): Promise<void> {
      await db.updateTable('event_sinks').set({ position }).where('name', '=', name).execute()
    },
    async replayDeadLetters(sink: string): Promise<void> {
      await db.updateTable('dead_letters').set({ replayed: 1n }).where('sink', '=', sink).execute()
    },
    async discardDeadLetters(sink: string): Promise<void> {
      await db.deleteFrom('dead_letters').where('sink', '=', sink).execute()
    },
    async forget(name: string): Promise<void> {
      await db.deleteFrom('dead_letters').where('sink', '=', name).execute()
      await db.deleteFrom('event_sinks').where('name', '=', name).execute()
    },
  }
}

function stateOf(row: Row<'event_sinks'>, deadLetters: number): SinkState {
  return {
    name: row.name,
    position: row.position,
    deliveredAt: toNumber(row.delivered_at),
    failingSince: toNumber(row.failing_since),
    problem: row.problem,
    retryAt: toNumber(row.retry_at),
    deadLetters,
  }
}

function deadLetterOf(row: Row<'dead_letters'>): DeadLetter {
  return {
    position: row.position,
    eventId: row.event_id,
    type: row.type,
    problem: row.problem,
    at: Number(row.at),
  }
}
