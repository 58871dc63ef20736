/**
 * What a check has of the server: calls over HTTP with tokens of both kinds, things made with random names, and the clock. It
 * knows the server by its address alone. What is made is deleted again where the interface lets it.
 */
import assert from 'node:assert/strict'
import { type KeyObject, createPrivateKey, createPublicKey, generateKeyPairSync, randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { SignJWT, calculateJwkThumbprint } from 'jose'
import type { Version } from './version.ts'

const SECOND = 1_000
export const MINUTE = 60 * SECOND
export const HOUR = 60 * MINUTE
export const DAY = 24 * HOUR

/** How long the service may take until it knows a key. */
const KEY_WAIT_MS = 11 * MINUTE
const CALL_MS_MAX = 60 * SECOND
const BUSY_TRIES_MAX = 10

export interface Target {
  /** Address with its prefix, without a slash at the end. */
  readonly url: string
  /** Private administration key, PEM. */
  readonly adminKey: string
  /** Default: the RFC 7638 thumbprint of the key. */
  readonly adminKeyId?: string
  /** Address of a test clock: takes POST `{"advanceMs": n}`, answers `{"now": POSIX ms}` once all that was due is done. */
  readonly clock?: string
}

export interface Reply {
  readonly status: number
  /** Parsed JSON; undefined without a body. */
  readonly body: Json
  readonly text: string
  /** Media type without parameters; empty without a body. */
  readonly type: string
}

/** JSON as a check looks into it: whatever is not there is undefined, which no assertion takes for a value. */
// oxlint-disable-next-line typescript/no-explicit-any -- a check asserts shapes, it does not assume them
export type Json = any

export type Area = 'api' | 'floating/api' | 'provisioning/api' | 'elastic/api' | 'edge/api'

export interface Call {
  readonly area?: Area
  readonly version?: Version
  readonly body?: unknown
  /** Default: the administrator's. Null: none. */
  readonly token?: string | null
  readonly headers?: Readonly<Record<string, string>>
}

export interface Claims {
  readonly kind: 'ADMIN' | 'CLIENT'
  readonly key: KeyObject
  readonly keyId: string
  readonly instances?: readonly string[]
  /** Relative to now, ms; default one hour. */
  readonly expiresIn?: number
}

/** The connection of one run, shared by its checks. */
export class Server {
  readonly target: Target
  readonly adminKey: KeyObject
  readonly clientKeyId = `conformance-${randomUUID()}`
  readonly clientKey: KeyObject = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey
  adminKeyId = ''
  #clockNow: number | undefined
  #clientReady: Promise<void> | undefined
  readonly #shared = new Map<string, Promise<string>>()

  constructor(target: Target) {
    this.target = target
    this.adminKey = createPrivateKey(target.adminKey)
  }

  async open(): Promise<void> {
    this.adminKeyId =
      this.target.adminKeyId ?? (await calculateJwkThumbprint(createPublicKey(this.adminKey).export({ format: 'jwk' })))
    if (this.target.clock !== undefined) await this.advance(0)
  }

  /** The time of the server, as far as anybody outside can know it. */
  now(): number {
    return this.#clockNow ?? Date.now()
  }

  async advance(advanceMs: number): Promise<void> {
    assert.ok(this.target.clock, 'a check that moves time needs a clock')
    const response = await fetch(this.target.clock, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ advanceMs }),
      signal: AbortSignal.timeout(CALL_MS_MAX),
    })
    const { now } = (await response.json()) as { now?: unknown }
    assert.equal(typeof now, 'number', 'the clock answers {"now": POSIX ms}')
    this.#clockNow = now as number
  }

  /** What is made once and used by all checks that ask for the same. */
  shared(key: string, make: () => Promise<string>): Promise<string> {
    const made = this.#shared.get(key) ?? make()
    this.#shared.set(key, made)
    return made
  }

  async token({ kind, key, keyId, instances = [], expiresIn = HOUR }: Claims): Promise<string> {
    const now = Math.floor(this.now() / 1000)
    const expires = Math.floor((this.now() + expiresIn) / 1000)
    const cnf = { jwk: { kid: keyId, kty: kind } }
    return new SignJWT(kind === 'ADMIN' ? { cnf } : { cnf, aud: [...instances] })
      .setProtectedHeader({ alg: key.asymmetricKeyType === 'rsa' ? 'RS256' : 'ES256', typ: 'JWT' })
      .setIssuer('conformance')
      .setIssuedAt(Math.min(now, expires))
      .setNotBefore(Math.min(now, expires))
      .setExpirationTime(expires)
      .sign(key)
  }

  admin(): Promise<string> {
    return this.token({ kind: 'ADMIN', key: this.adminKey, keyId: this.adminKeyId })
  }

  /** A client token for these instances; the first one waits until the service knows its key. */
  async client(...instances: readonly string[]): Promise<string> {
    this.#clientReady ??= this.#registerClient(instances)
    await this.#clientReady
    return this.token({ kind: 'CLIENT', key: this.clientKey, keyId: this.clientKeyId, instances })
  }

  async #registerClient(instances: readonly string[]): Promise<void> {
    const body = [{ id: this.clientKeyId, publicKey: publicPem(this.clientKey) }]
    const saved = await this.send('PUT', 'api', 'v1.1', '/client-keys', { body })
    assert.equal(saved.status, 200, saved.text)
    const path = `/instances/${instances[0] ?? ''}/conditions`
    for (let waited = 0; ; waited += 15 * SECOND) {
      const token = await this.token({ kind: 'CLIENT', key: this.clientKey, keyId: this.clientKeyId, instances })
      if ((await this.send('GET', 'api', 'v1.1', path, { token })).status !== 401) return
      assert.ok(waited < KEY_WAIT_MS, 'the service does not take the tokens of a client key that it has saved')
      await pause(15 * SECOND)
    }
  }

  async send(method: string, area: Area, version: Version | 'v1', path: string, call: Call = {}): Promise<Reply> {
    for (let tries = 1; ; tries += 1) {
      const { reply, retryAfter } = await this.#sendOnce(method, area, version, path, call)
      // A server that is busy says so, and has done nothing.
      const isBusy = (reply.status === 503 || reply.status === 429) && retryAfter !== null
      if (!isBusy || tries === BUSY_TRIES_MAX) return reply
      await pause(Math.min(Number(retryAfter) || 1, 10) * SECOND)
    }
  }

  async #sendOnce(method: string, area: Area, version: Version | 'v1', path: string, call: Call) {
    const token = call.token === undefined ? await this.admin() : call.token
    const response = await fetch(`${this.target.url}/${area}/${version}${path}`, {
      method,
      headers: {
        ...(token === null ? {} : { authorization: `Bearer ${token}` }),
        ...(call.body === undefined ? {} : { 'content-type': 'application/json' }),
        ...call.headers,
      },
      ...(call.body === undefined ? {} : { body: JSON.stringify(call.body) }),
      signal: AbortSignal.timeout(CALL_MS_MAX),
    })
    const text = await response.text()
    const [type = ''] = (response.headers.get('content-type') ?? '').split(';')
    const reply: Reply = { status: response.status, body: parsed(text), text, type }
    return { reply, retryAfter: response.headers.get('retry-after') }
  }

  /** Deletes what the run has made for all of its checks. */
  async close(): Promise<void> {
    if (this.#clientReady !== undefined) await this.send('DELETE', 'api', 'v1.1', `/client-keys/${this.clientKeyId}`)
  }
}

/** What one check has. */
export class World {
  readonly server: Server
  readonly version: Version
  readonly #shared: (() => Promise<unknown>)[] = []
  readonly #own: (() => Promise<unknown>)[] = []

  constructor(server: Server, version: Version) {
    this.server = server
    this.version = version
  }

  now(): number {
    return this.server.now()
  }

  advance(ms: number): Promise<void> {
    return this.server.advance(ms)
  }

  /** A unique text. */
  unique(word: string): string {
    return `${word}-${randomUUID().slice(0, 13)}`
  }

  /** Below `api` unless said otherwise. */
  call(method: string, path: string, call: Call = {}): Promise<Reply> {
    return this.server.send(method, call.area ?? 'api', call.version ?? this.version, path, call)
  }

  provisioning(method: string, path: string, call: Call = {}): Promise<Reply> {
    return this.call(method, path, { area: 'provisioning/api', ...call })
  }

  /** An operation of this project on devices and sessions. */
  edge(method: string, path: string): Promise<Reply> {
    return this.server.send(method, 'edge/api', 'v1', path)
  }

  /** To be undone in any case: others see it. */
  later(work: () => Promise<unknown>): void {
    this.#shared.push(work)
  }

  /** Undoes what others would see, and what can be deleted unless it is to be kept; what fails is not the check's matter. */
  async close(keep: boolean): Promise<void> {
    for (const work of this.#shared.reverse()) await work().catch(() => undefined)
    if (!keep) for (const work of this.#own.reverse()) await work().catch(() => undefined)
  }

  /** Makes an instance and returns its id. */
  async instance(accountId = this.unique('account')): Promise<string> {
    const made = await this.provisioning('POST', '/instances', { body: { shortName: this.unique('conf'), accountId } })
    success(made)
    return text(made.body.id)
  }

  /** A series with a table in effect: `{ 'PhotoPrint/1.0': 3 }`, or `{ Plain: 1 }` without version. Returns the series. */
  async rates(items: Rates): Promise<string> {
    const series = this.unique('series')
    success(await this.rateTable({ series, items: ratedItems(items) }))
    return series
  }

  rateTable(change: Record<string, unknown>): Promise<Reply> {
    const body = { version: '1', effectiveFrom: this.now() - DAY, ...change }
    return this.provisioning('POST', '/rate-tables', { body })
  }

  /** Maps a line item of 100 tokens in its window, but for what the change says. Returns its id. */
  async lineItem(instance: string, change: LineItemChange = {}): Promise<string> {
    const body = this.lineItemBody(change)
    const { activationId } = body
    this.#own.push(async () => {
      await this.putLineItem(instance, { ...body, state: 'OBSOLETE' })
      await this.provisioning('DELETE', `/instances/${instance}/line-items/${activationId}`)
    })
    success(await this.putLineItem(instance, body))
    return activationId
  }

  lineItemBody({ attributes, ...fields }: LineItemChange = {}): { activationId: string } & Record<string, unknown> {
    return {
      activationId: this.unique('ACT'),
      state: 'DEPLOYED',
      quantity: 100,
      start: this.now() - 30 * DAY,
      end: this.now() + 300 * DAY,
      attributes: { elastic: true, ...attributes },
      ...fields,
    }
  }

  putLineItem(instance: string, body: unknown): Promise<Reply> {
    return this.provisioning('PUT', `/instances/${instance}/line-items`, { body })
  }

  async used(instance: string, lineItem: string): Promise<number> {
    const { body } = await this.provisioning('GET', `/instances/${instance}/line-items/${lineItem}`)
    return number(body.used)
  }

  /** An instance and a line item that goes by these rates; the table may be that of other checks too. */
  async shop(items: Rates = { PhotoPrint: 3 }, change: LineItemChange = {}): Promise<Shop> {
    return this.#shop(await this.server.shared(JSON.stringify(items), () => this.rates(items)), change)
  }

  /** A shop whose series no other check uses. */
  async ownShop(items: Rates): Promise<Shop> {
    return this.#shop(await this.rates(items), {})
  }

  async #shop(series: string, change: LineItemChange): Promise<Shop> {
    const instance = await this.instance()
    const attributes = { rateTableSeries: series, ...change.attributes }
    return { instance, series, lineItem: await this.lineItem(instance, { ...change, attributes }) }
  }

  /** A one-off request for `{ 'PhotoPrint/1.0': 10 }`. */
  access(instance: string, counts: Counts, options: RequestOptions & Call = {}): Promise<Reply> {
    const { user, dictionary, ...call } = options
    const body = { requester: requester(user, dictionary), requestedItems: requested(counts) }
    return this.call('POST', `/instances/${instance}/access-request`, { area: 'elastic/api', body, ...call })
  }

  /** Creates a session and returns its id. */
  async session(instance: string): Promise<string> {
    const made = await this.call('POST', '/sessions', { body: { instanceId: instance } })
    success(made)
    const id = text(made.body.sessionId)
    this.#own.push(() => this.call('DELETE', `/sessions/${id}`))
    return id
  }

  /** A request in a session. */
  ask(
    session: string,
    counts: Counts,
    options: RequestOptions & { readonly rollbackOnDeny?: boolean } = {},
  ): Promise<Reply> {
    const { user, dictionary, rollbackOnDeny = true } = options
    const body = { requester: requester(user, dictionary), rollbackOnDeny, requestedItems: requested(counts) }
    return this.call('PUT', `/sessions/${session}`, { body })
  }

  async state(session: string): Promise<string> {
    return text((await this.call('GET', `/sessions/${session}`)).body.state)
  }

  heartbeat(session: string): Promise<Reply> {
    return this.call('GET', `/sessions/${session}/heartbeat`)
  }

  /** The session as GET sessions lists it. */
  async listed(instance: string, session: string): Promise<Json> {
    const { body } = await this.call('GET', `/sessions?instanceId=${instance}`)
    return (body as Json[]).find(({ sessionId }: Json) => sessionId === session)
  }

  /** The heartbeat of a session that has ended fails as the version says. */
  async assertEnded(session: string, state = 'TERMINATED'): Promise<void> {
    const { status, body } = await this.heartbeat(session)
    if (this.version === 'v1.0') assert.equal(status, 403)
    else {
      assert.equal(status, 409)
      assert.match(text(body.message), new RegExp(state, 'i'))
    }
  }
}

export interface LineItemChange {
  readonly [field: string]: unknown
  readonly attributes?: Readonly<Record<string, unknown>>
}

export type Rates = Readonly<Record<string, number>>

export interface Shop {
  readonly instance: string
  readonly series: string
  readonly lineItem: string
}

export type Counts = Readonly<Record<string, number>>

export interface RequestOptions {
  readonly user?: string
  readonly dictionary?: Readonly<Record<string, unknown>>
}

export function requester(user = 'LisaBarry', dictionary?: Readonly<Record<string, unknown>>) {
  return { type: 'user', value: user, ...(dictionary === undefined ? {} : { dictionary }) }
}

function requested(counts: Counts) {
  return Object.entries(counts).map(([key, count]) => {
    const [item, version] = key.split('/')
    return { item, ...(version === undefined ? {} : { version }), count }
  })
}

export function ratedItems(items: Rates) {
  return Object.entries(items).map(([key, rate]) => {
    const [name, version] = key.split('/')
    return { name, ...(version === undefined ? {} : { version }), rate }
  })
}

export function success({ status, text: said }: Reply): void {
  assert.ok(status >= 200 && status < 300, `success was expected, and the answer is ${status} ${said}`)
}

export function refused({ status, text: said }: Reply, ...among: readonly number[]): void {
  if (among.length === 0)
    assert.ok(status >= 400 && status < 500, `a refusal was expected, and it is ${status} ${said}`)
  else assert.ok(among.includes(status), `${among.join(' or ')} was expected, and the answer is ${status} ${said}`)
}

export function text(value: unknown): string {
  assert.equal(typeof value, 'string', `a text was expected, and it is ${JSON.stringify(value)}`)
  return value as string
}

export function number(value: unknown): number {
  assert.equal(typeof value, 'number', `a number was expected, and it is ${JSON.stringify(value)}`)
  return value as number
}

export function publicPem(key: KeyObject): string {
  return createPublicKey(key).export({ type: 'spki', format: 'pem' })
}

const UUID = /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i
export function uuid(value: unknown): string {
  assert.match(text(value), UUID)
  return value as string
}

/** The first digit of an item's status code, which tells its class. */
export function classOf(item: Json): string {
  return text(item?.status?.code).slice(0, 1)
}

function parsed(said: string): Json {
  if (said === '') return undefined
  try {
    return JSON.parse(said)
  } catch {
    return undefined
  }
}
