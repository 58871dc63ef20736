// A cloud whose database was put back to a backup, as its operator does it: whatever devices and clients received before and
// after, together they never get more than there is.
import { cpSync, existsSync, rmSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { describe, expect, it, onTestFinished } from 'vitest'
import { backUpStore } from '../../../../src/cloud/storage/sqlite/backup.ts'
import { PostgresSchema, runSql } from '../../../support/postgres-schema.ts'
import { PG_DUMP, backUpSchema } from '../../../support/schema-backup.ts'
import { postgres } from '../../../support/servers.ts'
import { EDGE, EdgeClient } from '../../devices/edge-client.ts'
import { topUpRequest } from '../test-device.ts'
import { ALWAYS, type Twin, openTwin, pick, text } from '../../harness.ts'

const TOKENS = 1_000_000n

/** Addresses of a server, and of a schema on it. */
interface Postgres {
  readonly server: string
  readonly db: string
}

class Site {
  readonly twin: Twin
  readonly instanceId: string
  readonly #postgres: Postgres | null

  private constructor(twin: Twin, instanceId: string, over: Postgres | null) {
    this.twin = twin
    this.instanceId = instanceId
    this.#postgres = over
  }

  /** @param over null: SQLite */
  static async open(over: Postgres | null): Promise<Site> {
    const twin = await openTwin((settings) => ({ ...settings, db: over?.db ?? null }))
    onTestFinished(() => twin[Symbol.asyncDispose]())
    return new Site(twin, await twin.shop({ quantity: 1_000, ...ALWAYS }), over)
  }

  get mark(): string {
    return join(this.twin.settings.store.path, 'sales.mark')
  }

  /** Returns what puts it back. */
  async backUp(): Promise<() => Promise<void>> {
    if (this.#postgres !== null) return backUpSchema(this.#postgres.server, this.#postgres.db)
    const database = join(this.twin.settings.store.path, 'twin.db')
    const copy = join(this.twin.directory, 'backup.db')
    await backUpStore(database, copy)
    return async () => {
      for (const suffix of ['-wal', '-shm', '']) rmSync(`${database}${suffix}`, { force: true })
      cpSync(copy, database)
    }
  }

  /** One statement behind the back of the twin. */
  async change(sql: string): Promise<void> {
    if (this.#postgres !== null) {
      await runSql(this.#postgres.db, sql)
      return
    }
    const database = new Database(join(this.twin.settings.store.path, 'twin.db'))
    database.exec(sql)
    database.close()
  }

  async start(restored = false): Promise<void> {
    await this.twin.start((settings) => ({ ...settings, store: { ...settings.store, restored } }))
  }

  /** One client after another asks for so many tokens, until one is refused. What they were granted, and why not more. */
  async sell(each: number, most = Infinity): Promise<{ readonly sold: number; readonly refused: unknown }> {
    for (let sold = 0; ; sold += each) {
      if (sold >= most) return { sold, refused: undefined }
      const { body, status } = await this.twin.access(this.instanceId, { Print: each })
      expect(status).toBe(200)
      const code = pick(body, 'requestedItems', 0, 'status', 'code')
      if (code !== '1001') return { sold, refused: code }
    }
  }

  async recovery(): Promise<unknown> {
    return (await this.twin.call('GET', `${EDGE}/instances/${this.instanceId}/recovery`)).body
  }

  async endRecovery(): Promise<unknown> {
    return (await this.twin.call('POST', `${EDGE}/instances/${this.instanceId}/recovery/end`)).body
  }

  async device(): Promise<EdgeClient> {
    return EdgeClient.join(this.twin, this.instanceId)
  }

  async export(after: string): Promise<{ readonly status: number; readonly text: string; readonly next: string }> {
    const { address } = this.twin.cloud
    const response = await fetch(`${address}/provisioning/api/v1.1/usage?format=ndjson&after=${after}`, {
      headers: { authorization: `Bearer ${await this.twin.administrationToken()}` },
    })
    return {
      status: response.status,
      text: await response.text(),
      next: response.headers.get('x-next-cursor') ?? '',
    }
  }
}

function restoreSuite(name: string, open: () => Promise<Site>): void {
  describe(name, { timeout: 60_000 }, () => {
    it.each([true, false])(
      'sells once what devices and clients had after the backup (declared: %s)',
      async (declared) => {
        const site = await open()
        const [one, two] = [await site.device(), await site.device()]
        const restore = await site.backUp()
        // Devices that hold nothing at the backup.
        await one.device.sync([topUpRequest(one.line(), 300n * TOKENS)])
        await two.device.sync([topUpRequest(two.line(), 150n * TOKENS)])
        expect(one.device.available(one.line()) + two.device.available(two.line())).toBe(450n * TOKENS)
        expect(await site.sell(10, 100)).toMatchObject({ sold: 100 })
        await site.twin.stop()
        await restore()
        await site.start(declared)

        // 1,000 less 450 and 100: it waits for no device with these.
        expect(await site.sell(10, 200)).toMatchObject({ sold: 200 })
        expect(await site.recovery()).toMatchObject({ unproven: null, waitingFor: [{}, {}] })
        const late = await site.device()
        await late.device.sync([topUpRequest(late.line(), 0n, 50n * TOKENS)])
        expect(late.device.available(late.line())).toBe(50n * TOKENS)
        expect(await site.sell(10)).toEqual({ sold: 200, refused: '2011' })
        expect(await site.sell(1)).toEqual({ sold: 0, refused: '2011' })
      },
    )

    it('sells a quantity once also without devices', async () => {
      const site = await open()
      const restore = await site.backUp()
      expect(await site.sell(1, 37)).toMatchObject({ sold: 37 })
      await site.twin.stop()
      await restore()
      await site.start()
      await site.twin.tick()
      expect(await site.sell(1, 3)).toMatchObject({ sold: 3 })
      expect(await site.sell(32)).toEqual({ sold: 960, refused: '2011' })
      expect(await site.recovery()).toMatchObject({ since: null, accounts: [{ atRisk: '37000000' }] })
    })

    it('sells the withheld tokens when an administrator accepts the risk', async () => {
      const site = await open()
      const restore = await site.backUp()
      await site.sell(100, 900)
      await site.twin.stop()
      await restore()
      await site.start()
      expect(await site.sell(100)).toMatchObject({ sold: 100 })
      expect(await site.endRecovery()).toMatchObject({ accounts: [{ atRisk: '900000000', free: '0' }] })
      expect(await site.sell(100)).toEqual({ sold: 900, refused: '2002' })
      const { body } = await site.twin.call('GET', `${EDGE}/audit`)
      expect(pick(body, 'records', 0)).toMatchObject({ action: 'END_RECOVERY' })
      expect(text(body, 'records', 0, 'detail')).toContain('"atRisk":"900000000"')
    })

    it('takes a sales mark that is missing for a restore, and sells nothing until an administrator ends it', async () => {
      const site = await open()
      await site.device()
      await site.sell(1, 1)
      const restore = await site.backUp()
      await site.sell(100, 500)
      await site.twin.stop()
      await restore()
      rmSync(site.mark)
      await site.start()
      expect(await site.sell(1)).toEqual({ sold: 0, refused: '2011' })
      expect(await site.recovery()).toMatchObject({ unproven: 'MARK', accounts: [{ atRisk: '999000000', free: '0' }] })
      // Nor does another start make up for it.
      await site.twin.restart()
      expect(await site.sell(1)).toEqual({ sold: 0, refused: '2011' })
      await site.endRecovery()
      expect(await site.sell(9)).toEqual({ sold: 999, refused: '2002' })
      await site.twin.restart()
      expect(await site.recovery()).toMatchObject({ since: null, unproven: null, accounts: [] })
    })

    it.each(['damaged', 'cut off'])('takes a sales mark that is %s for one that is missing', async (how) => {
      const site = await open()
      await site.sell(1, 1)
      await site.twin.stop()
      const bytes = await readFile(site.mark)
      if (how === 'damaged') bytes.writeUInt8(bytes.readUInt8(40) ^ 1, 40)
      await writeFile(site.mark, how === 'damaged' ? bytes : bytes.subarray(0, 100))
      await site.start()
      expect(await site.sell(1)).toEqual({ sold: 0, refused: '2011' })
      expect(await site.recovery()).toMatchObject({ unproven: 'MARK' })
    })

    it('does not rely on an old copy of the sales mark', async () => {
      const site = await open()
      await site.sell(1, 10)
      await site.twin.stop()
      const old = await readFile(site.mark)
      for (let times = 0; times < 3; times += 1) {
        await site.start()
        await site.sell(100, 200)
        await site.twin.stop()
      }
      await writeFile(site.mark, old)
      await site.start()
      expect(await site.sell(1)).toEqual({ sold: 0, refused: '2011' })
    })

    it('begins no recovery where nothing was lost', async () => {
      const site = await open()
      for (let times = 0; times < 5; times += 1) {
        await site.sell(1, 7)
        await site.twin.restart()
        expect(await site.recovery()).toMatchObject({ since: null, accounts: [] })
      }
      expect(await site.sell(5)).toEqual({ sold: 965, refused: '2002' })
    })

    it('notices that its database was put back while it worked', async () => {
      const site = await open()
      await site.sell(100, 900)
      // As with a replica that takes over without the last transactions.
      await site.change(`UPDATE accounts SET charged = charged - 400000000, sold = sold - 400000000`)
      expect(await site.sell(50)).toEqual({ sold: 100, refused: '2011' })
      expect(await site.recovery()).toMatchObject({ unproven: null, accounts: [{ atRisk: '400000000' }] })
    })

    it('refuses an export that continues after the end of the backup, whether the restore was declared or not', async () => {
      const site = await open()
      await site.sell(1, 2)
      const { next: end } = await site.export('0')
      const restore = await site.backUp()
      await site.sell(1, 3)
      const { next: cursor } = await site.export(end)
      expect(BigInt(cursor)).toBeGreaterThan(BigInt(end))
      await site.twin.stop()
      await restore()
      await site.start()
      // Its positions would be those of the lines that the job has already.
      await site.sell(1, 5)
      const refused = await site.export(cursor)
      expect(refused.status).toBe(409)
      expect(refused.text).toContain('USAGE_FORGOTTEN')
      expect(refused.text).toContain(`after=${end}`)
      const rest = await site.export(end)
      expect(rest.text.trim().split('\n')).toHaveLength(5)
      expect((await site.export(rest.next)).text).toBe('')
    })
  })
}

restoreSuite('a restored cloud, over SQLite', () => Site.open(null))

describe.skipIf(PG_DUMP === undefined)('with PostgreSQL', () => {
  const server = postgres()
  restoreSuite('a restored cloud, over PostgreSQL', async () => {
    const schema = await PostgresSchema.create(server.url)
    onTestFinished(() => schema[Symbol.asyncDispose]())
    return Site.open({ server: server.url, db: schema.url })
  })
})

describe('a database that is not empty', () => {
  it('on a fresh machine is one that was restored', async () => {
    const site = await Site.open(null)
    await site.twin.stop()
    expect(existsSync(site.mark)).toBe(true)
    rmSync(site.mark)
    await site.start()
    expect(await site.recovery()).toMatchObject({ unproven: 'MARK' })
  })
})
