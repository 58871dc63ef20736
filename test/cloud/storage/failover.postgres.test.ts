// The store when its server crashes, becomes read-only, or is another one. The books under load: test/scenarios/cloud.
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { charge } from '../../../src/cloud/accounts/pool.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import { Hosts, NotPrimary, databaseAddress } from '../../../src/cloud/storage/postgres/hosts.ts'
import { NotConnected } from '../../../src/cloud/storage/postgres/failures.ts'
import { LIMITS, type Limits } from '../../../src/cloud/storage/postgres/limits.ts'
import { openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import type { Store, Transaction } from '../../../src/cloud/storage/store.ts'
import type { CodedError } from '../../../src/protocol/errors.ts'
import { PostgresPair, type PostgresProcess, postgresPrograms } from '../../support/postgres-pair.ts'
import { runSql } from '../../support/postgres-schema.ts'
import { ServerProxy } from '../../support/server-proxy.ts'

const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
const ACCOUNT = lineAccount(INSTANCE, 'A', 0)
const codeOf = (error: unknown): string => (error as CodedError).code

/** As the driver sends it. */
const COMMIT = 'COMMIT\u0000'

describe('a store over two servers', { timeout: 120_000 }, () => {
  const programs = postgresPrograms()
  let pair: PostgresPair | undefined
  let [primary, standby]: PostgresProcess[] = []
  const stores: Store[] = []

  beforeAll(async () => {
    if (programs.isMissing) return
    pair = await PostgresPair.start(programs.folder)
    ;[primary, standby] = pair.servers
  })
  afterAll(async () => pair?.[Symbol.asyncDispose]())
  beforeEach(async () => {
    await runSql(primary!.url, 'SET client_min_messages = warning; DROP SCHEMA public CASCADE; CREATE SCHEMA public')
  })
  afterEach(async () => {
    await Promise.all(stores.splice(0).map((store) => store.close()))
  })

  const open = async (url: string, limits: Partial<Limits> = {}): Promise<Store> => {
    const store = await openPostgresStore({ url, limits, onConnectionLost: () => undefined })
    stores.push(store)
    return store
  }

  const withAccount = async (store: Store): Promise<void> => {
    await createInstance(store, { id: INSTANCE, shortName: 's', accountId: 'customer' }, 1)
    await store.transaction((tx) => tx.accounts.open([{ account: ACCOUNT, cap: 1_000n }]))
  }

  const count = () => {
    const work = async (tx: Transaction): Promise<number> => {
      work.runs += 1
      const pool = (await tx.accounts.lock([ACCOUNT])).get(ACCOUNT)
      if (pool === undefined) throw new Error('the account is gone')
      await tx.accounts.save([charge(pool, 1n)])
      return work.runs
    }
    work.runs = 0
    return work
  }

  /** Waits until a statement waits for a standby; `selected` is selected of its row. */
  const awaitWait = (server: PostgresProcess, statement = 'COMMIT', selected = '') => {
    const text = `SELECT ${selected} FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query ~ '^${statement}'`
    return expect.poll(() => runSql(server.url, text)).toHaveLength(1)
  }

  /** A store that has charged once on a primary whose standby is then promoted beside it. */
  const onFormerPrimary = async ({ url, servers: [former, next] }: PostgresPair, limits: Partial<Limits> = {}) => {
    const store = await open(url, limits)
    await withAccount(store)
    await former.requireStandby()
    expect(await store.transaction(count())).toBe(1)
    await next.promote()
    return { store, former, next }
  }

  /** Requires that a charge after the first one was not confirmed, or is on this server. */
  const expectKept = async (change: Promise<string>, server: PostgresProcess): Promise<void> => {
    // OUTCOME_UNKNOWN: its id may be that of another transaction of this server.
    const done = (await change) === 'OUTCOME_UNKNOWN' ? 1n : 2n
    expect(await runSql(server.url, 'SELECT charged::text FROM accounts')).toEqual([{ charged: `${done}` }])
  }

  const charged = async (store: Store): Promise<bigint | undefined> =>
    (await store.read((reader) => reader.accounts.get([ACCOUNT]))).get(ACCOUNT)?.charged

  /** A crash while a commit is on its way, directly after `last`; the server comes back and runs other transactions. */
  const crashDuringCommit = async (fate: 'LOSE_MESSAGE' | 'LOSE_ANSWER', last = 'SELECT') => {
    const proxy = await ServerProxy.open(primary!.url)
    const store = await open(proxy.url, { outcomeQuestionsMax: 10_000, outcomePauseMs: 10 })
    await withAccount(store)
    const back = Promise.withResolvers<undefined>()
    const crash = async (): Promise<undefined> => {
      const reopen = await proxy.refuse()
      await runSql(primary!.url, last)
      await primary!.kill()
      await primary!.start()
      for (let ids = 0; ids < 20; ids += 1) await runSql(primary!.url, 'SELECT pg_current_xact_id()')
      await reopen()
      return undefined
    }
    proxy.failAt(COMMIT, fate, () => void crash().then(back.resolve, back.reject))
    const work = count()
    const result = await store.transaction(work).catch(codeOf)
    await back.promise
    const booked = await charged(store)
    await proxy[Symbol.asyncDispose]()
    return { result, runs: work.runs, booked }
  }

  it('names the server to which it connects after an outage, once', async () => {
    await using proxy = await ServerProxy.open(primary!.url)
    const servers: string[] = []
    const onConnectionRegained = (server: string): void => void servers.push(server)
    const store = await openPostgresStore({ url: proxy.url, onConnectionLost: () => undefined, onConnectionRegained })
    stores.push(store)
    await withAccount(store)
    expect(servers).toEqual([])
    const reopen = await proxy.refuse()
    await expect(charged(store)).rejects.toMatchObject({ code: 'DATABASE_UNREACHABLE' })
    await reopen()
    await Promise.all([charged(store), charged(store)])
    expect(servers).toEqual([new URL(proxy.url).host])
  })

  it('distinguishes a transaction from an undone one with the same id', async () => {
    expect(await crashDuringCommit('LOSE_MESSAGE')).toEqual({ result: 'OUTCOME_UNKNOWN', runs: 1, booked: 0n })
  })

  it('runs a transaction again that a crash has undone, if the server still knows its id', async () => {
    expect(await crashDuringCommit('LOSE_MESSAGE', 'CREATE TABLE written ()')).toEqual({
      result: 2,
      runs: 2,
      booked: 1n,
    })
  })

  it('does not run a transaction again that may have been committed before a crash', async () => {
    expect(await crashDuringCommit('LOSE_ANSWER')).toEqual({ result: 'OUTCOME_UNKNOWN', runs: 1, booked: 1n })
  })

  it('finds the primary whichever host comes first, and uses no standby', async () => {
    const [host, other] = [primary!.port, standby!.port].map((port) => `127.0.0.1:${port}`)
    const of = (hosts: string): string => `postgres://test@${hosts}/postgres`
    await expect(open(of(other!))).rejects.toMatchObject({ code: 'DATABASE_UNREACHABLE' })
    const store = await open(of(`${other},${host}`))
    await withAccount(store)
    expect(await charged(store)).toBe(0n)
    expect(await charged(await open(of(`${host},${other}`)))).toBe(0n)
    const refused = await open(of(host!))
      .then(() => open(of(`nobody@${other}`).replace('test@', '')))
      .catch(codeOf)
    expect(refused).toBe('DATABASE_REFUSED')
  })

  it('writes nothing to a server that was made read-only, and continues when it is not any more', async () => {
    const store = await open(primary!.url)
    await withAccount(store)
    const set = async (value: 'on' | 'off'): Promise<void> => {
      await runSql(primary!.url, `ALTER SYSTEM SET default_transaction_read_only = ${value}`)
      await runSql(primary!.url, 'SELECT pg_reload_conf()')
      const shown = 'SHOW default_transaction_read_only'
      await expect.poll(async () => runSql(primary!.url, shown)).toEqual([{ default_transaction_read_only: value }])
    }
    await set('on')
    const work = count()
    await expect.poll(() => store.transaction(work).then(String, codeOf)).toBe('DATABASE_UNREACHABLE')
    const before = await runSql(primary!.url, 'SELECT charged::text FROM accounts')
    await set('off')
    expect(await store.transaction(work)).toBe(work.runs)
    expect(await charged(store)).toBe(BigInt(Number(before[0]?.['charged']) + 1))
  })

  it('leaves a host that does not answer for the next one', async () => {
    await using silent = await ServerProxy.open(primary!.url)
    const hosts = [new URL(silent.url).host, `127.0.0.1:${primary!.port}`]
    const store = await open(`postgres://test@${hosts.join(',')}/postgres`, {
      connectTimeoutMs: 500,
      answerTimeoutMs: 500,
    })
    await withAccount(store)
    silent.fallInactive()
    const work = count()
    // The first run lost its connection before its commit.
    expect(await store.transaction(work)).toBe(work.runs)
    expect(work.runs).toBeLessThan(3)
    expect(await charged(store)).toBe(1n)
  })

  it('uses no server that is not a copy of its first one, and does not run an unanswered commit again there', async () => {
    await using pairs = await PostgresPair.start(programs.folder)
    const [other] = pairs.servers
    await withAccount(await open(other.url))
    const ids = 'DO $$ BEGIN FOR n IN 1..1000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$'
    await runSql(primary!.url, ids)
    await using proxy = await ServerProxy.open(primary!.url)
    const store = await open(proxy.url, { outcomePauseMs: 10 })
    await withAccount(store)
    proxy.failAt(COMMIT, 'LOSE_ANSWER', () => proxy.leadTo(other.url))
    const work = count()
    expect(await store.transaction(work).catch(codeOf)).toBe('OUTCOME_UNKNOWN')
    expect(await store.transaction(work).catch(codeOf)).toBe('DATABASE_DIFFERS')
    proxy.leadTo(primary!.url)
    expect(await charged(store)).toBe(1n)
    expect(work.runs).toBe(1)
    expect(await runSql(other.url, 'SELECT charged::text FROM accounts')).toEqual([{ charged: '0' }])
  })

  it('changes nothing without a standby if it must have one', async () => {
    const store = await openPostgresStore({
      url: primary!.url,
      requiresStandby: true,
      onConnectionLost: () => undefined,
    })
    stores.push(store)
    const refused = { code: 'DATABASE_WITHOUT_STANDBY', httpStatus: 503 }
    await expect(withAccount(store)).rejects.toMatchObject(refused)
    await primary!.requireStandby()
    await withAccount(store)
    expect(await store.transaction(count())).toBe(1)
    await primary!.requireNoStandby()
    let done = 1n
    const change = async (): Promise<string> => {
      const result = await store.transaction(count()).then(String, codeOf)
      // OUTCOME_UNKNOWN: the setting changed between its beginning and its commit.
      if (['1', 'OUTCOME_UNKNOWN'].includes(result)) done += 1n
      return result
    }
    await expect.poll(change).toBe(refused.code)
    expect(await charged(store)).toBe(done)
  })

  it('does not confirm a commit whose wait ends because PostgreSQL no longer waits for a standby', async () => {
    await primary!.requireStandby()
    const options = { url: primary!.url, requiresStandby: true, onConnectionLost: () => undefined }
    const store = await openPostgresStore({ ...options, limits: { answerTimeoutMs: 60_000, outcomePauseMs: 10 } })
    stores.push(store)
    await withAccount(store)
    await standby!.stop()
    const change = store.transaction(count()).then(String, codeOf)
    await awaitWait(primary!)
    await primary!.requireNoStandby()
    const result = await change
    await standby!.start()
    expect(result).toBe('OUTCOME_UNKNOWN')
  })

  it('confirms nothing that its standby has not received', async () => {
    const store = await open(primary!.url, { answerTimeoutMs: 2_000, outcomeQuestionsMax: 2, lockTimeoutMs: 500 })
    await withAccount(store)
    await primary!.requireStandby()
    await standby!.stop()
    expect(await store.transaction(count()).then(String, codeOf)).toBe('OUTCOME_UNKNOWN')
    // It waits still, with its lock.
    expect(await store.transaction(count()).then(String, codeOf)).toBe('OVERLOADED')
    expect(await charged(store)).toBe(0n)
    await standby!.start()
    await expect.poll(() => charged(store)).toBe(1n)
    await primary!.requireNoStandby()
  })

  it.for(['pg_terminate_backend', 'pg_cancel_backend'])(
    'does not confirm a commit whose wait for the standby is ended by %s',
    async (end) => {
      const store = await open(primary!.url, { answerTimeoutMs: 2_000, outcomeQuestionsMax: 2 })
      await withAccount(store)
      await primary!.requireStandby()
      await standby!.stop()
      const change = store.transaction(count()).then(String, codeOf)
      await awaitWait(primary!, 'COMMIT', `${end}(pid)`)
      const result = await change
      await standby!.start()
      expect(result).toBe('OUTCOME_UNKNOWN')
      expect(await charged(store)).toBe(1n)
      // The standby confirms: what was committed before has arrived, too.
      expect(await store.transaction(count())).toBe(1)
      await primary!.requireNoStandby()
    },
  )

  it('leaves a former primary that was not stopped, whose commits no standby confirms, until it has no successor', async () => {
    await using pair = await PostgresPair.start(programs.folder)
    const [former, next] = pair.servers
    const limits = { answerTimeoutMs: 1_000, outcomePauseMs: 10 }
    const store = await open(pair.url, limits)
    await withAccount(store)
    await former.requireStandby()
    await next.promote()
    // Its id may be that of another transaction of the next primary.
    await store.transaction(count()).catch((error: unknown) => expect(codeOf(error)).toBe('OUTCOME_UNKNOWN'))
    expect(await store.transaction(count())).toBe(1)
    await next.stop()
    await expect.poll(() => charged(store).catch(codeOf)).toBe('DATABASE_UNREACHABLE')
    await expect(charged(store)).rejects.toThrow('former primary')
    await pair.rejoin(next, former)
    await expect.poll(() => charged(store).catch(codeOf)).toBe(1n)
  })

  it('confirms nothing that a former primary commits when its restarted manager has it wait for no standby', async () => {
    await using pair = await PostgresPair.start(programs.folder)
    const { store, former, next } = await onFormerPrimary(pair, { answerTimeoutMs: 60_000, outcomePauseMs: 10 })
    const change = store.transaction(count()).then(String, codeOf)
    await awaitWait(former)
    await former.requireNoStandby()
    await expectKept(change, next)
  })

  it('does not look up a commit on a former primary that waits for its standby no longer', async () => {
    await using pair = await PostgresPair.start(programs.folder)
    const { store, former, next } = await onFormerPrimary(pair, {
      answerTimeoutMs: 60_000,
      outcomePauseMs: 10,
      outcomeTimeoutMs: 60_000,
    })
    const change = store.transaction(count()).then(String, codeOf)
    await awaitWait(former, 'COMMIT', 'pg_terminate_backend(pid)')
    await awaitWait(former, 'SELECT pg_logical_emit_message')
    await former.requireNoStandby()
    await expectKept(change, next)
  })

  it('begins nothing on a former primary that waits for its standby no longer', async () => {
    await using pair = await PostgresPair.start(programs.folder)
    const { store, former, next } = await onFormerPrimary(pair)
    await former.requireNoStandby()
    // The setting may also change between its beginning and its commit.
    await expectKept(store.transaction(count()).then(String, codeOf), next)
  })

  it('continues on its primary when it waits for no standby any more', async () => {
    await using pair = await PostgresPair.start(programs.folder)
    const [primary, standby] = pair.servers
    const store = await open(pair.url, { answerTimeoutMs: 60_000, outcomePauseMs: 10 })
    await withAccount(store)
    await primary.requireStandby()
    expect(await store.transaction(count())).toBe(1)
    await standby.stop()
    const change = store.transaction(count())
    await awaitWait(primary)
    await primary.requireNoStandby()
    expect(await change).toBe(1)
    expect(await store.transaction(count())).toBe(1)
    expect(await charged(store)).toBe(3n)
  })

  it('uses no former primary while its successor does not answer, however many requests wait for connections', async () => {
    await using pair = await PostgresPair.start(programs.folder)
    const [former, next] = pair.servers
    await using first = await ServerProxy.open(former.url)
    await using successor = await ServerProxy.open(next.url)
    const hosts = [first, successor].map(({ url }) => new URL(url).host)
    const store = await open(`postgres://test@${hosts.join(',')}/postgres`, { connectionsMax: 3 })
    await withAccount(store)
    await next.promote()
    await expect.poll(() => runSql(next.url, 'SELECT pg_is_in_recovery() AS standby')).toEqual([{ standby: false }])
    const reopen = await first.refuse()
    await expect.poll(() => store.transaction(count()).catch(codeOf)).toBe(1)
    await reopen()
    await successor.refuse()
    const reads = Array.from({ length: 40 }, () => charged(store).then(String, codeOf))
    expect(new Set(await Promise.all(reads))).toEqual(new Set(['DATABASE_UNREACHABLE']))
  })

  it('follows a promotion, and reads nothing from a server that became a standby', async () => {
    const proxy = await ServerProxy.open(primary!.url)
    const [both, one] = [await open(pair!.url), await open(proxy.url)]
    await withAccount(both)
    await primary!.requireStandby()
    await both.transaction(count())
    await primary!.kill()
    await expect(both.transaction(count())).rejects.toMatchObject({ code: 'DATABASE_UNREACHABLE', httpStatus: 503 })
    await expect(charged(one)).rejects.toMatchObject({ code: 'DATABASE_UNREACHABLE' })
    await standby!.promote()
    await both.transaction(count())
    expect(await charged(both)).toBe(2n)
    await pair!.rejoin(primary!, standby!)
    for (const use of [() => charged(one), () => one.transaction(count())]) {
      await expect(use()).rejects.toMatchObject({ code: 'DATABASE_UNREACHABLE' })
    }
    proxy.leadTo(standby!.url)
    expect(await charged(one)).toBe(2n)
    await proxy[Symbol.asyncDispose]()
  })
})

describe('a request for a connection', () => {
  const standby = { host: 'b', port: 5432 } as never
  const refused = (): Error => Object.assign(new Error('connect ECONNREFUSED'), { address: '::1', port: 5432 })
  const NO_TIME = { ...LIMITS, connectTimeoutMs: 0 }
  const connect = (
    failures: number,
    hosts = 'a,b',
    failure: () => Error = () => new NotPrimary('the server is a standby', standby),
    limits = LIMITS,
  ): Promise<string> => {
    let attempts = 0
    return new Hosts(databaseAddress(`postgres://${hosts}/db`), limits).connect(async () => {
      attempts += 1
      if (attempts <= failures) throw failure()
      return 'the primary'
    })
  }

  it('does not fail because others led it to the same standby twice', async () => {
    expect(await connect(3)).toBe('the primary')
  })

  it('does not fail because the same host refused it twice', async () => {
    expect(await connect(3, 'a,b', refused)).toBe('the primary')
    const cause = { message: '20 connections led to 1 of 2 hosts: connect ECONNREFUSED' }
    await expect(connect(Infinity, 'a,b', refused)).rejects.toMatchObject({ cause })
  })

  it('ends in the time that its hosts may take, when two names lead to one server that fails slowly', async () => {
    const cause = { message: '2 connections led to 1 of 2 hosts: connect ECONNREFUSED' }
    await expect(connect(Infinity, 'a,b', refused, NO_TIME)).rejects.toMatchObject({ cause })
  })

  it('tries each host, also if the first one lets it wait for the response to a query', async () => {
    expect(await connect(1, 'a,b', () => new Error('Query read timeout'), NO_TIME)).toBe('the primary')
  })

  it('ends when the address names one standby twice', async () => {
    await expect(connect(Infinity, 'b,b')).rejects.toThrow(NotConnected)
  })
})

describe('the address of a database', () => {
  it('names each host, with the same user, password and parameters', () => {
    const { connectionStrings, shown } = databaseAddress(
      'postgres://me:p%2Cw@a:5432,[::1]:5433,c/db?sslmode=require&target_session_attrs=read-write',
    )
    expect(connectionStrings).toEqual(
      ['a:5432', '[::1]:5433', 'c'].map(
        (host) => `postgres://me:p%2Cw@${host}/db?sslmode=verify-full&target_session_attrs=read-write`,
      ),
    )
    expect(shown).toBe('postgres://me@a:5432,[::1]:5433,c/db')
  })

  it('shows the host of a parameter, which replaces the one before the database', () => {
    expect(databaseAddress('postgres://me@localhost/db?host=b').shown).toBe('postgres://me@b/db')
  })

  it('of a Unix socket has no host', () => {
    const { connectionStrings, shown } = databaseAddress('postgres:///db?host=/run/postgresql', 'secret')
    expect(connectionStrings).toEqual(['postgres:///db?host=%2Frun%2Fpostgresql&password=secret'])
    expect(shown).toBe('postgres:///run/postgresql/db')
  })

  it.for([
    'postgres://me:secret@a,,b/db',
    'postgres://me:secret@a:1,b:x/db',
    'postgres://me:secret@a:1,/db',
    'postgres://me:secret@/db?host=a,b',
    'postgres://me:secret@a,b/db?host=c',
    'postgres://me:secret@a,b/db?port=5433',
    'postgres://me:12/secret@a,b/db',
    'postgres://me:12?secret@a/db',
    'postgres://me:12/1#secret@a/db',
    'postgres://me:secret@a,b/db?target_session_attrs=any',
    'mysql://me:secret@a,b/db',
  ])('is refused, without its password: %s', (url) => {
    const read = (): unknown => databaseAddress(url)
    expect(read).toThrow(expect.objectContaining({ code: 'CONFIG_INVALID' }))
    expect(read).not.toThrow(/secret|12/)
  })
})
