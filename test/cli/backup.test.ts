// Backups of a device and of a twin, as an operator makes and restores them, between a real agent and a real twin.
import { execFile, execFileSync } from 'node:child_process'
import { generateKeyPairSync } from 'node:crypto'
import { cpSync, existsSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import Database from 'better-sqlite3'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Agent } from '../../src/agent/compose.ts'
import { HttpClient } from '../../src/client/http.ts'
import { accessResponseBody } from '../../src/protocol/service/access-request.ts'
import { LAST_BACKUP_FILE } from '../../src/protocol/local/last-backup.ts'
import type { AgentStatus } from '../../src/protocol/local/status.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { Application } from '../scenarios/agent/site.ts'
import { startAgent } from '../scenarios/agent/start-agent.ts'
import { ALWAYS, type Twin, openTwin, pick } from '../cloud/harness.ts'
import { PostgresSchema } from '../support/postgres-schema.ts'
import { PG_DUMP, backUpSchema } from '../support/schema-backup.ts'
import { postgres } from '../support/servers.ts'
import { COMMAND } from '../support/command.ts'

interface Ended {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

/** As a process of its own: closing a file lets go of the locks that this process holds on it. */
async function tallygate(...args: readonly string[]): Promise<Ended> {
  return promisify(execFile)(process.execPath, [COMMAND, ...args]).then(
    ({ stdout, stderr }) => ({ code: 0, stdout, stderr }),
    (error: unknown) => error as Ended,
  )
}

/** A twin with one line item of 1000 tokens, and a device of it that has been granted all of them. */
class Site {
  readonly directory = temporaryDirectory()
  readonly twin: Twin
  readonly instanceId: string
  isOnline = true
  readonly #port: number
  #token = ''

  private constructor(twin: Twin, instanceId: string) {
    this.twin = twin
    this.instanceId = instanceId
    this.#port = Number(new URL(twin.cloud.address).port)
  }

  /** @param db address of a PostgreSQL; null: a file */
  static async make(db: string | null = null): Promise<Site> {
    const twin = await openTwin((settings) => ({ ...settings, db }))
    onTestFinished(() => twin[Symbol.asyncDispose]())
    twin.followMachine()
    const instanceId = await twin.shop({ quantity: 1_000, ...ALWAYS })
    const site = new Site(twin, instanceId)
    site.#token = await twin.enrollmentToken(instanceId)
    return site
  }

  get state(): string {
    return join(this.directory, 'state')
  }

  get ledger(): string {
    return join(this.state, 'journal.db')
  }

  async start(): Promise<Agent> {
    const flags = { 'sync-interval': '1s', 'sync-backoff-max': '1s' }
    return startAgent({ directory: this.directory, enrollmentToken: this.#token, flags })
  }

  /** Where it was before: the device knows no other address. */
  async startTwin(restored = false): Promise<void> {
    await this.twin.start(({ http, store, ...rest }) => {
      return { ...rest, http: { ...http, port: this.#port }, store: { ...store, restored } }
    })
  }

  async used(): Promise<number> {
    return this.twin.used(this.instanceId, 'ACT-1')
  }

  async spend(agent: Agent, count: number): Promise<boolean> {
    using client = new HttpClient({ address: `unix:${agent.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
    const path = `/v1.0/instances/${this.instanceId}/access-request`
    const body = { requester: { type: 'user', value: 'anna' }, requestedItems: [{ item: 'Print', count }] }
    const { requestedItems } = await client.json({ method: 'POST', path, body }, accessResponseBody)
    return requestedItems[0]?.status.code === '101'
  }
}

const until = (agent: Agent, isSo: (status: AgentStatus) => boolean): Promise<AgentStatus> =>
  new Application(agent).until(isSo)

const ready = (agent: Agent) => until(agent, ({ accounts, connected }) => accounts.length > 0 && connected)
const delivered = (agent: Agent) => until(agent, ({ backlog, connected }) => backlog === 0 && connected)

describe('a backup of a device', { timeout: 90_000 }, () => {
  it('is made while the agent works, is whole, and restored over the ledger loses nothing and bills nothing twice', async () => {
    const site = await Site.make()
    const agent = await site.start()
    await ready(agent)
    expect(await site.spend(agent, 5)).toBe(true)
    await delivered(agent)

    const itself = await tallygate('backup', site.ledger, '--db', site.ledger)
    expect(itself.code).toBe(64)
    expect(itself.stderr).toMatch(/^tallygate: USAGE: /)
    const directory = await tallygate('backup', site.directory, '--db', site.ledger)
    expect(directory.stderr).toMatch(/^tallygate: OUTPUT_UNWRITABLE: Cannot write .*: it is a directory\./)
    const file = join(site.directory, 'back\u001bup.db')
    let asked = 0
    const made = tallygate('backup', file, '--db', site.ledger)
    const copying = { isDone: false }
    void made.then(() => (copying.isDone = true))
    const load = (async () => {
      while (!copying.isDone) if (await site.spend(agent, 0.01)) asked += 1
    })()
    await load
    expect(await made).toMatchObject({ code: 0, stderr: '' })
    expect((await made).stdout).toMatch(
      /back\\u001bup\.db contains the ledger up to entry \d+ of epoch 1\. The ledger is intact\./,
    )
    expect(statSync(file).mode & 0o077).toBe(0)
    expect(asked).toBeGreaterThan(0)
    const noted = { at: expect.closeTo(Date.now(), -5) as number, file: file.replace('\u001b', '?') }
    expect((await ready(agent)).backup).toMatchObject(noted)
    expect(statSync(join(site.state, LAST_BACKUP_FILE)).mode & 0o077).toBe(0)
    expect(await tallygate('verify', '--db', file)).toMatchObject({ code: 0 })

    await site.spend(agent, 7)
    await delivered(agent)
    const running = await tallygate('restore', file, '--db', site.ledger)
    expect(running.stderr).toMatch(/^tallygate: STATE_IN_USE: .*systemctl stop tallygate-agent\.socket/)

    // What the cloud does not have yet, and the backup neither.
    await site.twin.stop()
    await site.spend(agent, 3)
    await agent.stop()
    const restored = await tallygate('restore', file, '--db', site.ledger)
    expect(restored.stderr).toBe('')
    expect(restored.stdout).toContain(`kept as ${site.ledger}.replaced-`)
    await site.startTwin()

    const again = await site.start()
    const { epoch } = await ready(again)
    expect(epoch).toBe(2)
    await delivered(again)
    expect(await site.used()).toBeCloseTo(15 + asked / 100, 6)
    expect(await site.spend(again, 1)).toBe(true)
    await delivered(again)
    expect(await site.used()).toBeCloseTo(16 + asked / 100, 6)
  })

  it('brings a device back whose storage is new, with what the cloud lacked when it was made', async () => {
    const site = await Site.make()
    const agent = await site.start()
    await ready(agent)
    await site.spend(agent, 5)
    await delivered(agent)
    await site.twin.stop()
    await site.spend(agent, 2)
    const file = join(site.directory, 'backup.db')
    expect(await tallygate('backup', file, '--db', site.ledger)).toMatchObject({ code: 0 })
    // Delivered after the backup, so the restored device offers it again.
    await site.startTwin()
    await delivered(agent)
    await agent.stop()
    expect(await site.used()).toBe(7)

    const key = join(site.state, 'device.key')
    const kept = readFileSync(key)
    for (const name of readdirSync(site.state)) rmSync(join(site.state, name), { recursive: true })
    const { stdout } = await tallygate('restore', file, '--db', site.ledger)
    expect(stdout).toContain('There was no previous ledger.')
    expect(stdout).toContain('delivers 1 entry that')
    const missing = `The key of this device is missing: copy it to ${key} before you start the agent.\n`
    expect(stdout).toContain(missing)
    const { privateKey } = generateKeyPairSync('ed25519')
    writeFileSync(key, privateKey.export({ type: 'pkcs8', format: 'pem' }), { mode: 0o600 })
    const foreign = (await tallygate('restore', file, '--db', site.ledger)).stdout
    expect(foreign).toContain(`${key} is not the key that the ledger names.`)
    const restored = await tallygate('restore', file, '--db', site.ledger, '--json')
    expect(JSON.parse(restored.stdout)).toMatchObject({
      undelivered: 1,
      keyProblem: expect.stringContaining(`${key} is not the key that the ledger names.`) as string,
    })
    writeFileSync(key, 'no key')
    expect((await tallygate('restore', file, '--db', site.ledger)).stdout).toContain(
      `The key file ${key} cannot be used: `,
    )
    writeFileSync(key, kept, { mode: 0o600 })
    expect((await tallygate('restore', file, '--db', site.ledger)).stdout).not.toMatch(/missing|names|cannot be used/)
    const again = await site.start()
    await ready(again)
    await delivered(again)
    expect(await site.used()).toBe(7)
    await site.spend(again, 1)
    await delivered(again)
    expect(await site.used()).toBe(8)
  })

  it('takes the place of a damaged ledger, which is kept', async () => {
    const site = await Site.make()
    const agent = await site.start()
    await ready(agent)
    await site.spend(agent, 5)
    await delivered(agent)
    const file = join(site.directory, 'backup.db')
    await tallygate('backup', file, '--db', site.ledger)
    await agent.stop()
    const damaged = Buffer.concat([Buffer.from('this was a ledger '), Buffer.alloc(20_000, 7)])
    writeFileSync(site.ledger, damaged)
    const { stdout } = await tallygate('restore', file, '--db', site.ledger)
    const kept = /kept as (\S+)\.$/m.exec(stdout)?.[1] ?? ''
    expect(readFileSync(kept).equals(damaged)).toBe(true)
    const again = await site.start()
    expect((await ready(again)).conditions).toEqual([])
    expect(await site.used()).toBe(5)
  })

  it('is refused where it is damaged, of another device, or none, and then changes nothing', async () => {
    const [site, other] = [await Site.make(), await Site.make()]
    const file = join(site.directory, 'backup.db')
    for (const each of [site, other]) {
      const agent = await each.start()
      await ready(agent)
      await each.spend(agent, 1)
      if (each === other) await tallygate('backup', file, '--db', each.ledger)
      await agent.stop()
    }
    const before = readdirSync(site.state)
    const restore = async (from: string) => (await tallygate('restore', from, '--db', site.ledger)).stderr
    expect(await restore(file)).toMatch(/^tallygate: BACKUP_FOREIGN: /)
    const broken = join(site.directory, 'broken.db')
    const bytes = readFileSync(file)
    bytes.fill(0x55, 8_192, 60_000)
    writeFileSync(broken, bytes)
    expect(await restore(broken)).toMatch(/^tallygate: BACKUP_UNUSABLE: /)
    writeFileSync(broken, 'not a database')
    expect(await restore(broken)).toMatch(/^tallygate: BACKUP_UNUSABLE: .*broken\.db: .* Use another backup/)
    expect(await restore(join(site.directory, 'none.db'))).toMatch(/^tallygate: LEDGER_UNREADABLE: /)
    const pipe = join(site.directory, 'pipe.db')
    execFileSync('mkfifo', [pipe])
    expect(await restore(pipe)).toMatch(/^tallygate: LEDGER_UNREADABLE: .*pipe\.db is not a file\./)
    expect(readdirSync(site.state).filter((name) => !name.includes('-wal') && !name.includes('-shm'))).toEqual(
      before.filter((name) => !name.includes('-wal') && !name.includes('-shm')),
    )
    expect(existsSync(`${site.ledger}.restoring`)).toBe(false)
  })
})

describe('a backup of a twin', { timeout: 90_000 }, () => {
  it('is made while it works, and restored loses nothing and bills nothing twice', async () => {
    const site = await Site.make()
    const agent = await site.start()
    await ready(agent)
    await site.spend(agent, 5)
    await delivered(agent)
    const file = join(site.directory, 'twin-\u001bbackup.db')
    const store = site.twin.settings.store.path
    const itself = await tallygate('cloud', 'backup', join(store, 'twin.db'), '--store-path', store)
    expect(itself.code).toBe(64)
    expect(itself.stderr).toMatch(/^tallygate: USAGE: /)
    const made = await tallygate('cloud', 'backup', file, '--store-path', store)
    expect(made).toMatchObject({ code: 0, stderr: '' })
    expect(made.stdout).toContain(String.raw`/twin-\u001bbackup.db contains`)
    const metrics = await (await fetch(site.twin.cloud.metricsAddress)).text()
    const at = /^tallygate_last_backup_timestamp_seconds (\S+)$/m.exec(metrics)?.[1]
    expect(Number(at)).toBeCloseTo(Date.now() / 1_000, -2)
    const copy = new Database(file, { readonly: true })
    expect(copy.pragma('integrity_check', { simple: true })).toBe('ok')
    copy.close()

    // What the backup does not know.
    await site.spend(agent, 7)
    await delivered(agent)
    expect(await site.used()).toBe(12)
    await site.twin.stop()
    for (const suffix of ['-wal', '-shm', '']) rmSync(join(store, `twin.db${suffix}`), { force: true })
    cpSync(file, join(store, 'twin.db'))
    await site.startTwin(true)
    expect(await site.used()).toBe(5)
    const { body } = await site.twin.call('GET', `/edge/api/v1/instances/${site.instanceId}/recovery`)
    expect(pick(body, 'since')).not.toBeNull()
    await site.spend(agent, 1)
    await expect.poll(() => site.used(), { timeout: 20_000 }).toBe(13)
    await delivered(agent)
  })

  describe('in PostgreSQL', () => {
    const server = postgres()
    it('is made by pg_dump while it works, and restored loses nothing and bills nothing twice', async (context) => {
      if (PG_DUMP === undefined) return context.skip('pg_dump is not where Debian puts it')
      const schema = await PostgresSchema.create(server.url)
      onTestFinished(() => schema[Symbol.asyncDispose]())
      const site = await Site.make(schema.url)
      const agent = await site.start()
      await ready(agent)
      await site.spend(agent, 5)
      await delivered(agent)
      const putBack = await backUpSchema(server.url, schema.url)

      await site.spend(agent, 7)
      await delivered(agent)
      expect(await site.used()).toBe(12)
      await site.twin.stop()
      await putBack()
      await site.startTwin(true)
      expect(await site.used()).toBe(5)
      await site.spend(agent, 1)
      await expect.poll(() => site.used(), { timeout: 20_000 }).toBe(13)
      await delivered(agent)
    })
  })
})
