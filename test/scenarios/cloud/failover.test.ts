// The primary of a cloud's PostgreSQL is killed while clients and devices use two nodes, and its standby takes over. What
// was acknowledged is in the books once. The times without an answer are printed, and depend on the machine.
import { cp, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { PRICE_TEXT } from '../../../bench/fleet/device.ts'
import { makeAccessToken } from '../../../src/client/access-token.ts'
import { PostgresPair, type PostgresProcess, postgresPrograms } from '../../support/postgres-pair.ts'
import { runSql } from '../../support/postgres-schema.ts'
import { TwinProcess } from '../../cloud/twin-process.ts'
import { pick, text } from '../../cloud/harness.ts'
import { FailoverLoad, LINE_ITEM, type Site } from './failover-load.ts'

const EVERYONE = { keyed: 4, plain: 4, session: 3, device: 4 }

describe('a cloud whose primary database is killed', { timeout: 300_000 }, () => {
  const programs = postgresPrograms()
  let pair: PostgresPair
  let [first, second]: PostgresProcess[] = []
  let directory: string
  let nodes: TwinProcess[] = []
  let site: Site

  beforeEach(async () => {
    pair = await PostgresPair.start(programs.folder)
    ;[first, second] = pair.servers
    directory = await mkdtemp(join(tmpdir(), 'tallygate-failover-'))
    nodes = [await startNode('a')]
    // What a node makes for itself at its first start belongs to all of them.
    const filter = (path: string): boolean => basename(path) !== 'sales.mark'
    await cp(join(directory, 'a'), join(directory, 'b'), { recursive: true, filter })
    nodes.push(await startNode('b'))
    site = await newSite()
  })
  afterEach(async () => {
    for (const node of nodes.splice(0)) await node[Symbol.asyncDispose]()
    await pair[Symbol.asyncDispose]()
    await rm(directory, { recursive: true, force: true })
  })

  const startNode = (name: string): Promise<TwinProcess> =>
    TwinProcess.start(['--db', pair.url, '--store-path', join(directory, name)])

  const call = async (method: string, path: string, body?: unknown, token = site.adminToken): Promise<unknown> => {
    const response = await fetch(`${nodes[0]!.address}${path}`, {
      method,
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    const raw = await response.text()
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${raw}`)
    return JSON.parse(raw)
  }

  const newSite = async (): Promise<Site> => {
    const now = Date.now()
    const adminToken = await makeAccessToken({
      kind: 'ADMIN',
      privateKey: await readFile(join(directory, 'a', 'administration-key.pem'), 'utf8'),
      instanceIds: [],
      issuer: 'tests',
      now,
      lifetimeMs: 3_600_000,
    })
    const make = (method: string, path: string, body: unknown) =>
      call(method, `/provisioning/api/v1.1/${path}`, body, adminToken)
    const items = [{ name: 'Print', version: '1.0', rate: Number(PRICE_TEXT) }]
    await make('POST', 'rate-tables', { effectiveFrom: now - 1_000, version: '1', items })
    const instance = async (): Promise<string> => {
      const id = text(await make('POST', 'instances', { shortName: 's', accountId: crypto.randomUUID() }), 'id')
      const lifetime = { start: now - 1_000, end: now + 3_600_000 }
      const lineItem = { activationId: LINE_ITEM, state: 'DEPLOYED', quantity: 100_000, ...lifetime }
      await make('PUT', `instances/${id}/line-items`, { ...lineItem, attributes: { elastic: true } })
      return id
    }
    const instances = { requests: await instance(), sessions: await instance(), devices: await instance() }
    return { addresses: nodes.map(({ address }) => address), adminToken, instances }
  }

  it('loses and doubles nothing that was acknowledged, and continues without a restart', async () => {
    await first!.requireStandby()
    const load = new FailoverLoad(site)
    await load.begin(EVERYONE)
    await load.eachServed(5)
    await first!.kill()
    await second!.promote()
    await load.eachServed(5)
    await load.end()
    process.stdout.write(`${load.report()}\n`)
    expect(load.wrong).toEqual([])
    expect(await load.audit(second!.url)).toEqual([])
    for (const node of nodes) expect(await node.end('SIGTERM')).toBe(0)
    // Nor would the audit have missed a record.
    await runSql(second!.url, `DELETE FROM usage WHERE seq = (SELECT max(seq) FROM usage WHERE source = 'one-off')`)
    expect(await load.audit(second!.url)).toEqual([
      expect.stringMatching(/^lost: /),
      expect.stringMatching(/^account /),
    ])
  })

  it('follows the primary to the other server and back again', async () => {
    await first!.requireStandby()
    const load = new FailoverLoad(site)
    await load.begin(EVERYONE)
    await load.eachServed(3)
    await first!.kill()
    await second!.promote()
    await load.eachServed(3)
    await pair.rejoin(first!, second!)
    await second!.requireStandby()
    await load.eachServed(3)
    await second!.kill()
    await first!.promote()
    await load.eachServed(3)
    await load.end()
    process.stdout.write(`${load.report()}\n`)
    expect(load.wrong).toEqual([])
    expect(await load.audit(first!.url)).toEqual([])
    for (const node of nodes) expect(await node.end('SIGTERM')).toBe(0)
  })

  it('loses what a standby had not received, which the audit finds, and sells none of it again', async () => {
    const load = new FailoverLoad(site)
    await load.begin({ ...EVERYONE, device: 0 })
    await load.eachServed(3)
    await second!.stop()
    await load.eachServed(10)
    await load.end()
    expect(await load.audit(first!.url)).toEqual([])
    await first!.kill()
    await second!.start()
    await second!.promote()
    expect(await load.audit(second!.url)).toContainEqual(expect.stringMatching(/^lost: keyed-/))
    const request = {
      requester: { type: 'user', value: 'u' },
      requestedItems: [{ item: 'Print', version: '1.0', count: 1 }],
    }
    const path = `/elastic/api/v1.1/instances/${site.instances.requests}/access-request`
    await expect
      .poll(() => call('POST', path, request).catch(String), { timeout: 60_000 })
      .toSatisfy((body) => pick(body, 'requestedItems', 0, 'status', 'code') === '2011')
  })
})
