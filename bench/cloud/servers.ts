/** Servers of the cloud benchmark: shipped cloud nodes, and the baseline. Each is audited after its run. */
import { fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import Database from 'better-sqlite3'
import { makeAccessToken } from '../../src/client/access-token.ts'
import { type UsageRow, recordsOf } from '../../src/cloud/storage/sql/packed-usage.ts'
import type { Command } from '../contenders/agent.ts'
import { countRows } from '../contenders/ledger-file.ts'
import { FLOOR_MARK } from '../floor/options.ts'
import type { Target } from '../load/dialect.ts'
import { limitProcessor } from '../measure/processor-limit.ts'
import type { CloudFloorOptions } from './floor-process.ts'
import { ask } from './postgres-server.ts'

export interface Books {
  readonly recorded: number
  /** Micro-tokens; null: not counted. */
  readonly pool: { readonly charged: bigint; readonly cap: bigint } | null
}

export interface Loaded {
  /** One per node. */
  readonly targets: readonly Target[]
  /** From now on, each node may use so much of a processor. */
  readonly limit: (processors: number) => void
  readonly killAndAudit: () => Promise<Books>
}

const QUANTITY = 1_000_000_000
export const MICRO_CHARGED = 1_000_000n

/** Digits in each body that the load generator replaces, so that each user asks once. */
const SERIAL = '0'.repeat(10)

interface CloudOptions {
  readonly command: Command
  readonly nodes: number
  /** Requests are spread over them. */
  readonly instances: number
}

/** @param db address of an empty schema; null: SQLite */
export async function startCloud(
  directory: string,
  { command, nodes, instances }: CloudOptions,
  db: string | null,
): Promise<Loaded> {
  const started: Awaited<ReturnType<typeof startNode>>[] = []
  for (let index = 0; index < nodes; index += 1) {
    const path = join(directory, `node-${index}`)
    mkdirSync(path)
    // All nodes of a store sign with one key.
    if (index > 0) copyFileSync(join(directory, 'node-0', 'signing-key.pem'), join(path, 'signing-key.pem'))
    started.push(await startNode(command, path, db))
  }
  const [first] = started
  if (first === undefined) throw new Error('at least one node is needed')
  const token = await makeAccessToken({
    kind: 'ADMIN',
    privateKey: readFileSync(join(directory, 'node-0', 'administration-key.pem'), 'utf8'),
    instanceIds: [],
    issuer: 'bench',
    now: Date.now(),
    lifetimeMs: 24 * 3_600_000,
  })
  const authorization = `Bearer ${token}`
  const paths = await provision(first.address, authorization, instances)
  return {
    targets: started.map(({ address }): Target => {
      const { port, pathname } = new URL(address)
      return {
        protocol: 'http',
        socketPath: '',
        port: Number(port),
        authorization,
        paths: paths.map((path) => `${pathname}${path}`),
        bodies: Array.from({ length: 64 }, (_, index) =>
          JSON.stringify({
            requester: { type: 'user', value: `user-${index}-${SERIAL}`, dictionary: { department: 'print' } },
            requestedItems: [{ item: 'Print', version: '1.0', count: 1 }],
          }),
        ),
        serial: SERIAL,
        grantMark: '"code":"1001"',
      }
    }),
    limit: (processors) => started.forEach(({ limit }) => limit(processors)),
    async killAndAudit() {
      for (const { kill } of started) await kill()
      return db === null ? auditSqlite(join(directory, 'node-0', 'twin.db')) : auditPostgres(db)
    },
  }
}

async function startNode([program, ...first]: Command, path: string, db: string | null) {
  const args = ['cloud', '--http-port', '0', '--push-broker', 'off', '--store-path', path, '--log-level', 'info']
  const child = spawn(program, [...first, ...args, ...(db === null ? [] : ['--db', db])], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const exit = once(child, 'exit')
  let endLimit = (): void => undefined
  const address = await new Promise<string>((resolve, reject) => {
    createInterface({ input: child.stdout }).on('line', (line) => {
      const { msg, http } = JSON.parse(line) as { msg?: string; http?: string }
      if (msg === 'listening' && http !== undefined) resolve(http)
    })
    exit.then(() => reject(new Error('the cloud does not start')), reject)
  })
  const kill = async (): Promise<void> => {
    child.kill('SIGKILL')
    await exit
    endLimit()
  }
  const limit = (processors: number): void => {
    if (child.pid !== undefined) endLimit = limitProcessor(child.pid, processors)
  }
  return { address, limit, kill }
}

/** Creates instances, each with one line item for one department. Returns the paths of their access requests. */
async function provision(address: string, authorization: string, instances: number): Promise<readonly string[]> {
  const call = async (method: string, path: string, body: unknown): Promise<unknown> => {
    const headers = { authorization, 'content-type': 'application/json' }
    const response = await fetch(`${address}${path}`, { method, headers, body: JSON.stringify(body) })
    const said = await response.text()
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${said}`)
    return JSON.parse(said) as unknown
  }
  const now = Date.now()
  const provisioning = '/provisioning/api/v1.1'
  await call('POST', `${provisioning}/rate-tables`, {
    effectiveFrom: now - 1_000,
    version: '1',
    items: [{ name: 'Print', version: '1.0', rate: 1 }],
  })
  const paths: string[] = []
  for (let index = 0; index < instances; index += 1) {
    const made = await call('POST', `${provisioning}/instances`, { shortName: `bench ${index}`, accountId: 'bench' })
    const { id } = made as { id: string }
    await call('PUT', `${provisioning}/instances/${id}/line-items`, {
      activationId: 'HOT',
      state: 'DEPLOYED',
      quantity: QUANTITY,
      start: now - 1_000,
      end: now + 86_400_000,
      attributes: { elastic: true },
    })
    const conditions = await call('POST', `/api/v1.1/instances/${id}/conditions`, [
      { name: 'printers', operator: 'IN', property: 'department', values: ['print'] },
    ])
    const conditionId = (conditions as { id: string }[])[0]?.id
    const actions = [{ name: 'printers', conditionId, action: 'ALLOW', allocation: QUANTITY }]
    await call('POST', `/api/v1.1/instances/${id}/line-items/HOT/actions`, actions)
    paths.push(`/elastic/api/v1.1/instances/${id}/access-request`)
  }
  return paths
}

const POOL = `SELECT sum(charged) AS charged, sum(cap_in_force) AS cap FROM accounts WHERE id LIKE 'line/%'`
const USAGE = 'SELECT instance_id, epoch, body FROM usage'

interface Row {
  readonly charged: bigint | string
  readonly cap: bigint | string
}

function auditSqlite(path: string): Books {
  const database = new Database(path)
  try {
    database.defaultSafeIntegers(true)
    return booksOf(database.prepare(POOL).get() as Row, database.prepare(USAGE).all() as UsageRow[])
  } finally {
    database.close()
  }
}

async function auditPostgres(url: string): Promise<Books> {
  const [pool] = await ask<{ charged: string; cap: string }>(url, POOL)
  if (pool === undefined) throw new Error('the store has no books')
  return booksOf(pool, await ask<UsageRow>(url, USAGE))
}

function booksOf({ charged, cap }: Row, usage: readonly UsageRow[]): Books {
  const granted = usage.flatMap(recordsOf).filter(({ status }) => status === 'GRANTED')
  const requests = new Set(granted.map(({ correlationId }) => correlationId))
  if (granted.length !== requests.size) throw new Error('a request has more than one usage record')
  return { recorded: granted.length, pool: { charged: BigInt(charged), cap: BigInt(cap) } }
}

/** @param db address of a schema for its table; null: SQLite */
export async function startFloor(directory: string, db: string | null): Promise<Loaded> {
  const options: CloudFloorOptions = {
    databasePath: join(directory, 'floor.db'),
    postgresUrl: db,
    // Sizes of the cloud's usage record and response.
    rowBytes: 300,
    answerBytes: 330,
  }
  const child = fork(new URL('floor-process.ts', import.meta.url), [JSON.stringify(options)])
  const exit = once(child, 'exit')
  const [message] = (await Promise.race([once(child, 'message'), exit.then(() => [undefined])])) as [
    { port: number } | undefined,
  ]
  if (message === undefined) throw new Error('the floor does not start')
  return {
    targets: [
      { protocol: 'http', socketPath: '', port: message.port, paths: ['/'], bodies: ['{}'], grantMark: FLOOR_MARK },
    ],
    limit: () => undefined,
    async killAndAudit() {
      child.kill('SIGKILL')
      await exit
      if (db === null) return { recorded: countRows(options.databasePath), pool: null }
      const [row] = await ask<{ count: string }>(db, 'SELECT count(*) FROM floor_entry')
      return { recorded: Number(row?.count), pool: null }
    },
  }
}
