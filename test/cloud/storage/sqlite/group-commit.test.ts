import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import Sqlite from 'better-sqlite3'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { GroupCommit } from '../../../../src/cloud/storage/sqlite/group-commit.ts'

let folder: string
let database: Sqlite.Database
let said: string[]
let commits: GroupCommit
let time: number
let flush: () => Promise<void>

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tallygate-commit-'))
  said = []
  database = new Sqlite(join(folder, 'x.db'), { verbose: (sql) => said.push(String(sql)) })
  database.pragma('journal_mode = WAL')
  database.exec('CREATE TABLE notes (n INTEGER PRIMARY KEY, body TEXT) STRICT')
  time = 0
  flush = async () => void said.push('flush')
  commits = new GroupCommit(
    database,
    () => time,
    () => flush(),
  )
  said.length = 0
})
afterEach(() => {
  database.close()
  rmSync(folder, { recursive: true, force: true })
})

const never = (): boolean => false

const note = (n: number, body = '') =>
  commits.run(async () => {
    database.prepare('INSERT INTO notes VALUES (?, ?)').run(n, body)
    await Promise.resolve()
    return n
  }, never)

const kept = (): unknown[] => database.prepare('SELECT n FROM notes ORDER BY n').pluck().all()
const count = (sql: string): number => said.filter((each) => each === sql).length

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

/** Begins the flush of a commit. @returns how it ends; later ones succeed */
async function duringFlush(begin: () => unknown): Promise<PromiseWithResolvers<undefined>> {
  const [begun, flushed] = [Promise.withResolvers<undefined>(), Promise.withResolvers<undefined>()]
  flush = () => {
    said.push('flush')
    flush = async () => void said.push('flush')
    begun.resolve(undefined)
    return flushed.promise
  }
  begin()
  await begun.promise
  return flushed
}

describe('transactions that wait together', () => {
  it('share one commit, and hear of it only afterwards', async () => {
    const told: string[] = []
    const all = [1, 2, 3, 4, 5].map((n) => note(n).then(() => told.push(`${n} after ${count('COMMIT')} commits`)))
    await Promise.all(all)
    expect(told).toEqual([1, 2, 3, 4, 5].map((n) => `${n} after 1 commits`))
    expect(kept()).toEqual([1, 2, 3, 4, 5])
  })

  it('are answered when it is flushed, and the next ones run meanwhile and are committed then', async () => {
    const told: number[] = []
    const noted = (n: number) => note(n).then(() => told.push(n))
    const flushing = await duringFlush(() => noted(1))
    const others = [noted(2), noted(3)]
    await turn()
    const later = noted(4)
    await turn()
    expect(told).toEqual([])
    expect([count('COMMIT'), count('flush'), count('SAVEPOINT alone')]).toEqual([1, 1, 2])
    flushing.resolve(undefined)
    await Promise.all([...others, later])
    expect(told).toEqual([1, 2, 3, 4])
    expect([count('COMMIT'), count('flush')]).toEqual([2, 2])
  })

  it('share one commit during a flush, however many they are and however long it takes', async () => {
    const flushing = await duringFlush(() => note(1000))
    time += 21
    const all = Array.from({ length: 200 }, (_, n) => note(n))
    await turn()
    time += 21
    all.push(note(200))
    await turn()
    flushing.resolve(undefined)
    await Promise.all(all)
    expect(count('COMMIT')).toBe(2)
    expect(kept()).toHaveLength(202)
  })

  it('have failed when the flush fails', async () => {
    flush = () => Promise.reject(new Error('the disk is gone'))
    const outcomes = await Promise.allSettled([note(1), note(2)])
    expect(outcomes).toMatchObject([1, 2].map(() => ({ reason: { message: 'the disk is gone' } })))
  })

  it('have failed when they ran during a flush that fails, as each later flush does', async () => {
    const first = Promise.withResolvers<PromiseSettledResult<number>[]>()
    const flushing = await duringFlush(() => first.resolve(Promise.allSettled([note(1)])))
    const second = Promise.allSettled([note(2)])
    await turn()
    flush = () => flushing.promise
    flushing.reject(new Error('the disk is gone'))
    const outcomes = [...(await first.promise), ...(await second)]
    expect(outcomes).toMatchObject([1, 2].map(() => ({ reason: { message: 'the disk is gone' } })))
  })

  it('are flushed when the store is idle', async () => {
    const told: number[] = []
    const flushing = await duringFlush(() => void note(1).then(() => told.push(1)))
    const idle = commits.idle().then(() => told.push(0))
    await turn()
    expect(told).toEqual([])
    flushing.resolve(undefined)
    await idle
    expect(told).toEqual([1, 0])
  })

  it('fail separately: only the writes of the failed one are undone', async () => {
    const failing = commits.run(async () => {
      database.prepare('INSERT INTO notes VALUES (99, NULL)').run()
      throw new Error('on purpose')
    }, never)
    const outcomes = await Promise.allSettled([note(1), failing, note(1), note(2)])
    expect(outcomes.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'rejected', 'fulfilled'])
    expect(kept()).toEqual([1, 2])
    expect(count('COMMIT')).toBe(1)
  })

  it('fail by themselves, also the first of them, which is refused when the last commit is flushed', async () => {
    const refused: unknown[] = []
    const flushing = await duringFlush(() => note(1))
    const failing = commits
      .run(async () => {
        database.prepare('INSERT INTO notes VALUES (99, NULL)').run()
        throw new Error('on purpose')
      }, never)
      .catch((error: unknown) => refused.push(error))
    const other = note(2)
    await turn()
    expect(refused).toEqual([])
    flushing.resolve(undefined)
    await Promise.all([failing, other])
    expect(refused).toMatchObject([{ message: 'on purpose' }])
    expect(kept()).toEqual([1, 2])
  })

  it('share one commit with those that fail before them, and so one flush', async () => {
    const fail = () => commits.run(() => Promise.reject(new Error('on purpose')), never)
    const outcomes = await Promise.allSettled([fail(), fail(), note(1), fail(), note(2)])
    expect(outcomes.map(({ status }) => status)).toEqual(['rejected', 'rejected', 'fulfilled', 'rejected', 'fulfilled'])
    expect(kept()).toEqual([1, 2])
    expect([count('COMMIT'), count('flush')]).toEqual([1, 1])
  })

  it('run during a flush, also after one that fails', async () => {
    const flushing = await duringFlush(() => note(1))
    const failing = expect(commits.run(() => Promise.reject(new Error('on purpose')), never)).rejects.toThrow()
    const others = [note(2), note(3)]
    await turn()
    expect(said.filter((each) => each.startsWith('INSERT'))).toHaveLength(3)
    flushing.resolve(undefined)
    await Promise.all([failing, ...others])
    expect([count('COMMIT'), count('flush')]).toEqual([2, 2])
  })

  it('are not refused for reasons of their own when the flush before them fails', async () => {
    const first = Promise.withResolvers<PromiseSettledResult<number>[]>()
    const flushing = await duringFlush(() => first.resolve(Promise.allSettled([note(1)])))
    const failing = Promise.allSettled([commits.run(() => Promise.reject(new Error('on purpose')), never)])
    await turn()
    flush = () => flushing.promise
    flushing.reject(new Error('the disk is gone'))
    await first.promise
    expect(await failing).toMatchObject([{ reason: { message: 'the disk is gone' } }])
  })

  it('do not see writes that must be committed first', async () => {
    const first = commits.run(
      async () => database.prepare('INSERT INTO notes VALUES (1, NULL)').run(),
      () => true,
    )
    await Promise.all([first, note(2), note(3)])
    expect(count('COMMIT')).toBe(2)
  })

  it('are spread over several commits when there are very many', async () => {
    await Promise.all(Array.from({ length: 200 }, (_, n) => note(n)))
    expect(count('COMMIT')).toBeGreaterThanOrEqual(4)
    expect(kept()).toHaveLength(200)
  })

  it('do not keep the first of them waiting for long', async () => {
    const slow = commits.run(async () => {
      time += 21
    }, never)
    await Promise.all([slow, note(1)])
    expect(count('COMMIT')).toBe(2)
  })

  it('have all failed when the disk is full, and the next ones go on', async () => {
    await note(1)
    const pages = database.pragma('page_count', { simple: true }) as number
    database.pragma(`max_page_count = ${pages + 2}`)
    const large = 'x'.repeat(100_000)
    const outcomes = await Promise.allSettled([note(2), note(3, large), note(4)])
    for (const outcome of outcomes.slice(1, 2)) expect(outcome).toMatchObject({ status: 'rejected' })
    const told = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []))
    expect(kept()).toEqual([1, ...told])
    database.pragma(`max_page_count = 1000000`)
    await note(5)
    expect(kept()).toContain(5)
  })

  it('have all failed when the commit does, and none has had any effect', async () => {
    const exec = database.exec.bind(database)
    database.exec = (sql) => {
      if (sql === 'COMMIT') throw new Error('the disk did not take it')
      return exec(sql)
    }
    const outcomes = await Promise.allSettled([note(1), note(2)])
    expect(outcomes.map(({ status }) => status)).toEqual(['rejected', 'rejected'])
    database.exec = exec
    expect(kept()).toEqual([])
    expect(await note(3)).toBe(3)
  })

  it('all fail when SQLite fails in the middle', async () => {
    const first = note(1)
    const giveUp = commits.run(async () => {
      database.exec('ROLLBACK')
      throw new Error('the disk is gone')
    }, never)
    const outcomes = await Promise.allSettled([first, giveUp, note(2)])
    expect(outcomes.map(({ status }) => status)).toEqual(['rejected', 'rejected', 'fulfilled'])
    expect(outcomes[0]).toMatchObject({ reason: { message: 'the disk is gone' } })
    expect(kept()).toEqual([2])
  })
})

describe('while another process has the lock', () => {
  let other: Sqlite.Database

  beforeEach(() => {
    database.pragma('busy_timeout = 0')
    other = new Sqlite(join(folder, 'x.db'))
    other.exec('BEGIN IMMEDIATE')
  })
  afterEach(() => other.close())

  it('waits, and lets other events run', async () => {
    const waiting = note(1)
    const events: string[] = []
    void waiting.then(() => events.push('written'))
    await new Promise((resolve) => setImmediate(resolve))
    events.push('event')
    other.exec('COMMIT')
    await waiting
    expect(events).toEqual(['event', 'written'])
    expect(kept()).toEqual([1])
  })

  it('gives up after a while, and serves the next one', async () => {
    const waiting = note(1)
    const refused = expect(waiting).rejects.toMatchObject({ code: 'SQLITE_BUSY' })
    await new Promise((resolve) => setImmediate(resolve))
    time = 5_001
    await refused
    other.exec('COMMIT')
    expect(await note(2)).toBe(2)
    expect(kept()).toEqual([2])
  })
})
