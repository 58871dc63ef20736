// Two nodes of a cloud over one database, with what the load of failover-load.ts needs in them.
import { cp, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { PRICE_TEXT } from '../../../bench/fleet/device.ts'
import { makeAccessToken } from '../../../src/client/access-token.ts'
import { text } from '../../cloud/harness.ts'
import { TwinProcess } from '../../cloud/twin-process.ts'
import { LINE_ITEM, type Site } from './failover-load.ts'

export class FailoverCloud implements AsyncDisposable {
  readonly site: Site
  readonly #directory: string
  readonly #nodes: readonly TwinProcess[]

  private constructor(site: Site, directory: string, nodes: readonly TwinProcess[]) {
    this.site = site
    this.#directory = directory
    this.#nodes = nodes
  }

  static async start(url: string): Promise<FailoverCloud> {
    const directory = await mkdtemp(join(tmpdir(), 'tallygate-failover-'))
    const startNode = (name: string): Promise<TwinProcess> =>
      TwinProcess.start(['--db', url, '--store-path', join(directory, name)])
    const nodes = [await startNode('a')]
    // What a node makes for itself at its first start belongs to all of them.
    const filter = (path: string): boolean => basename(path) !== 'sales.mark'
    await cp(join(directory, 'a'), join(directory, 'b'), { recursive: true, filter })
    nodes.push(await startNode('b'))
    const adminToken = await makeAccessToken({
      kind: 'ADMIN',
      privateKey: await readFile(join(directory, 'a', 'administration-key.pem'), 'utf8'),
      instanceIds: [],
      issuer: 'tests',
      now: Date.now(),
      lifetimeMs: 3_600_000,
    })
    const addresses = nodes.map(({ address }) => address)
    const make = (method: string, path: string, body: unknown) =>
      call(addresses[0]!, adminToken, method, `/provisioning/api/v1.1/${path}`, body)
    return new FailoverCloud({ addresses, adminToken, instances: await newInstances(make) }, directory, nodes)
  }

  /** @throws for a response other than 2xx */
  call(method: string, path: string, body?: unknown): Promise<unknown> {
    return call(this.site.addresses[0]!, this.site.adminToken, method, path, body)
  }

  /** The exit codes of the nodes. */
  stop(): Promise<(number | null)[]> {
    return Promise.all(this.#nodes.map((node) => node.end('SIGTERM')))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const node of this.#nodes) await node[Symbol.asyncDispose]()
    await rm(this.#directory, { recursive: true, force: true })
  }
}

async function newInstances(
  make: (method: string, path: string, body: unknown) => Promise<unknown>,
): Promise<Site['instances']> {
  const now = Date.now()
  const items = [{ name: 'Print', version: '1.0', rate: Number(PRICE_TEXT) }]
  await make('POST', 'rate-tables', { effectiveFrom: now - 1_000, version: '1', items })
  const instance = async (): Promise<string> => {
    const id = text(await make('POST', 'instances', { shortName: 's', accountId: crypto.randomUUID() }), 'id')
    const lifetime = { start: now - 1_000, end: now + 3_600_000 }
    const lineItem = { activationId: LINE_ITEM, state: 'DEPLOYED', quantity: 100_000, ...lifetime }
    await make('PUT', `instances/${id}/line-items`, { ...lineItem, attributes: { elastic: true } })
    return id
  }
  return { requests: await instance(), sessions: await instance(), devices: await instance() }
}

async function call(address: string, token: string, method: string, path: string, body?: unknown): Promise<unknown> {
  const response = await fetch(`${address}${path}`, {
    method,
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })
  const raw = await response.text()
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${raw}`)
  return JSON.parse(raw)
}
