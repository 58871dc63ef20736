// A cloud with two cells: two nodes over two PostgreSQL servers, one of which is killed and started again. Clients and
// devices of both cells note what was acknowledged, and the books of each cell are compared with these notes.
import { randomUUID } from 'node:crypto'
import { cp, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { PRICE_TEXT } from '../../../bench/fleet/device.ts'
import { formTokenOf } from '../../../src/cloud/console/sign-in.ts'
import { makeAccessToken } from '../../../src/client/access-token.ts'
import { PostgresPair, type PostgresProcess, postgresPrograms } from '../../support/postgres-pair.ts'
import { runSql } from '../../support/postgres-schema.ts'
import { TwinProcess } from '../../cloud/twin-process.ts'
import { newKeyPair, pick, text } from '../../cloud/harness.ts'
import { FailoverLoad, LINE_ITEM, type Site } from './failover-load.ts'

const EVERYONE = { keyed: 2, plain: 2, session: 2, device: 2 }
const EVENTUALLY = { timeout: 60_000 }

/** One database of a server that the tests share. */
class Cell {
  readonly server: PostgresProcess
  readonly url: string

  private constructor(server: PostgresProcess, url: string) {
    this.server = server
    this.url = url
  }

  static async create(server: PostgresProcess, name: string): Promise<Cell> {
    // A test that failed may have left the server down.
    if (!server.isRunning) await server.start()
    await runSql(server.url, `CREATE DATABASE ${name}`)
    return new Cell(server, server.url.replace(/postgres$/, name))
  }

  kill(): Promise<void> {
    return this.server.kill()
  }

  start(): Promise<void> {
    return this.server.start()
  }
}

interface Reply {
  readonly status: number
  readonly body: unknown
  readonly retryAfter: string | null
}

interface CallOptions {
  readonly node?: number
  readonly body?: unknown
  readonly token?: string
  readonly headers?: Readonly<Record<string, string>>
}

describe('a cloud with two cells', { timeout: 300_000 }, () => {
  const programs = postgresPrograms()
  let servers: PostgresPair | undefined
  let cells: readonly [Cell, Cell]
  let [north, south]: Cell[] = []
  let directory: string
  let nodes: TwinProcess[] = []
  let adminToken: string

  // The tests of this file share the servers, and each of them has a database in both.
  beforeAll(async () => {
    if (!programs.isMissing) servers = await PostgresPair.startApart(programs.folder)
  })
  afterAll(() => servers?.[Symbol.asyncDispose]())
  beforeEach(async () => {
    const [first, second] = servers!.servers
    const name = `test_${randomUUID().replaceAll('-', '')}`
    cells = [await Cell.create(first, name), await Cell.create(second, name)]
    ;[north, south] = cells
    directory = await mkdtemp(join(tmpdir(), 'tallygate-cells-'))
    nodes = [await startNode('a')]
    // What a node makes for itself at its first start belongs to all of them.
    const filter = (path: string): boolean => !basename(path).endsWith('.mark')
    await cp(join(directory, 'a'), join(directory, 'b'), { recursive: true, filter })
    nodes.push(await startNode('b'))
    adminToken = await tokenOf(await readFile(join(directory, 'a', 'administration-key.pem'), 'utf8'))
  })
  afterEach(async () => {
    for (const node of nodes.splice(0)) await node[Symbol.asyncDispose]()
    await rm(directory, { recursive: true, force: true })
  })

  const cellsOf = (...urls: string[]): string =>
    JSON.stringify(urls.map((url, index) => ({ name: ['north', 'south'][index], url })))

  const startNode = (name: string, cells = cellsOf(north!.url, south!.url)): Promise<TwinProcess> =>
    TwinProcess.start(['--cells', cells, '--store-path', join(directory, name)])

  const tokenOf = (privateKey: string, keyId?: string): Promise<string> => {
    const named = keyId === undefined ? {} : { keyId }
    const lifetime = { now: Date.now(), lifetimeMs: 3_600_000 }
    return makeAccessToken({ kind: 'ADMIN', privateKey, ...named, instanceIds: [], issuer: 'tests', ...lifetime })
  }

  const call = async (method: string, path: string, options: CallOptions = {}): Promise<Reply> => {
    const { node = 0, body, token = adminToken, headers = {} } = options
    const response = await fetch(`${nodes[node]!.address}${path}`, {
      method,
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json', ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    const raw = await response.text()
    const isJson = response.headers.get('content-type')?.startsWith('application/json') ?? false
    const { status } = response
    return { status, body: isJson ? JSON.parse(raw) : raw, retryAfter: response.headers.get('retry-after') }
  }

  const make = async (method: string, path: string, options: CallOptions): Promise<unknown> => {
    const { status, body } = await call(method, `/provisioning/api/v1.1/${path}`, options)
    expect(status, JSON.stringify(body)).toBeLessThan(300)
    return body
  }

  const rateTable = async (version: string, rate = Number(PRICE_TEXT)): Promise<void> => {
    const items = [{ name: 'Print', version: '1.0', rate }]
    await make('POST', 'rate-tables', { body: { effectiveFrom: Date.now() - 1_000, version, items } })
  }

  const instance = async (accountId: string = crypto.randomUUID(), node = 0): Promise<string> => {
    const id = text(await make('POST', 'instances', { node, body: { shortName: 's', accountId } }), 'id')
    const lifetime = { start: Date.now() - 1_000, end: Date.now() + 3_600_000 }
    const lineItem = { activationId: LINE_ITEM, state: 'DEPLOYED', quantity: 100_000, ...lifetime }
    await make('PUT', `instances/${id}/line-items`, { body: { ...lineItem, attributes: { elastic: true } } })
    return id
  }

  const idsIn = async (server: Cell): Promise<string[]> =>
    (await runSql<{ id: string }>(server.url, 'SELECT id FROM instances ORDER BY seq')).map(({ id }) => id)

  /** Until the cell has as many. */
  const instancesIn = async (server: Cell, count: number): Promise<string[]> => {
    let ids = await idsIn(server)
    for (; ids.length < count; ids = await idsIn(server)) await instance()
    return ids.slice(0, count)
  }

  const siteIn = async (server: Cell): Promise<Site> => {
    const [requests, sessions, devices] = (await instancesIn(server, 3)) as [string, string, string]
    const instances = { requests, sessions, devices }
    return { addresses: nodes.map(({ address }) => address), adminToken, instances }
  }

  const access = (id: string, options: CallOptions = {}): Promise<Reply> => {
    const requestedItems = [{ item: 'Print', version: '1.0', count: 1 }]
    const body = { requester: { type: 'user', value: 'u' }, requestedItems }
    return call('POST', `/elastic/api/v1.1/instances/${id}/access-request`, { body, ...options })
  }

  const charged = async (id: string): Promise<unknown> =>
    pick((await access(id)).body, 'requestedItems', 0, 'totalTokensCharged')

  it('serves one cell while the database of the other one is away, with exact books in both', async () => {
    await rateTable('1')
    const loads = [new FailoverLoad(await siteIn(north!)), new FailoverLoad(await siteIn(south!))] as const
    for (const load of loads) await load.begin(EVERYONE)
    for (const load of loads) await load.eachServed(4)
    const [ofSouth] = await idsIn(south!)
    await south!.kill()
    await loads[0].eachServed(8)
    const refused = await access(ofSouth!)
    expect(refused).toMatchObject({ status: 503, body: { code: 'DATABASE_UNREACHABLE' }, retryAfter: '1' })
    expect(text(refused.body, 'message')).toContain('The cell south:')
    const unknown = await call('GET', `/provisioning/api/v1.1/instances/${crypto.randomUUID()}`)
    expect(unknown).toMatchObject({ status: 503, body: { code: 'DATABASE_UNREACHABLE' } })
    const { origin } = new URL(nodes[0]!.address)
    const readiness = async (): Promise<unknown> => (await fetch(`${origin}/readyz`)).json()
    await expect
      .poll(readiness, EVENTUALLY)
      .toMatchObject({ conditions: expect.arrayContaining(['CELL_UNREACHABLE south']) as unknown })
    await expect
      .poll(async () => (await fetch(`${origin}/metrics`)).text(), EVENTUALLY)
      .toMatch(/^tallygate_cell_up\{cell="south"\} 0$/m)
    await south!.start()
    for (const load of loads) await load.eachServed(4)
    for (const load of loads) await load.end()
    await expect.poll(readiness, EVENTUALLY).toEqual({ status: 'ready' })
    for (const [index, load] of loads.entries()) {
      const server = cells[index]!
      expect(load.wrong).toEqual([])
      expect(await load.audit(server.url)).toEqual([])
      // Nor would the audit have missed a record, or one in the wrong cell.
      expect(await load.audit(cells[1 - index]!.url)).toContainEqual(expect.stringMatching(/^lost: /))
    }
    for (const node of nodes) expect(await node.end('SIGTERM')).toBe(0)
  })

  it('notices a database that accepts connections and does not respond', async () => {
    await rateTable('1')
    const [ofNorth] = await instancesIn(north!, 1)
    const [ofSouth] = await instancesIn(south!, 1)
    const metrics = async (): Promise<string> => (await fetch(`${new URL(nodes[0]!.address).origin}/metrics`)).text()
    const thaw = south!.server.freeze()
    try {
      await expect.poll(metrics, EVENTUALLY).toMatch(/^tallygate_cell_up\{cell="south"\} 0$/m)
      expect((await access(ofNorth!)).status).toBe(200)
      expect(await access(ofSouth!)).toMatchObject({ status: 503, body: { code: 'DATABASE_UNREACHABLE' } })
    } finally {
      thaw()
    }
    await expect.poll(async () => (await access(ofSouth!)).status, EVENTUALLY).toBe(200)
  })

  it('keeps all instances of an account in one cell, although two nodes create them at once', async () => {
    const accounts = Array.from({ length: 12 }, () => crypto.randomUUID())
    await Promise.all(accounts.flatMap((account) => [0, 1, 0, 1].map((node) => instance(account, node))))
    const rowsOf = (server: Cell) =>
      runSql<{ account: string; count: number; defaults: number }>(
        server.url,
        `SELECT account_id AS account, count(*)::int AS count, sum(is_default)::int AS defaults
         FROM instances GROUP BY account_id`,
      )
    const [inNorth, inSouth] = [await rowsOf(north!), await rowsOf(south!)]
    expect(inNorth.length).toBeGreaterThan(0)
    expect(inSouth.length).toBeGreaterThan(0)
    const rows = [...inNorth, ...inSouth].toSorted((one, other) => one.account.localeCompare(other.account))
    const sorted = accounts.toSorted((one, other) => one.localeCompare(other))
    expect(rows).toEqual(sorted.map((account) => ({ account, count: 4, defaults: 1 })))
    const all = [...(await idsIn(north!)), ...(await idsIn(south!))]
    const listed: string[] = []
    let next = 0
    do {
      const page = (await make('GET', `instances?next=${next}&size=5`, { node: 1 })) as PageOfInstances
      listed.push(...page.content.map(({ id }) => id))
      next = page.next
    } while (next !== 0)
    expect(listed).toEqual(all)
    for (const { account } of rows) {
      const found = (await make('GET', `instances?accountId=${account}&default=true`, {})) as PageOfInstances
      expect(found.content).toMatchObject([{ accountId: account, defaultInstance: true }])
    }
  })

  it('copies rate tables and keys to the other cell, where a deleted key stops too', async () => {
    await rateTable('1')
    const [one] = await instancesIn(north!, 1)
    const [other] = await instancesIn(south!, 1)
    expect([await charged(one!), await charged(other!)]).toEqual([Number(PRICE_TEXT), Number(PRICE_TEXT)])
    await rateTable('2', 3)
    expect([await charged(one!), await charged(other!)]).toEqual([3, 3])
    const { privatePem, publicPem } = newKeyPair()
    const saved = [{ id: 'second', publicKey: publicPem, instances: [one!, other!], roles: ['operator'] }]
    expect((await call('PUT', '/api/v1.1/administration-keys', { body: saved })).status).toBe(200)
    const token = await tokenOf(privatePem, 'second')
    for (const id of [one!, other!]) expect((await access(id, { token, node: 1 })).status).toBe(200)
    // While a cell is away, a change is saved, and follows.
    await south!.kill()
    expect((await call('DELETE', '/api/v1.1/administration-keys/second')).status).toBe(200)
    expect((await access(one!, { token })).status).toBe(401)
    await south!.start()
    await expect.poll(async () => (await access(other!, { token })).status, EVENTUALLY).toBe(401)
    expect((await access(other!)).status).toBe(200)
    await expect.poll(async () => (await access(other!, { token, node: 1 })).status, EVENTUALLY).toBe(401)
  })

  it('requires a cell for what concerns the data of one, and works there', async () => {
    await instancesIn(north!, 2)
    const [ofNorth, ofSouth] = [(await instancesIn(north!, 1))[0]!, (await instancesIn(south!, 1))[0]!]
    const usage = '/provisioning/api/v1.1/usage'
    const refused = await call('GET', usage)
    expect(refused).toMatchObject({ status: 400, body: { code: 'CELL_REQUIRED' } })
    expect(text(refused.body, 'message')).toContain('north, south')
    await rateTable('1')
    for (const id of [ofNorth, ofSouth, ofSouth]) expect((await access(id)).status).toBe(200)
    const linesIn = async (headers: Readonly<Record<string, string>>): Promise<number> =>
      String((await call('GET', usage, { headers })).body)
        .split('\n')
        .filter(Boolean).length
    expect([await linesIn({ 'x-cell': 'north' }), await linesIn({ 'x-cell': 'south' })]).toEqual([1, 2])
    expect(await call('GET', usage, { headers: { 'x-cell': 'west' } })).toMatchObject({
      status: 400,
      body: { code: 'BAD_REQUEST' },
    })
    const audit = '/edge/api/v1/audit'
    expect((await call('GET', audit)).body).toMatchObject({ code: 'CELL_REQUIRED' })
    expect((await call('GET', `${audit}?instanceId=${ofSouth}`)).status).toBe(200)
    const both = { instanceIds: [ofNorth, ofSouth] }
    const several = await call('POST', '/edge/api/v1/enrollment-tokens', { body: both })
    expect(several).toMatchObject({ status: 400, body: { code: 'BAD_REQUEST' } })
    // A session belongs to the cell of its instance, also without the header.
    const opened = await call('POST', '/api/v1.1/sessions', { body: { instanceId: ofSouth } })
    const session = text(opened.body, 'sessionId')
    expect((await call('GET', `/api/v1.1/sessions/${session}/heartbeat`, { node: 1 })).status).toBe(204)
    expect((await call('GET', '/api/v1.1/sessions', { node: 1 })).body).toMatchObject([{ sessionId: session }])
    expect(await runSql(south!.url, 'SELECT id FROM sessions')).toEqual([{ id: session }])
    // Each cell has a console.
    const consoleOf = (place: string, query = ''): Promise<Reply> =>
      call('GET', `${place}/console${query}`, { headers: { cookie: `tallygate_console=${adminToken}` } })
    expect((await consoleOf('', `?instance=${ofNorth}`)).status).toBe(200)
    expect((await consoleOf('/cells/south', `?instance=${ofSouth}`)).status).toBe(200)
    expect((await consoleOf('/cells/south', `?instance=${ofNorth}`)).status).toBe(404)
    // It creates no instance of an account that another cell has.
    const shown = await call('GET', `/provisioning/api/v1.1/instances/${ofNorth}`)
    const form = { shortName: 's', accountId: text(shown.body, 'accountId'), formToken: formTokenOf(adminToken) }
    const headers = { cookie: `tallygate_console=${adminToken}` }
    for (const [place, status] of [
      ['/cells/south', 400],
      ['', 303],
    ] as const) {
      const address = `${nodes[0]!.address}${place}/console/instances/edit`
      const body = new URLSearchParams({ ...form, key: `form${place}` })
      const sent = await fetch(address, { method: 'POST', body, headers, redirect: 'manual' })
      expect([place, sent.status]).toEqual([place, status])
      if (status === 400) expect(await sent.text()).toContain('Customer account: belongs to the cell north.')
    }
    const nothing = await call('GET', `/provisioning/api/v1.1/instances/${crypto.randomUUID()}`)
    expect(nothing).toMatchObject({ status: 404, body: { code: 'NOT_FOUND' } })
  })

  it('continues with the database of a cloud that had no cells', async () => {
    const databases = [await Cell.create(north!.server, 'alone'), await Cell.create(north!.server, 'added')] as const
    const [before, added] = [databases[0].url, databases[1].url]
    for (const node of nodes.splice(0)) expect(await node.end('SIGTERM')).toBe(0)
    nodes = [await TwinProcess.start(['--db', before, '--store-path', join(directory, 'c')])]
    adminToken = await tokenOf(await readFile(join(directory, 'c', 'administration-key.pem'), 'utf8'))
    await rateTable('1')
    const id = await instance()
    expect(await charged(id)).toBe(Number(PRICE_TEXT))
    expect(await nodes[0]!.end('SIGTERM')).toBe(0)
    nodes = [await startNode('c', cellsOf(before, added))]
    // No recovery begins: the sales mark belongs to the database.
    expect(await charged(id)).toBe(Number(PRICE_TEXT))
    expect(await runSql(before, 'SELECT * FROM recoveries')).toEqual([])
    expect(await runSql(added, 'SELECT version FROM rate_tables')).toEqual([{ version: '1' }])
  })

  it('starts while a cell is away, and refuses databases of other cells and settings without a cell', async () => {
    const [ofNorth, ofSouth] = [(await instancesIn(north!, 1))[0]!, (await instancesIn(south!, 1))[0]!]
    await rateTable('1')
    for (const node of nodes.splice(0)) expect(await node.end('SIGTERM')).toBe(0)
    await expect(startNode('a', cellsOf(south!.url, north!.url))).rejects.toThrow('ended with 78')
    // The other node has started with both.
    await expect(startNode('a', cellsOf(north!.url))).rejects.toThrow('ended with 78')
    await expect(TwinProcess.start(['--db', north!.url, '--store-path', join(directory, 'a')])).rejects.toThrow(
      'ended with 78',
    )
    await expect(
      TwinProcess.start(['--db', north!.url, '--cells', cellsOf(south!.url), '--store-path', join(directory, 'a')]),
    ).rejects.toThrow('ended with 78')
    const empty = await Cell.create(south!.server, 'empty')
    await expect(startNode('a', cellsOf(north!.url, empty.url))).rejects.toThrow('ended with 78')
    // Even the control cell.
    await north!.kill()
    nodes = [await startNode('a')]
    expect((await access(ofSouth)).status).toBe(200)
    expect(await access(ofNorth)).toMatchObject({ status: 503, body: { code: 'DATABASE_UNREACHABLE' } })
    expect(await call('GET', '/provisioning/api/v1.1/rate-tables')).toMatchObject({ status: 503 })
    await north!.start()
    await expect.poll(async () => (await access(ofNorth)).status, EVENTUALLY).toBe(200)
    expect((await call('GET', '/provisioning/api/v1.1/rate-tables')).body).toMatchObject([{ version: '1' }])
  })
})

interface PageOfInstances {
  readonly content: readonly { readonly id: string }[]
  readonly next: number
}
