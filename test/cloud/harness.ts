// A whole twin in this process: real HTTP on a free port, a real SQLite file in a temporary directory, and a clock and
// timers that the test moves. `await using twin = await openTwin()` cleans up after itself.
import { createPublicKey, generateKeyPairSync } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Logger, pino } from 'pino'
import { makeAccessToken } from '../../src/client/access-token.ts'
import { openDatabase } from '../../src/cloud/storage/sqlite/database.ts'
import { openSqliteStore } from '../../src/cloud/storage/sqlite/store.ts'
import type { UsageRecord } from '../../src/cloud/storage/records.ts'
import type { Timers } from '../../src/cloud/runtime/run-repeatedly.ts'
import type { Reader } from '../../src/cloud/storage/store.ts'
import { type Cloud, startCloud } from '../../src/cloud/compose.ts'
import { type CloudSettings, cloudOptions } from '../../src/cloud/settings.ts'
import { loadSettings } from '../../src/settings/load.ts'
import { listUsage } from './usage/list-usage.ts'

/** Where the clock of a twin starts. */
export const START = Date.UTC(2026, 4, 6, 7, 8, 9)
export const MINUTE = 60_000
export const HOUR = 60 * MINUTE
export const DAY = 24 * HOUR

/** The window of a line item that is open whatever the time is. */
export const ALWAYS = { start: 0, end: 253_402_300_799_999 }

export interface Reply {
  readonly status: number
  /** Parsed JSON; undefined when there is none. See {@link pick}. */
  readonly body: unknown
  readonly text: string
  readonly headers: Headers
}

export interface CallOptions {
  readonly body?: unknown
  /** Sent as it is, in the place of `body`. */
  readonly raw?: string | Uint8Array<ArrayBuffer>
  /** Null: no token. Default: an administration token. */
  readonly token?: string | null
  readonly headers?: Readonly<Record<string, string>>
}

/** Rounds of background work happen only when the test asks for them. */
class HandTimers implements Timers {
  readonly #calls = new Set<() => void | Promise<void>>()

  every(_ms: number, call: () => void | Promise<void>): () => void {
    this.#calls.add(call)
    return () => this.#calls.delete(call)
  }

  async fire(): Promise<void> {
    await Promise.all([...this.#calls].map(async (call) => call()))
  }
}

export type SettingsChange = (settings: CloudSettings) => CloudSettings

/** Settings of a twin on a free port, with its directory in place. */
function testSettings(directory: string, change: SettingsChange = (settings) => settings): CloudSettings {
  const settings = loadSettings(cloudOptions, { file: null, env: {}, flags: {}, readText: () => '' })
  return change({
    ...settings,
    http: { ...settings.http, port: 0, checkAnswers: true },
    push: { ...settings.push, port: 0 },
    store: { ...settings.store, path: join(directory, 'cloud') },
  })
}

let migrated: Buffer | undefined

/** The file of an empty database: to migrate one takes longer than the rest of its opening. */
function emptyDatabase(): Buffer {
  if (migrated !== undefined) return migrated
  const folder = mkdtempSync(join(tmpdir(), 'tallygate-cloud-'))
  try {
    const path = join(folder, 'twin.db')
    openDatabase(path, { check: false }).close()
    return (migrated = readFileSync(path))
  } finally {
    rmSync(folder, { recursive: true })
  }
}

export async function openTwin(change?: SettingsChange, log?: Logger): Promise<Twin> {
  const directory = await mkdtemp(join(tmpdir(), 'tallygate-cloud-'))
  const settings = testSettings(directory, change)
  if (settings.db === null && settings.cells === null) {
    await mkdir(settings.store.path, { recursive: true, mode: 0o700 })
    await writeFile(join(settings.store.path, 'twin.db'), emptyDatabase(), { mode: 0o600 })
  }
  const twin = new Twin(directory, settings, log ?? pino({ level: 'silent' }))
  try {
    await twin.start()
  } catch (error) {
    await rm(directory, { recursive: true })
    throw error
  }
  return twin
}

export class Twin implements AsyncDisposable {
  readonly directory: string
  readonly settings: CloudSettings
  readonly #log: Logger
  #timers = new HandTimers()
  #cloud: Cloud | undefined
  readonly #wrongAnswers: Error[] = []
  #administrationKey = ''
  #clientKey = ''
  #now = START
  /** How far the clock is ahead of that of the machine, ms. Null: it stands still. */
  #aheadOfMachineMs: number | null = null
  /** How far the wall clock of the twin, and of who calls it, is ahead of the time that has passed, ms. */
  clockAheadMs = 0
  bootId = 'first'

  constructor(directory: string, settings: CloudSettings, log: Logger) {
    this.directory = directory
    this.settings = settings
    this.#log = log
  }

  /** Answers so far that their operation does not declare. */
  get wrongAnswers(): readonly Error[] {
    return this.#wrongAnswers
  }

  /** POSIX ms. Tests set it. */
  get now(): number {
    return this.#aheadOfMachineMs === null ? this.#now : Date.now() + this.#aheadOfMachineMs
  }

  set now(time: number) {
    this.#now = time
    if (this.#aheadOfMachineMs !== null) this.#aheadOfMachineMs = time - Date.now()
  }

  /** From now on, the clock is that of the machine, as programs outside of the test have it. */
  followMachine(): void {
    this.#aheadOfMachineMs = 0
  }

  get wall(): number {
    return this.now + this.clockAheadMs
  }

  get cloud(): Cloud {
    if (this.#cloud === undefined) throw new Error('the twin is not running')
    return this.#cloud
  }

  async start(change: SettingsChange = (settings) => settings): Promise<void> {
    this.#timers = new HandTimers()
    this.#cloud = await startCloud(change(this.settings), {
      now: () => this.wall,
      boot: { bootId: this.bootId, sinceBoot: () => this.now },
      timers: this.#timers,
      // No other node runs, so none answers during a wait.
      pause: () => Promise.resolve(),
      log: this.#log,
      onWrongAnswer: (error) => this.#wrongAnswers.push(error),
    })
    this.#administrationKey = await readFile(this.#cloud.administrationKeyFile, 'utf8')
  }

  async stop(): Promise<void> {
    // A test that moves the limit of a stop is faster.
    const limit = setTimeout(() => void this.#timers.fire(), this.settings.http.drainTimeout)
    await this.#cloud?.stop()
    clearTimeout(limit)
    this.#cloud = undefined
  }

  async restart(): Promise<void> {
    await this.stop()
    await this.start()
  }

  /** Moves the clock on and lets background work have its rounds. */
  async advance(ms: number): Promise<void> {
    this.now += ms
    await this.tick()
  }

  /** Lets background work have a round each. */
  async tick(): Promise<void> {
    await this.#timers.fire()
  }

  async administrationToken(issuer = 'tests'): Promise<string> {
    return makeAccessToken({
      kind: 'ADMIN',
      privateKey: this.#administrationKey,
      instanceIds: [],
      issuer,
      now: this.wall,
      lifetimeMs: HOUR,
    })
  }

  /** A token of a client whose key the twin knows. */
  async clientToken(...instanceIds: string[]): Promise<string> {
    if (this.#clientKey === '') {
      const pair = newKeyPair()
      this.#clientKey = pair.privatePem
      const body = [{ id: 'client', publicKey: pair.publicPem }]
      const { status } = await this.call('PUT', '/api/v1.1/client-keys', { body })
      if (status !== 200) throw new Error(`the client key was refused with ${status}`)
    }
    return makeAccessToken({
      kind: 'CLIENT',
      privateKey: this.#clientKey,
      keyId: 'client',
      instanceIds,
      issuer: 'tests',
      now: this.wall,
      lifetimeMs: HOUR,
    })
  }

  /** @param path below the prefix: `/provisioning/api/v1.1/instances` */
  async call(method: string, path: string, options: CallOptions = {}): Promise<Reply> {
    const token = options.token === undefined ? await this.administrationToken() : options.token
    const body = options.raw ?? (options.body === undefined ? undefined : JSON.stringify(options.body))
    const response = await fetch(`${this.cloud.address}${path}`, {
      method,
      headers: {
        ...(token === null ? {} : { authorization: `Bearer ${token}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...options.headers,
      },
      ...(body === undefined ? {} : { body }),
    })
    const said = await response.text()
    const isJson = response.headers.get('content-type')?.startsWith('application/json') ?? false
    return {
      status: response.status,
      body: isJson && said !== '' ? (JSON.parse(said) as unknown) : undefined,
      text: said,
      headers: response.headers,
    }
  }

  /** Makes an instance and returns its id. */
  async instance(accountId = 'customer'): Promise<string> {
    const { body } = await this.call('POST', '/provisioning/api/v1.1/instances', {
      body: { shortName: 'Test', accountId },
    })
    return text(body, 'id')
  }

  /** Makes an instance where `Print` has this rate, with the line item of {@link lineItemBody}; returns its id. */
  async shop(change: LineItemChange = {}, rate = 1): Promise<string> {
    const instanceId = await this.instance()
    await this.rates({ Print: rate })
    await this.lineItem(instanceId, change)
    return instanceId
  }

  /** With which a device enrolls once. */
  async enrollmentToken(...instanceIds: readonly string[]): Promise<string> {
    const { body } = await this.call('POST', '/edge/api/v1/enrollment-tokens', { body: { instanceIds } })
    return text(body, 'token')
  }

  /** Maps a line item that is elastic, in its window, and without series, but for what the change says. */
  async lineItem(instanceId: string, change: LineItemChange = {}): Promise<Reply> {
    return this.call('PUT', `/provisioning/api/v1.1/instances/${instanceId}/line-items`, {
      body: lineItemBody(change),
    })
  }

  /** A rate table in effect, without series: `{ Print: 3 }`. */
  async rates(items: Readonly<Record<string, number>>, series?: string, version = '1'): Promise<void> {
    const body = {
      effectiveFrom: START - DAY,
      version,
      ...(series === undefined ? {} : { series }),
      items: Object.entries(items).map(([name, rate]) => ({ name, rate })),
    }
    const saved = await this.call('POST', '/provisioning/api/v1.1/rate-tables', { body })
    if (saved.status !== 201) throw new Error(saved.text)
  }

  /** A one-off access request of one user for counts of items: `{ Print: 10 }`. */
  async access(instanceId: string, counts: Readonly<Record<string, number>>, user = 'LisaBarry'): Promise<Reply> {
    return this.call('POST', `/elastic/api/v1.1/instances/${instanceId}/access-request`, {
      body: { requester: { type: 'user', value: user }, requestedItems: itemsOf(counts) },
    })
  }

  /** Used tokens of a line item as the service shows them. */
  async used(instanceId: string, id: string): Promise<number> {
    const { body } = await this.call('GET', `/provisioning/api/v1.1/instances/${instanceId}/line-items/${id}`)
    return Number(pick(body, 'used'))
  }

  /** Looks into the twin's database by a connection of its own. */
  async read<T>(work: (reader: Reader) => Promise<T>): Promise<T> {
    const store = openSqliteStore({
      path: join(this.settings.store.path, 'twin.db'),
      check: false,
      onBroken: (error) => {
        throw error instanceof Error ? error : new Error(String(error))
      },
    })
    try {
      return await store.read(work)
    } finally {
      await store.close()
    }
  }

  /** The usage records of an instance, oldest first. */
  async usage(instanceId: string): Promise<readonly UsageRecord[]> {
    const { records } = await this.read((reader) => listUsage(reader, { instanceId, limit: 10_000 }))
    return records.toReversed()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop()
    await rm(this.directory, { recursive: true, force: true })
    // Whatever else a test looks at: each answer must be one that its operation declares.
    if (this.#wrongAnswers.length > 0) throw new AggregateError(this.#wrongAnswers, this.#wrongAnswers[0]?.message)
  }
}

export interface LineItemChange {
  readonly [field: string]: unknown
  readonly attributes?: Readonly<Record<string, unknown>>
}

export function lineItemBody({ attributes, ...fields }: LineItemChange = {}): Record<string, unknown> {
  return {
    activationId: 'ACT-1',
    state: 'DEPLOYED',
    quantity: 100,
    start: START - 30 * DAY,
    end: START + 300 * DAY,
    attributes: { elastic: true, ...attributes },
    ...fields,
  }
}

export function itemsOf(counts: Readonly<Record<string, number>>): { item: string; count: number }[] {
  return Object.entries(counts).map(([item, count]) => ({ item, count }))
}

export function newKeyPair(): { readonly privatePem: string; readonly publicPem: string } {
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  return {
    privatePem: privateKey.export({ type: 'pkcs8', format: 'pem' }),
    publicPem: createPublicKey(privateKey).export({ type: 'spki', format: 'pem' }),
  }
}

/** What is at a path inside parsed JSON; undefined where there is nothing. */
export function pick(value: unknown, ...path: readonly (string | number)[]): unknown {
  return path.reduce<unknown>((inner, key) => (inner as Record<string | number, unknown> | undefined)?.[key], value)
}

export function refusal({ status, body }: Pick<Reply, 'status' | 'body'>): readonly [number, unknown] {
  return [status, pick(body, 'code')]
}

export function text(value: unknown, ...path: readonly (string | number)[]): string {
  const found = pick(value, ...path)
  if (typeof found !== 'string') throw new Error(`there is no text at ${path.join('.')} of ${JSON.stringify(value)}`)
  return found
}
