import { randomUUID } from 'node:crypto'
import { inspect } from 'node:util'
import { sql } from 'kysely'
import pg from 'pg'
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { newSession } from '../../../src/core/sessions/session.ts'
import { transactionsOver } from '../../../src/cloud/storage/postgres/dialect.ts'
import { coded } from '../../../src/cloud/storage/postgres/failures.ts'
import { databaseAddress } from '../../../src/cloud/storage/postgres/hosts.ts'
import { LIMITS, type Limits } from '../../../src/cloud/storage/postgres/limits.ts'
import { openPool } from '../../../src/cloud/storage/postgres/pool.ts'
import { openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { deleteKey, saveKeys } from '../../../src/cloud/service-api/change-keys.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import { charge, free } from '../../../src/cloud/accounts/pool.ts'
import { changeRules, changeSharedRules } from '../../../src/cloud/policy/bump-policy-revision.ts'
import type { Store, Transaction } from '../../../src/cloud/storage/store.ts'
import { newEpoch } from '../../../src/cloud/devices/epochs.ts'
import { deviceEvent } from '../../../src/cloud/events/device-event.ts'
import { USAGE_ROW_POSITIONS } from '../../../src/cloud/storage/records.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { PostgresNodes } from '../../support/postgres-nodes.ts'
import { PostgresSchema, runSql } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { newKeyPair } from '../harness.ts'
import { ServerProxy } from '../../support/server-proxy.ts'
import { TransactionPooler } from '../../support/transaction-pooler.ts'
import { DEVICE, deliveriesSuite, delivery } from './deliveries.suite.ts'
import { fleetFiguresSuite } from './fleet-figures.suite.ts'
import { device, storeSuite, usage } from './suite.ts'
import { syncReadsSuite } from './sync-reads.suite.ts'
import { usageIn } from '../usage/list-usage.ts'

const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
const ACCOUNT = lineAccount(INSTANCE, 'A', 0)
/** The advisory lock that keeps a transaction from its commit. */
const SLOW_COMMIT = 4_711

const PASSWORD = 'a%41-päss/word'

/** As the driver sends it; the beginning of a transaction names READ COMMITTED. */
const COMMIT = 'COMMIT\u0000'

const server = postgres()
const schemas: PostgresSchema[] = []
afterAll(async () => {
  for (const schema of schemas) await schema[Symbol.asyncDispose]()
})

async function newSchema(): Promise<PostgresSchema> {
  const schema = await PostgresSchema.create(server.url)
  schemas.push(schema)
  return schema
}

/** With the tables of the store after its first use. */
let shared: PostgresSchema | undefined
async function emptySchema(): Promise<PostgresSchema> {
  shared ??= await newSchema()
  await shared.empty()
  return shared
}

const open = (url: string, limits: Partial<Limits> = {}, onConnectionLost = (_error: CodedError): void => undefined) =>
  openPostgresStore({ url, limits, onConnectionLost })

const nodes = new PostgresNodes(server)
storeSuite('the store on PostgreSQL', () => nodes.first())
deliveriesSuite('the store on PostgreSQL', () => nodes.first())
fleetFiguresSuite('the store on PostgreSQL', () => nodes.first())
syncReadsSuite('the store on PostgreSQL', () => nodes.first())

const revoked = deviceEvent(device(DEVICE), { type: 'device.revoked', what: 'revoked', at: 1, detail: {} })

describe('on PostgreSQL', () => {
  let schema: PostgresSchema
  const stores: Store[] = []
  const gates: PromiseWithResolvers<undefined>[] = []
  /** Opened at the end of the test, also of one that failed: a transaction must not wait for ever. */
  const newGate = (): PromiseWithResolvers<undefined> => {
    const gate = Promise.withResolvers<undefined>()
    gates.push(gate)
    return gate
  }
  beforeEach(async () => {
    schema = await emptySchema()
  })
  afterEach(async () => {
    for (const gate of gates.splice(0)) gate.resolve(undefined)
    await Promise.all(stores.splice(0).map((store) => store.close()))
  })

  /** One more node over the same database. */
  const node = async (limits: Partial<Limits> = {}, url = schema.url): Promise<Store> => {
    const store = await open(url, limits)
    stores.push(store)
    return store
  }

  const withAccount = async (store: Store, cap: bigint): Promise<Store> => {
    await createInstance(store, { id: INSTANCE, shortName: 's', accountId: 'customer' }, 1)
    await store.transaction((tx) => tx.accounts.open([{ account: ACCOUNT, cap }]))
    return store
  }

  const exported = async (store: Store, upTo: bigint) => {
    const range = { after: 0n, upTo, instanceId: null, from: null, to: null, limit: 9 }
    return (await store.read((reader) => usageIn(reader, range))).map(({ record }) => record)
  }

  const written: readonly [string, string, (tx: Transaction) => Promise<void>][] = [
    ['records of a request', 'usage', (tx) => tx.usage.append([usage(1)])],
    ['a delivery', 'usage', (tx) => tx.usage.deliver(delivery(1, [{}]))],
    ['an event', 'events', (tx) => tx.events.append(revoked)],
  ]

  it.each(written)('an export waits for %s that another node is about to commit', async (_, table, write) => {
    // Its trigger goes with it.
    const { url } = await newSchema()
    const [writer, other, exporter] = [await node({}, url), await node({}, url), await node({}, named(url))]
    await writer.transaction(async (tx) => {
      await tx.edge.devices.insert(device(DEVICE))
      await tx.edge.epochs.insert(newEpoch(DEVICE, 1, { now: 1, present: 1 }))
    })
    await runSql(
      url,
      `CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN PERFORM pg_advisory_xact_lock_shared(${SLOW_COMMIT}); RETURN NULL; END $$;
       CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON ${table} DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION slow_commit()`,
    )
    const gate = new pg.Client({ connectionString: url })
    await gate.connect()
    await gate.query(`SELECT pg_advisory_lock(${SLOW_COMMIT})`)
    const writing = writer.transaction(write)
    const begun = `SELECT count(*)::int AS count FROM pg_locks WHERE locktype = 'advisory' AND objid = ${SLOW_COMMIT} AND NOT granted`
    await expect.poll(async () => (await gate.query<{ count: number }>(begun)).rows[0]?.count).toBe(1)
    let isSettled = false
    const settled = exporter
      .transaction((tx) => tx.usage.settled())
      .then((position) => {
        isSettled = true
        return position
      })
    const locks = `SELECT count(*)::int AS count FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = '${NODE}'`
    await expect.poll(async () => (await gate.query<{ count: number }>(locks)).rows[0]?.count).toBe(1)
    const writingMore = other.transaction((tx) => tx.usage.append([usage(2)]))
    expect(isSettled).toBe(false)
    await gate.end()
    await writing
    const upTo = await settled
    expect(upTo).toBeGreaterThanOrEqual(USAGE_ROW_POSITIONS)
    await writingMore
    const [lost] = await runSql<{ count: number }>(
      url,
      `SELECT count(*)::int AS count FROM ${table} WHERE seq > ${upTo / USAGE_ROW_POSITIONS}`,
    )
    expect(lost?.count).toBe(table === 'usage' ? 1 : 0)
  })

  it('neither an export nor a writer waits for a VACUUM', async () => {
    const store = await node()
    const vacuum = new pg.Client({ connectionString: schema.url })
    await vacuum.connect()
    // The lock that it holds for as long as it takes.
    await vacuum.query('BEGIN; LOCK TABLE usage, events IN SHARE UPDATE EXCLUSIVE MODE')
    await store.transaction((tx) => tx.usage.append([usage(1)]))
    const upTo = await store.transaction((tx) => tx.usage.settled())
    await vacuum.end()
    expect(await exported(store, upTo)).toEqual([usage(1)])
  })

  it('a writer does not wait for the transaction of an export', async () => {
    const [writer, exporter] = [await node(), await node()]
    await exporter.transaction(async (tx) => {
      expect(await tx.usage.settled()).toBe(0n)
      await writer.transaction((other) => other.usage.append([usage(1)]))
    })
    expect(await exporter.transaction((tx) => tx.usage.settled())).toBeGreaterThan(0n)
  })

  it('an export does not wait for a transaction that has usage to write and still takes locks', async () => {
    const [writer, exporter] = [await node(), await node()]
    await writer.transaction(async (tx) => {
      await tx.usage.append([usage(1)])
      await answered(tx)
      expect(await exported(exporter, await exporter.transaction((other) => other.usage.settled()))).toEqual([])
    })
    const upTo = await exporter.transaction((tx) => tx.usage.settled())
    expect(await exported(exporter, upTo)).toEqual([usage(1)])
  })

  it('returns the time of the database, not of the node', async () => {
    const store = await node()
    const [row] = await runSql<{ at: string }>(schema.url, `SELECT extract(epoch FROM clock_timestamp()) * 1000 AS at`)
    const told = await store.transaction((tx) => tx.sweeps.databaseTime())
    const [later] = await runSql<{ at: string }>(
      schema.url,
      `SELECT extract(epoch FROM clock_timestamp()) * 1000 AS at`,
    )
    expect(told).toBeGreaterThanOrEqual(Number(row?.at) - 1)
    expect(told).toBeLessThanOrEqual(Number(later?.at) + 1)
  })

  const charged = async (store: Store): Promise<bigint | undefined> =>
    (await store.read((reader) => reader.accounts.get([ACCOUNT]))).get(ACCOUNT)?.charged

  /** Charges one micro-token, if it is there. */
  const chargeOne = async (tx: Transaction): Promise<boolean> => {
    const pool = (await tx.accounts.lock([ACCOUNT])).get(ACCOUNT)
    if (pool === undefined || free(pool) < 1n) return false
    await tx.accounts.save([charge(pool, 1n)])
    return true
  }

  /** Writes and locks are sent ahead of their answers: waits until the server has done those of this transaction. */
  const answered = async (tx: Transaction): Promise<void> => {
    await tx.instances.get(INSTANCE)
  }

  /** Waits until so many transactions in this database wait for a lock. */
  const waiting = (count: number): Promise<void> =>
    vi.waitFor(
      async () => {
        const [row] = await runSql<{ count: number }>(
          schema.url,
          `SELECT count(*)::int AS count FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = '${NODE}'`,
        )
        expect(row?.count).toBe(count)
      },
      { timeout: 10_000, interval: 10 },
    )

  // Others may use the server too: the nodes of this file are found by a name of their own.
  const NODE = `tallygate-${process.pid}`
  const named = (url = schema.url): string => {
    const its = new URL(url)
    its.searchParams.set('application_name', NODE)
    return its.href
  }

  describe('two nodes', () => {
    it('never charge more than the cap of an account, and lose no charge', async () => {
      // However slow the machine is, a queue of 400 is served.
      const patient = { connectTimeoutMs: 60_000 }
      const nodes = [await withAccount(await node(patient), 150n), await node(patient)]
      const attempts = Array.from({ length: 400 }, async (_, index) => nodes[index % 2]!.transaction(chargeOne))
      const granted = (await Promise.all(attempts)).filter(Boolean)
      expect(granted).toHaveLength(150)
      expect(await charged(nodes[0]!)).toBe(150n)
    })

    it('open one account together', async () => {
      const nodes = [await withAccount(await node(), 1n), await node()]
      const accounts = Array.from({ length: 20 }, (_, period) => lineAccount(INSTANCE, 'B', period))
      const opened = await Promise.all(
        Array.from({ length: 20 }, (_, index) => {
          // In different orders: the store sorts them.
          const wanted = (index < 10 ? accounts : accounts.toReversed()).map((account) => ({ account, cap: 7n }))
          return nodes[index % 2]!.transaction((tx) => tx.accounts.open(wanted))
        }),
      )
      expect(opened.every((pools) => pools.size === 20)).toBe(true)
    })

    it('raise the revision of the rules one after another', async () => {
      const nodes = [await withAccount(await node(), 1n), await node()]
      const raises = Array.from({ length: 40 }, (_, index) =>
        changeRules(nodes[index % 2]!, INSTANCE, 1, async (tx) => (await tx.policyRevisions.get(INSTANCE))?.revision),
      )
      const seen = (await Promise.all(raises)).toSorted((a = 0, b = 0) => a - b)
      expect(seen).toEqual(Array.from({ length: 40 }, (_, index) => index + 1))
      expect(await nodes[0]!.read((reader) => reader.policyRevisions.get(INSTANCE))).toMatchObject({ revision: 41 })
    })

    it('decide by rules that do not change during the decision', async () => {
      const nodes = [await withAccount(await node({}, named()), 1n), await node({}, named())] as const
      const [holds, gate] = [newGate(), newGate()]
      const deciding = nodes[0].transaction(async (tx) => {
        const before = await tx.policyRevisions.lockShared(INSTANCE)
        holds.resolve(undefined)
        await gate.promise
        return [before?.revision, (await tx.policyRevisions.get(INSTANCE))?.revision]
      })
      await holds.promise
      const changing = changeRules(nodes[1], INSTANCE, 1, async () => undefined)
      await waiting(1)
      gate.resolve(undefined)
      expect(await deciding).toEqual([1, 1])
      await changing
      expect(await nodes[1].read((reader) => reader.policyRevisions.get(INSTANCE))).toMatchObject({ revision: 2 })
    })

    it('decide by rules of several instances that do not change during the decision', async () => {
      const nodes = [await withAccount(await node({}, named()), 1n), await node({}, named())] as const
      const [holds, gate] = [newGate(), newGate()]
      const deciding = nodes[0].transaction(async (tx) => {
        const before = await tx.policyRevisions.lockSomeShared([INSTANCE, 'nowhere'])
        holds.resolve(undefined)
        await gate.promise
        return [...before, await tx.policyRevisions.get(INSTANCE)].map((each) => each?.revision)
      })
      await holds.promise
      const changing = changeRules(nodes[1], INSTANCE, 1, async () => undefined)
      await waiting(1)
      gate.resolve(undefined)
      expect(await deciding).toEqual([1, 1])
      await changing
    })

    it('refuse a statement after their end', async () => {
      const store = await withAccount(await node({}, named()), 1n)
      let late: (() => Promise<unknown>) | undefined
      await store.transaction(async (tx) => {
        late = () => tx.policyRevisions.get(INSTANCE)
        await late()
      })
      await expect(late?.()).rejects.toThrow('before the end of its transaction')
    })

    it('change the rules although decisions follow each other without a pause', async () => {
      const nodes = [await withAccount(await node({}, named()), 1n), await node({}, named())] as const
      const order: string[] = []
      const [holds, gate] = [newGate(), newGate()]
      const first = nodes[0].transaction(async (tx) => {
        await tx.policyRevisions.lockShared(INSTANCE)
        holds.resolve(undefined)
        await gate.promise
      })
      await holds.promise
      const change = nodes[1].transaction(async (tx) => {
        await tx.policyRevisions.lock(INSTANCE)
        order.push('change')
      })
      await waiting(1)
      const later = nodes[0].transaction(async (tx) => {
        await tx.policyRevisions.lockShared(INSTANCE)
        order.push('decision')
      })
      await waiting(2)
      gate.resolve(undefined)
      await Promise.all([first, change, later])
      expect(order).toEqual(['change', 'decision'])
    })

    it('lock the rules and accounts together: a later transaction waits, and both charge', async () => {
      const nodes = [await withAccount(await node({}, named()), 10n), await node({}, named())] as const
      const [held, gate] = [newGate(), newGate()]
      const first = nodes[0].transaction(async (tx) => {
        await tx.policyRevisions.lockSomeShared([INSTANCE], [ACCOUNT])
        held.resolve(undefined)
        await gate.promise
        return chargeOne(tx)
      })
      await held.promise
      const second = nodes[1].transaction(async (tx) => {
        await tx.policyRevisions.lockSomeShared([INSTANCE], [ACCOUNT])
        return chargeOne(tx)
      })
      await waiting(1)
      gate.resolve(undefined)
      expect(await Promise.all([first, second])).toEqual([true, true])
      expect(await charged(nodes[0])).toBe(2n)
    })

    it('change shared data only while no instance is being created', async () => {
      const nodes = [await withAccount(await node({}, named()), 1n), await node({}, named())] as const
      const [made, gate] = [newGate(), newGate()]
      const making = nodes[0].transaction(async (tx) => {
        const instance = { id: 'new', shortName: 's', accountId: 'customer', defaultInstance: false }
        await tx.instances.insert({ ...instance, created: 1, modified: 1 })
        await tx.policyRevisions.insert({
          instanceId: 'new',
          revision: 1,
          bumpedAt: 1,
          listedAt: 1,
          calendarDue: null,
          engine: 1,
        })
        await answered(tx)
        made.resolve(undefined)
        await gate.promise
      })
      await made.promise
      const changing = nodes[1].transaction((tx) => changeSharedRules(tx, 1, async () => undefined))
      await waiting(1)
      gate.resolve(undefined)
      await Promise.all([making, changing])
      expect(await nodes[0].read((reader) => reader.policyRevisions.get('new'))).toMatchObject({ revision: 2 })
      expect(await nodes[0].read((reader) => reader.policyRevisions.get(INSTANCE))).toMatchObject({ revision: 2 })
    })

    it('take each message of the outbox once', async () => {
      const nodes = [await withAccount(await node(), 1n), await node()]
      await nodes[0]!.transaction((tx) =>
        tx.outbox.append(
          Array.from({ length: 200 }, (_, n) => ({ kind: 'device', deviceId: String(n), reason: 'sync' }) as const),
          1,
        ),
      )
      const publish = async (store: Store): Promise<bigint[]> => {
        const taken: bigint[] = []
        for (;;) {
          const messages = await store.transaction((tx) => tx.outbox.claim(7, 10, 1_000))
          if (messages.length === 0) return taken
          taken.push(...messages.map(({ id }) => id))
          await store.transaction((tx) => tx.outbox.remove(messages.map(({ id }) => id)))
        }
      }
      const taken = (await Promise.all([...nodes, ...nodes].map(publish))).flat()
      // One more than was appended: an instance that is made has a message of its own.
      expect(taken).toHaveLength(201)
      expect(new Set(taken).size).toBe(201)
    })

    it('lock different due sessions, and skip one that the other node has locked', async () => {
      const nodes = [await withAccount(await node(), 1n), await node()] as const
      await nodes[0].transaction(async (tx) => {
        for (const id of ['a', 'b'])
          await tx.sessions.insert(newSession({ id, instanceId: INSTANCE, deviceId: null }, 1))
      })
      const far = 253_402_300_799_999
      const taken = await nodes[0].transaction(async (tx) => {
        const mine = await tx.sessions.lockDue(far)
        const theirs = await nodes[1].transaction(async (other) => (await other.sessions.lockDue(far))?.id)
        return [mine?.id, theirs]
      })
      expect(taken.toSorted()).toEqual(['a', 'b'])
    })

    it('make one default instance of an account', async () => {
      const nodes = [await node(), await node()]
      const made = await Promise.all(
        Array.from({ length: 6 }, (_, index) =>
          createInstance(nodes[index % 2]!, { id: `${index}`, shortName: 's', accountId: 'one' }, 1),
        ),
      )
      expect(made.filter(({ defaultInstance }) => defaultInstance)).toHaveLength(1)
    })

    it('make one instance under one idempotency key', async () => {
      const nodes = [await node(), await node()]
      const once = { scope: 'scope', requestHash: 'hash', created: 1 }
      const made = await Promise.all(
        Array.from({ length: 6 }, (_, index) =>
          createInstance(nodes[index % 2]!, { id: `${index}`, shortName: 's', accountId: 'one' }, 1, once),
        ),
      )
      expect(new Set(made.map(({ id }) => id)).size).toBe(1)
    })

    it('never delete the last administration key between them', async () => {
      const nodes = [await node(), await node()] as const
      const publicKey = newKeyPair().publicPem
      await saveKeys(
        { store: nodes[0], delayMs: 0 },
        'administration-key',
        [
          { id: 'a', publicKey },
          { id: 'b', publicKey },
        ],
        1,
      )
      const deletions = await Promise.allSettled([
        deleteKey({ store: nodes[0], delayMs: 0 }, 'administration-key', 'a', 2),
        deleteKey({ store: nodes[1], delayMs: 0 }, 'administration-key', 'b', 2),
      ])
      expect(deletions.map(({ status }) => status).toSorted()).toEqual(['fulfilled', 'rejected'])
      expect(await nodes[0].read((reader) => reader.keys.countAdministration())).toBe(1)
    })

    it('both commit when each waits for a lock of the other', async () => {
      const store = await withAccount(await node(), 10n)
      const [a, b] = [ACCOUNT, lineAccount(INSTANCE, 'B', 0)] as const
      await store.transaction((tx) => tx.accounts.open([{ account: b, cap: 10n }]))
      const locked = [newGate(), newGate()] as const
      const runs = [0, 0]
      const work = (index: 0 | 1, first: string, second: string) =>
        store.transaction(async (tx) => {
          runs[index]! += 1
          const pools = new Map(await tx.accounts.lock([first]))
          locked[index].resolve(undefined)
          if (runs[index] === 1) await locked[1 - index]!.promise
          for (const [id, pool] of await tx.accounts.lock([second])) pools.set(id, pool)
          await tx.accounts.save([...pools.values()].map((pool) => charge(pool, 1n)))
        })
      await Promise.all([work(0, a, b), work(1, b, a)])
      expect(Math.max(...runs)).toBeGreaterThan(1)
      const pools = await store.read((reader) => reader.accounts.get([a, b]))
      expect([...pools.values()].map((pool) => pool.charged)).toEqual([2n, 2n])
    })
  })

  describe('a lost connection', () => {
    let proxy: ServerProxy
    beforeEach(async () => {
      await withAccount(await node(), 1_000n)
      proxy = await ServerProxy.open(schema.url)
    })
    afterEach(async () => {
      await Promise.all(stores.splice(0).map((store) => store.close()))
      await proxy[Symbol.asyncDispose]()
    })

    const count = () => {
      const work = async (tx: Transaction): Promise<number> => {
        work.runs += 1
        await chargeOne(tx)
        return work.runs
      }
      work.runs = 0
      return work
    }

    it('in the middle of a transaction has changed nothing, and the work is run again', async () => {
      const store = await node({}, proxy.url)
      const work = count()
      proxy.failAt('for no key update', 'LOSE_ANSWER')
      expect(await store.transaction(work)).toBe(2)
      expect(await charged(store)).toBe(1n)
    })

    it('while a write and its commit are in flight does not run the work twice', async () => {
      const store = await node({}, proxy.url)
      const work = count()
      proxy.failAt('insert into "accounts"', 'LOSE_ANSWER')
      await store.transaction(work)
      expect(await charged(store)).toBe(1n)
    })

    it('that the server has ended is replaced, and the transaction runs again', async () => {
      const store = await node({}, named())
      const work = count()
      const result = await store.transaction(async (tx) => {
        if (work.runs === 0) {
          await runSql(
            server.url,
            `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '${NODE}'`,
          )
        }
        return work(tx)
      })
      expect(result).toBe(2)
      expect(await charged(store)).toBe(1n)
    })

    it('before the commit arrived has changed nothing, and the work is run again', async () => {
      const store = await node({}, proxy.url)
      const work = count()
      proxy.failAt(COMMIT, 'LOSE_MESSAGE')
      expect(await store.transaction(work)).toBe(2)
      expect(await charged(store)).toBe(1n)
    })

    it('after the commit arrived does not run the work twice', async () => {
      const store = await node({}, proxy.url)
      const work = count()
      proxy.failAt(COMMIT, 'LOSE_ANSWER')
      expect(await store.transaction(work)).toBe(1)
      expect(await charged(store)).toBe(1n)
    })

    it('during a commit leaves its outcome unknown while the server cannot be asked, and nothing is run again', async () => {
      const store = await node({ outcomeQuestionsMax: 2, outcomePauseMs: 10 }, proxy.url)
      const work = count()
      const back = Promise.withResolvers<() => Promise<void>>()
      proxy.failAt(COMMIT, 'LOSE_ANSWER', () => void proxy.refuse().then(back.resolve, back.reject))
      await expect(store.transaction(work)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
      await (
        await back.promise
      )()
      expect(work.runs).toBe(1)
      expect(await charged(store)).toBe(1n)
    })

    it('during a commit leaves its outcome unknown if the server run is another one, also on an older connection', async () => {
      const store = await node({}, proxy.url)
      // Two connections.
      await store.transaction(() => charged(store))
      proxy.failAt(COMMIT, 'LOSE_ANSWER')
      const change = store.transaction(async (tx) => {
        await chargeOne(tx)
        await runSql(schema.url, 'UPDATE server_runs SET id = gen_random_uuid()')
      })
      await expect(change).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
      expect(await charged(store)).toBe(1n)
    })

    it('during a commit leaves its outcome unknown while no host responds', async () => {
      const { host } = new URL(proxy.url)
      const url = proxy.url.replace(host, `${host},${host}`)
      const store = await node({ connectTimeoutMs: 60_000, outcomeTimeoutMs: 100 }, url)
      proxy.failAt(COMMIT, 'LOSE_ANSWER', () => proxy.fallInactive())
      await expect(store.transaction(count())).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
      proxy.speakAgain()
      // The connections that it had begun.
      proxy.cutAll()
      expect(await charged(store)).toBe(1n)
    })

    it('to an unreachable server is DATABASE_UNREACHABLE until it is back', async () => {
      const store = await node({}, proxy.url)
      expect(await charged(store)).toBe(0n)
      const back = await proxy.refuse()
      await expect(store.transaction(chargeOne)).rejects.toMatchObject({
        code: 'DATABASE_UNREACHABLE',
        httpStatus: 503,
      })
      await expect(charged(store)).rejects.toMatchObject({ code: 'DATABASE_UNREACHABLE' })
      await back()
      expect(await store.transaction(chargeOne)).toBe(true)
      expect(await charged(store)).toBe(1n)
    })

    it('is noticed when the server stops responding', async () => {
      const store = await node({ answerTimeoutMs: 2_000, runsMax: 1 }, proxy.url)
      expect(await charged(store)).toBe(0n)
      proxy.fallInactive()
      await expect(store.transaction(chargeOne)).rejects.toMatchObject({ code: 'DATABASE_UNREACHABLE' })
      proxy.speakAgain()
      expect(await store.transaction(chargeOne)).toBe(true)
      expect(await charged(store)).toBe(1n)
    })

    it('is noticed in the middle of a transaction too, whose work is run again', async () => {
      const store = await node({ answerTimeoutMs: 2_000 }, proxy.url)
      const work = count()
      proxy.failAt('for no key update', 'NO_ANSWER')
      expect(await store.transaction(work)).toBe(2)
      expect(await charged(store)).toBe(1n)
    })

    it('is noticed by callers that wait for a connection too', async () => {
      const store = await node({ connectTimeoutMs: 1_000, connectionsMax: 1 }, proxy.url)
      expect(await charged(store)).toBe(0n)
      proxy.fallInactive()
      proxy.cutAll()
      const attempts = Array.from({ length: 3 }, () => charged(store))
      const unreachable = { status: 'rejected', reason: { code: 'DATABASE_UNREACHABLE' } }
      expect(await Promise.allSettled(attempts)).toMatchObject(Array(3).fill(unreachable))
      proxy.speakAgain()
      // The connections that it had begun.
      proxy.cutAll()
    })

    it('that is unused is reported in the log only', async () => {
      const lost: CodedError[] = []
      const store = await open(proxy.url, {}, (error) => lost.push(error))
      stores.push(store)
      await charged(store)
      proxy.cutAll()
      await vi.waitFor(() => expect(lost).toMatchObject([{ code: 'DATABASE_UNREACHABLE' }]))
      expect(await store.transaction(chargeOne)).toBe(true)
    })
  })

  describe('every wait has a limit', () => {
    it('for a locked row', async () => {
      const store = await withAccount(await node({ lockTimeoutMs: 50 }), 10n)
      await store.transaction(async (tx) => {
        await chargeOne(tx)
        await expect(store.transaction(chargeOne)).rejects.toMatchObject({ code: 'OVERLOADED', httpStatus: 503 })
      })
      expect(await charged(store)).toBe(1n)
    })

    it('for a locked row, also if later statements of the transaction are on their way', async () => {
      const store = await withAccount(await node({ lockTimeoutMs: 50 }), 10n)
      const both = (tx: Transaction) =>
        Promise.all([chargeOne(tx), tx.edge.epochs.getWithSessionPresence(randomUUID(), 1)])
      await store.transaction(async (tx) => {
        await chargeOne(tx)
        await expect(store.transaction(both)).rejects.toMatchObject({ code: 'OVERLOADED' })
      })
      expect(await charged(store)).toBe(1n)
    })

    it('for a connection, when all of them are in use', async () => {
      const store = await withAccount(await node({ connectionsMax: 1, connectTimeoutMs: 2_000 }), 10n)
      await store.transaction(async () => {
        await expect(store.transaction(chargeOne)).rejects.toMatchObject({ code: 'OVERLOADED' })
      })
      expect(await store.transaction(chargeOne)).toBe(true)
    })

    it('for a connection that is made too late, and the connection serves the next caller', async () => {
      await node()
      const limits = { ...LIMITS, connectionsMax: 1, connectTimeoutMs: 1_000, lockTimeoutMs: 60_000 }
      const pool = openPool(databaseAddress(schema.url), limits, () => undefined)
      const { client: lost } = await pool.connect()
      const blocker = new pg.Client({ connectionString: schema.url })
      await blocker.connect()
      await blocker.query('BEGIN; LOCK TABLE server_runs')
      const late = pool.connect()
      lost.release(true)
      await expect(late).rejects.toThrow('no connection')
      await blocker.end()
      const next = () => pool.connect().then(({ client }) => client.release(), String)
      await expect.poll(next, { timeout: 10_000 }).toBe(undefined)
      await pool.end()
    })

    it('for a node that fell silent in the middle of a transaction', async () => {
      const silent = await withAccount(await node({ silenceTimeoutMs: 500 }), 10n)
      const other = await node()
      let runs = 0
      await silent.transaction(async (tx) => {
        runs += 1
        await chargeOne(tx)
        // The other one gets the row only when the server has given up on this one.
        if (runs === 1) expect(await other.transaction(chargeOne)).toBe(true)
      })
      expect(runs).toBeGreaterThan(1)
      expect(await charged(other)).toBe(2n)
    })
  })

  it('flushes each commit, also if the default of the database is off', async () => {
    const url = new URL(schema.url)
    url.searchParams.set('options', `${url.searchParams.get('options') ?? ''} -csynchronous_commit=off`)
    const pool = openPool(databaseAddress(url.href), LIMITS, () => undefined)
    const { rows } = await transactionsOver(pool, false)('WRITE', (database) =>
      sql<{ synchronous_commit: string }>`SHOW synchronous_commit`.execute(database),
    )
    await pool.end()
    expect(rows).toEqual([{ synchronous_commit: 'on' }])
  })

  it('refuses a text that it cannot store', async () => {
    const store = await node()
    await expect(store.read((reader) => reader.instances.get('\u0000'))).rejects.toMatchObject({ code: 'BAD_REQUEST' })
  })

  describe('a start', () => {
    beforeEach(async () => {
      schema = await newSchema()
    })

    const codeOf = async (url: string, limits: Partial<Limits> = {}): Promise<string> => {
      try {
        await (await open(url, limits)).close()
        return 'none'
      } catch (error) {
        return (error as CodedError).code
      }
    }

    it('of several nodes at once migrates once', async () => {
      await Promise.all(Array.from({ length: 5 }, () => node()))
      const rows = await runSql(schema.url, 'SELECT number::int FROM tallygate_schema ORDER BY number')
      expect(rows).toEqual([{ number: 1 }, { number: 2 }])
    })

    it('is refused and leaves the database unchanged when a newer version wrote it', async () => {
      await (await open(schema.url)).close()
      await runSql(schema.url, 'INSERT INTO tallygate_schema (number) VALUES (9999)')
      expect(await codeOf(schema.url)).toBe('DATABASE_NEWER')
      expect(await runSql(schema.url, 'SELECT max(number)::int AS newest FROM tallygate_schema')).toEqual([
        { newest: 9999 },
      ])
    })

    it.for(['usage', 'orders'])('is refused beside %s of another program, and leaves nothing behind', async (name) => {
      await runSql(schema.url, `CREATE TABLE ${name} (text TEXT)`)
      expect(await codeOf(schema.url)).toBe('DATABASE_UNSUITABLE')
      const tables = await runSql(schema.url, 'SELECT tablename FROM pg_tables WHERE schemaname = current_schema()')
      expect(tables).toEqual([{ tablename: name }])
    })

    it('is refused where there is no place for tables', async () => {
      const url = new URL(server.url)
      url.searchParams.set('options', '-csearch_path=nowhere')
      expect(await codeOf(url.href)).toBe('DATABASE_UNSUITABLE')
    })

    it('is refused behind a pooler that gives each transaction another session', async () => {
      await using pooler = await TransactionPooler.open(schema.url)
      expect(await codeOf(pooler.url)).toBe('DATABASE_UNSUITABLE')
    })

    it.for(['26000', '42P05'])('names a pooler as the reason of a mixed up statement (%s)', (state) => {
      const error = Object.assign(new pg.DatabaseError('prepared statement "t1"', 0, 'error'), { code: state })
      expect(coded(error, 'postgres://db')).toMatchObject({ code: 'DATABASE_UNSUITABLE' })
    })

    it('is refused if its encoding lacks some characters', async () => {
      const name = `test_latin1_${process.pid}`
      await runSql(
        server.url,
        `CREATE DATABASE ${name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`,
      )
      try {
        const url = new URL(server.url)
        url.pathname = name
        expect(await codeOf(url.href)).toBe('DATABASE_UNSUITABLE')
      } finally {
        await runSql(server.url, `DROP DATABASE ${name}`)
      }
    })

    it('is refused where the database does not exist', async () => {
      const url = new URL(server.url)
      url.pathname = 'nowhere'
      expect(await codeOf(url.href)).toBe('DATABASE_REFUSED')
    })

    it('is refused at an invalid address', async () => {
      expect(await codeOf('mysql://localhost/x')).toBe('CONFIG_INVALID')
      expect(await codeOf(`postgres://user:${PASSWORD}@[/x`)).toBe('CONFIG_INVALID')
      expect(await codeOf('postgres://localhost/x?sslmode=verify-full&sslrootcert=/nowhere/ca.pem')).toBe(
        'CONFIG_INVALID',
      )
    })

    it('with a server that falls silent after the login is DATABASE_UNREACHABLE', async () => {
      await using proxy = await ServerProxy.open(schema.url)
      for (const question of ['pg_is_in_recovery', 'server_version_num']) {
        proxy.failAt(question, 'NO_ANSWER')
        expect(await codeOf(proxy.url, { answerTimeoutMs: 200 })).toBe('DATABASE_UNREACHABLE')
      }
    })

    it('without a server is DATABASE_UNREACHABLE', async () => {
      const proxy = await ServerProxy.open(schema.url)
      const { url } = proxy
      await proxy[Symbol.asyncDispose]()
      expect(await codeOf(url)).toBe('DATABASE_UNREACHABLE')
    })
  })

  it('never shows its password', async () => {
    const told: unknown[] = []
    const attempt = async (url: string, password?: string): Promise<void> => {
      const opening = openPostgresStore({
        url,
        ...(password === undefined ? {} : { password }),
        onConnectionLost: (error) => told.push(error),
      })
      told.push(await opening.catch((error: unknown) => error))
    }
    const url = new URL(schema.url)
    url.username = 'nobody-knows-me'
    await attempt(url.href, PASSWORD)
    url.password = encodeURIComponent(PASSWORD)
    await attempt(url.href)
    await attempt(`postgres://user:${PASSWORD}@[/x`)
    await attempt(`mysql://user:${PASSWORD}@host/x`)
    await using gone = await ServerProxy.open(url.href)
    const refused = new URL(gone.url)
    await gone.refuse()
    await attempt(refused.href)

    expect(told).toHaveLength(5)
    for (const error of told) {
      expect(error).toBeInstanceOf(CodedError)
      const seen = inspect(error, { depth: 10, showHidden: true }) + JSON.stringify(error)
      for (const secret of [PASSWORD, encodeURIComponent(PASSWORD), encodeURI(PASSWORD)]) {
        expect(seen).not.toContain(secret)
      }
    }
  })
})
