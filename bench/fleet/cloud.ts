/** Cloud processes with instances of one line item each, and their books. */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { copyFileSync, existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import Database from 'better-sqlite3'
import { makeAccessToken } from '../../src/client/access-token.ts'
import { ask } from '../cloud/postgres-server.ts'
import type { Command } from '../contenders/agent.ts'
import { processorSeconds } from '../measure/process-use.ts'
import { LINE_ITEM, PRICE_TEXT } from './device.ts'
import type { Enrollment } from './device-process.ts'

const COUNTER = new URL('count-statements.ts', import.meta.url).href
const DAY_MS = 86_400_000

interface Node {
  readonly child: ChildProcess
  readonly address: string
}

/** Of an account, in micro-tokens. */
export interface Books {
  readonly account: string
  readonly charged: bigint
  readonly grantedOut: bigint
  readonly billedByDevices: bigint
  readonly cap: bigint
}

const BOOKS = `SELECT id, CAST(charged AS TEXT) AS charged, CAST(granted_out AS TEXT) AS granted_out,
  CAST(billed_by_devices AS TEXT) AS billed, CAST(cap_in_force AS TEXT) AS cap FROM accounts WHERE id LIKE 'line/%'`

export class FleetCloud {
  readonly #command: Command
  readonly #directory: string
  readonly #db: string | null
  readonly #count: number
  #nodes: Node[] = []

  /** @param db null: SQLite, with one node */
  constructor(command: Command, directory: string, db: string | null, count: number) {
    this.#command = command
    this.#directory = directory
    this.#db = db
    this.#count = db === null ? 1 : count
  }

  get addresses(): readonly string[] {
    return this.#nodes.map(({ address }) => address)
  }

  /** On any free ports at first, then on the same ones. */
  async start(): Promise<void> {
    const ports = this.#nodes.map(({ address }) => new URL(address).port)
    this.#nodes = []
    for (let index = 0; index < this.#count; index += 1) {
      this.#nodes.push(await this.#startNode(index, ports[index] ?? '0'))
    }
  }

  async stop(): Promise<void> {
    for (const { child } of this.#nodes) {
      if (child.exitCode !== null) continue
      const exit = once(child, 'exit')
      child.kill('SIGTERM')
      await exit
    }
  }

  /** Processor time of all nodes, s. */
  processorSeconds(): number {
    return this.#nodes.reduce((sum, { child }) => sum + processorSeconds(child.pid ?? 0), 0)
  }

  /** Since the nodes started. */
  async statements(): Promise<number> {
    let sum = 0
    for (const { child } of this.#nodes) {
      const told = once(child, 'message') as Promise<[number]>
      child.send('count')
      sum += (await told)[0]
    }
    return sum
  }

  /** Bytes of the database's pages in use. */
  async databaseBytes(): Promise<number> {
    if (this.#db !== null) {
      const [row] = await ask<{ bytes: string }>(this.#db, 'SELECT pg_database_size(current_database())::text AS bytes')
      return Number(row?.bytes)
    }
    return this.#inFile((database) => {
      const read = (pragma: string): number => database.pragma(pragma, { simple: true }) as number
      return (read('page_count') - read('freelist_count')) * read('page_size')
    })
  }

  async books(): Promise<readonly Books[]> {
    type Row = { id: string; charged: string; granted_out: string; billed: string; cap: string }
    const db = this.#db
    const rows = db === null ? this.#inFile((file) => file.prepare(BOOKS).all() as Row[]) : await ask<Row>(db, BOOKS)
    return rows.map((row) => ({
      account: row.id,
      charged: BigInt(row.charged),
      grantedOut: BigInt(row.granted_out),
      billedByDevices: BigInt(row.billed),
      cap: BigInt(row.cap),
    }))
  }

  async rate(): Promise<void> {
    await this.call('POST', '/provisioning/api/v1.1/rate-tables', {
      version: '1',
      effectiveFrom: Date.now() - DAY_MS,
      items: [{ name: 'Print', version: '1.0', rate: Number(PRICE_TEXT) }],
    })
  }

  /** @returns the id of a new instance with the line item */
  async instance(quantity: bigint): Promise<string> {
    const body = { shortName: 'fleet', accountId: randomUUID() }
    const { id } = (await this.call('POST', '/provisioning/api/v1.1/instances', body)) as { id: string }
    await this.setQuantity(id, quantity)
    return id
  }

  /** @param quantity whole tokens */
  async setQuantity(instanceId: string, quantity: bigint): Promise<void> {
    const now = Date.now()
    await this.call('PUT', `/provisioning/api/v1.1/instances/${instanceId}/line-items`, {
      activationId: LINE_ITEM,
      state: 'DEPLOYED',
      quantity: Number(quantity),
      start: now - DAY_MS,
      end: now + 300 * DAY_MS,
      attributes: { elastic: true },
    })
  }

  /** Of as many devices as own instances are named. */
  async enrollments(ownIds: readonly string[], sharedId: string): Promise<readonly Enrollment[]> {
    const made: Enrollment[] = []
    let next = 0
    const work = async (): Promise<void> => {
      while (next < ownIds.length) {
        const instanceId = ownIds[next++] ?? ''
        const body = { instanceIds: [instanceId, sharedId] }
        const { token } = (await this.call('POST', '/edge/api/v1/enrollment-tokens', body)) as { token: string }
        made.push({ token, instanceId })
      }
    }
    await Promise.all(Array.from({ length: 16 }, work))
    return made
  }

  async call(method: string, path: string, body: unknown): Promise<unknown> {
    const token = await makeAccessToken({
      kind: 'ADMIN',
      privateKey: readFileSync(join(this.#directory, 'node-0', 'administration-key.pem'), 'utf8'),
      instanceIds: [],
      issuer: 'bench',
      now: Date.now(),
      lifetimeMs: 3_600_000,
    })
    const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
    const response = await fetch(`${this.addresses[0]}${path}`, { method, headers, body: JSON.stringify(body) })
    const text = await response.text()
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
    return JSON.parse(text) as unknown
  }

  async #startNode(index: number, port: string): Promise<Node> {
    const args = ['cloud', '--http-port', port, '--push-broker', 'off', '--log-level', 'info']
    const path = join(this.#directory, `node-${index}`)
    mkdirSync(path, { recursive: true })
    const key = join(path, 'signing-key.pem')
    // All nodes of a store sign with one key.
    if (index > 0 && !existsSync(key)) copyFileSync(join(this.#directory, 'node-0', 'signing-key.pem'), key)
    const store = ['--store-path', path]
    const [program, ...first] = this.#command
    const child = spawn(program, [...first, ...args, ...store, ...(this.#db === null ? [] : ['--db', this.#db])], {
      stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
      env: { ...process.env, NODE_OPTIONS: `--import ${COUNTER}` },
    })
    const { stdout } = child
    if (stdout === null) throw new Error('invariant: the output of the child is a pipe')
    const address = await new Promise<string>((resolve, reject) => {
      createInterface({ input: stdout }).on('line', (line) => {
        const { msg, http } = JSON.parse(line) as { msg?: string; http?: string }
        if (msg === 'listening' && http !== undefined) resolve(http)
      })
      child.once('exit', () => reject(new Error('the cloud does not start')))
    })
    return { child, address }
  }

  #inFile<T>(read: (database: Database.Database) => T): T {
    const database = new Database(join(this.#directory, 'node-0', 'twin.db'), { readonly: true })
    try {
      return read(database)
    } finally {
      database.close()
    }
  }
}
