// Clients and devices of a cloud whose database fails. Each sends its next request when the last one was answered, waits as
// long as a refusal says, and notes what it received. The books are then compared with these notes.
import { randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { FleetDevice, PRICE } from '../../../bench/fleet/device.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { runSql, usageIn } from '../../support/postgres-schema.ts'
import { pick, text } from '../../cloud/harness.ts'

const ENTRIES = 3
export const LINE_ITEM = 'ACT-1'
/** Of each kind. */
export const EVERYONE = { keyed: 4, plain: 4, session: 3, device: 4 }

export interface Answer {
  readonly status: number
  readonly code: string
  readonly retryAfter: string | null
  readonly raw: string
}

export interface Site {
  /** Of the nodes. */
  readonly addresses: readonly string[]
  readonly adminToken: string
  /** Of one-off requests, of sessions, and of devices. */
  readonly instances: { readonly requests: string; readonly sessions: string; readonly devices: string }
}

type Kind = 'keyed' | 'plain' | 'session' | 'device'

interface Client {
  readonly name: string
  readonly kind: Kind
  served: number
  lastServedAt: number
  outageMs: number
}

interface Granted {
  readonly client: string
  readonly correlationId: string
  readonly micro: bigint
}

/** Codes with which nothing was changed. */
const UNCHANGED = new Set(['DATABASE_UNREACHABLE', 'OVERLOADED'])
const RETRYABLE = new Set([...UNCHANGED, 'OUTCOME_UNKNOWN', 'IDEMPOTENCY_IN_PROGRESS'])

export class FailoverLoad {
  readonly #site: Site
  readonly #clients: Client[] = []
  readonly #granted: Granted[] = []
  readonly #devices: FleetDevice[] = []
  /** Id of each session that was closed, or whose last heartbeat was answered at the time. */
  readonly #closed: string[] = []
  readonly #beats = new Map<string, number>()
  /** Requests without a key whose outcome their client does not know, by client. */
  readonly #unknown = new Map<string, number>()
  #retried: Record<string, number> = {}
  /** Responses that no client can do anything with. */
  readonly wrong: string[] = []
  #stops = false
  readonly #work: Promise<unknown>[] = []

  constructor(site: Site) {
    this.#site = site
  }

  async begin(sizes: Readonly<Record<Kind, number>>): Promise<void> {
    for (let made = 0; made < sizes.device; made += 1) this.#devices.push(await this.#device())
    const run = (kind: Kind, index: number): void => {
      const client = { name: `${kind}-${index}`, kind, served: 0, lastServedAt: performance.now(), outageMs: 0 }
      const node = this.#clients.push(client)
      const round = {
        keyed: () => this.#keyed(client, node),
        plain: () => this.#plain(client, node),
        session: () => this.#session(client, node),
        device: () => this.#sync(client, node, this.#devices[index]),
      }[kind]
      const rounds = async (): Promise<void> => {
        while (!this.#stops) await round()
      }
      this.#work.push(rounds())
    }
    for (const [kind, count] of Object.entries(sizes)) {
      for (let index = 0; index < count; index += 1) run(kind as Kind, index)
    }
  }

  /** Resolves when each client and device has got so many more answers. */
  async eachServed(more: number): Promise<void> {
    const targets = this.#clients.map((client) => ({ client, target: client.served + more }))
    const waiting = (async () => {
      while (targets.some(({ client, target }) => client.served < target)) await pause(5)
    })()
    // A client that fails would be waited for in vain.
    await Promise.race([waiting, Promise.all(this.#work)])
  }

  /** No client begins another request; those in progress are completed. */
  async end(): Promise<void> {
    this.#stops = true
    await Promise.all(this.#work)
  }

  /** The times without an answer are those since the previous report. */
  report(): string {
    const outages = this.#clients.map(({ outageMs }) => outageMs).toSorted((a, b) => a - b)
    const seconds = (ms = 0): string => `${(ms / 1000).toFixed(1)} s`
    const retried = Object.entries(this.#retried).map(([code, count]) => `${count} × ${code}`)
    for (const client of this.#clients) client.outageMs = 0
    this.#retried = {}
    return [
      `${this.#clients.length} clients and devices, ${this.#granted.length} grants acknowledged,`,
      `${this.#clients.reduce((sum, { served }) => sum + served, 0)} requests answered;`,
      `longest time without an answer: median ${seconds(outages[Math.floor(outages.length / 2)])},`,
      `longest ${seconds(outages.at(-1))}; sent again or given up after: ${retried.join(', ') || 'none'}`,
    ].join(' ')
  }

  async #call(node: number, method: string, path: string, options: CallOptions = {}): Promise<Answer> {
    const { addresses, adminToken } = this.#site
    const { body, key, token = adminToken, isCompressed = false } = options
    const response = await fetch(`${addresses[node % addresses.length]}${path}`, {
      method,
      headers: {
        authorization: `Bearer ${token}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...(isCompressed ? { 'content-encoding': 'gzip' } : {}),
        ...(key === undefined ? {} : { 'idempotency-key': key }),
      },
      ...(body === undefined ? {} : { body: new Uint8Array(Buffer.from(body)) }),
    })
    const raw = await response.text()
    const code = response.ok || raw === '' ? '' : String(pick(JSON.parse(raw), 'code'))
    return { status: response.status, code, retryAfter: response.headers.get('retry-after'), raw }
  }

  /** The response if the request was done, else null after the pause that it names. */
  async #done(client: Client, sent: Promise<Answer>, also: readonly number[] = []): Promise<Answer | null> {
    const answer = await sent
    const { status, code, retryAfter } = answer
    if ((status >= 200 && status < 300) || also.includes(status)) {
      const now = performance.now()
      client.outageMs = Math.max(client.outageMs, now - client.lastServedAt)
      client.lastServedAt = now
      client.served += 1
      return answer
    }
    this.#retried[code] = (this.#retried[code] ?? 0) + 1
    const wait = Number(retryAfter)
    const isKnown = RETRYABLE.has(code) && (status === 503 || status === 409)
    if (isKnown && retryAfter !== null && wait >= 1 && wait <= 5) await pause(wait * 1000)
    else this.wrong.push(`${client.name}: ${status} ${answer.raw}, Retry-After ${retryAfter}`)
    return null
  }

  /** Sends a request until it is done. */
  async #until(client: Client, node: number, send: (node: number) => Promise<Answer>, also: readonly number[] = []) {
    for (let attempt = 0; ; attempt += 1) {
      const answer = await this.#done(client, send(node + attempt), also)
      if (answer !== null) return answer
      if (this.wrong.length > 100) throw new Error('too many wrong responses')
    }
  }

  #note({ name }: Client, { raw }: Answer): void {
    const body = JSON.parse(raw) as { correlationId: string; requestedItems: [{ totalTokensCharged: number }] }
    const micro = BigInt(Math.round(body.requestedItems[0].totalTokensCharged * 1e6))
    if (micro > 0n) this.#granted.push({ client: name, correlationId: body.correlationId, micro })
    else this.wrong.push(`${name}: refused although there are tokens: ${raw}`)
  }

  #access({ name }: Client, count = 1): string {
    return JSON.stringify({
      requester: { type: 'user', value: name },
      requestedItems: [{ item: 'Print', version: '1.0', count }],
    })
  }

  async #keyed(client: Client, node: number): Promise<void> {
    const path = `/elastic/api/v1.1/instances/${this.#site.instances.requests}/access-request`
    const options = { body: this.#access(client), key: randomUUID() }
    this.#note(client, await this.#until(client, node, (to) => this.#call(to, 'POST', path, options)))
  }

  /** Knows that nothing was changed, or does not know it: sends another request. */
  async #plain(client: Client, node: number): Promise<void> {
    const path = `/elastic/api/v1.1/instances/${this.#site.instances.requests}/access-request`
    await this.#once(client, this.#call(node, 'POST', path, { body: this.#access(client) }))
  }

  async #once(client: Client, sent: Promise<Answer>): Promise<void> {
    const answer = await this.#done(client, sent)
    if (answer !== null) this.#note(client, answer)
    else if (!UNCHANGED.has((await sent).code)) {
      this.#unknown.set(client.name, (this.#unknown.get(client.name) ?? 0) + 1)
    }
  }

  async #session(client: Client, node: number): Promise<void> {
    const opening = { body: JSON.stringify({ instanceId: this.#site.instances.sessions }) }
    const opened = await this.#until(client, node, (to) => this.#call(to, 'POST', '/api/v1.1/sessions', opening))
    const id = text(JSON.parse(opened.raw), 'sessionId')
    const path = `/api/v1.1/sessions/${id}`
    const asked = JSON.parse(this.#access(client, 2)) as object
    const body = JSON.stringify({ ...asked, rollbackOnDeny: true })
    await this.#once(client, this.#call(node, 'PUT', path, { body }))
    for (let beats = 0; beats < 5 && !this.#stops; beats += 1) {
      const at = Date.now()
      await this.#until(client, node, (to) => this.#call(to, 'GET', `${path}/heartbeat`))
      this.#beats.set(id, at)
    }
    // It may have been closed by a request whose answer was lost.
    await this.#until(client, node, (to) => this.#call(to, 'DELETE', path), [403, 404, 409, 410])
    this.#closed.push(id)
  }

  async #device(): Promise<FleetDevice> {
    const instanceIds = [this.#site.instances.devices]
    const made = await this.#call(0, 'POST', '/edge/api/v1/enrollment-tokens', {
      body: JSON.stringify({ instanceIds }),
    })
    const device = await FleetDevice.make()
    const enrolled = await this.#call(0, 'POST', '/edge/api/v1/enrollments', {
      body: JSON.stringify({ publicKey: device.jwk }),
      token: text(JSON.parse(made.raw), 'token'),
    })
    await device.enrolled(text(JSON.parse(enrolled.raw), 'deviceId'), instanceIds)
    const attach = `/edge/api/v1/devices/${device.id}/attach`
    device.attached((await this.#call(0, 'POST', attach, { body: device.attachBody(), token: device.token })).raw)
    return device
  }

  async #sync(client: Client, node: number, device: FleetDevice | undefined): Promise<void> {
    if (device === undefined) throw new Error('the client has no device')
    const wanted = PRICE * BigInt(ENTRIES)
    const body = await device.seal(this.#site.instances.devices, client.served === 0 ? 0 : ENTRIES, wanted)
    const path = `/edge/api/v1/devices/${device.id}/sync`
    const options = { body, token: device.token, isCompressed: true }
    device.synced((await this.#until(client, node, (to) => this.#call(to, 'POST', path, options))).raw)
  }

  /** What the database at `url` has lost, doubled, or charged for nothing; call it after {@link end}. */
  async audit(url: string): Promise<readonly string[]> {
    return [
      ...(await this.#auditGrants(url)),
      ...(await this.#auditAccounts(url)),
      ...(await this.#auditDevices(url)),
      ...(await this.#auditSessions(url)),
    ]
  }

  async #auditGrants(url: string): Promise<readonly string[]> {
    const rows = (await usageIn(url)).filter(
      ({ status, source, operation }) => status === 'GRANTED' && source.kind !== 'device' && operation === 'REQUEST',
    )
    const problems: string[] = []
    const booked = Map.groupBy(rows, (record) => record.correlationId)
    for (const { client, correlationId, micro } of this.#granted) {
      const found = booked.get(correlationId) ?? []
      if (found.length === 0) problems.push(`lost: ${client} ${correlationId}`)
      if (found.length > 1) problems.push(`doubled: ${client} ${correlationId}`)
      if (found.some(({ tokens }) => tokens !== micro)) problems.push(`differs: ${client} ${correlationId}`)
    }
    const acknowledged = new Set(this.#granted.map(({ correlationId }) => correlationId))
    const others = Map.groupBy(
      rows.filter((record) => !acknowledged.has(record.correlationId)),
      ({ requesterValue }) => requesterValue,
    )
    for (const [client, charges] of others) {
      const unknown = this.#unknown.get(client) ?? 0
      if (charges.length > unknown) problems.push(`charged: ${client} ${charges.length} times, ${unknown} unknown`)
    }
    return problems
  }

  /** Each account has what its records add up to, and never more than was sold. */
  async #auditAccounts(url: string): Promise<readonly string[]> {
    const usage = (await usageIn(url)).filter(({ source }) => source.kind !== 'device')
    const rows = await runSql<{ id: string; instance: string; charged: string; out: string; cap: string }>(
      url,
      `SELECT id, instance_id AS instance, charged::text, granted_out::text AS out, cap_in_force::text AS cap FROM accounts`,
    )
    return rows.flatMap(({ id, instance, charged, out, cap }) => {
      const recorded = usage
        .filter(({ instanceId, status }) => instanceId === instance && ['GRANTED', 'REFUNDED'].includes(status))
        .reduce((sum, { tokens }) => sum + tokens, 0n)
      return [
        ...(BigInt(charged) === recorded ? [] : [`account ${id}: charged ${charged}, recorded ${recorded}`]),
        ...(BigInt(charged) + BigInt(out) <= BigInt(cap) ? [] : [`oversold: ${id}`]),
      ]
    })
  }

  async #auditDevices(url: string): Promise<readonly string[]> {
    const problems: string[] = []
    const account = lineAccount(this.#site.instances.devices, LINE_ITEM, 0)
    let out = 0n
    for (const { id, balances, refused } of this.#devices) {
      if (refused > 0) problems.push(`device ${id}: ${refused} entries had no tokens`)
      const mine = balances.get(account) ?? { granted: 0n, used: 0n }
      out += mine.granted
      const [row] = await runSql<{ granted: string; used: string; first: string; last: string; count: string }>(
        url,
        `SELECT granted::text, used::text, first::text, last::text, count::text FROM device_accounts d,
           (SELECT min(first_entry) AS first, max(last_entry) AS last, sum(last_entry - first_entry + 1) AS count
            FROM usage WHERE device_id = '${id}') AS entries
         WHERE d.device_id = '${id}' AND account = '${account}'`,
      )
      if (row?.granted !== `${mine.granted}` || row.used !== `${mine.used}`) {
        problems.push(`device ${id}: granted ${row?.granted}, used ${row?.used}; it has ${mine.granted}, ${mine.used}`)
      }
      if (row?.first !== '1' || row.last !== row.count) problems.push(`device ${id}: entries ${JSON.stringify(row)}`)
    }
    const [sum] = await runSql<{ out: string }>(
      url,
      `SELECT granted_out::text AS out FROM accounts WHERE id = '${account}'`,
    )
    if (this.#devices.length > 0 && sum?.out !== `${out}`) problems.push(`devices have ${out}, the account ${sum?.out}`)
    return problems
  }

  async #auditSessions(url: string): Promise<readonly string[]> {
    const rows = await runSql<{ id: string; state: string; beat: string }>(
      url,
      'SELECT id, state, last_heartbeat::text AS beat FROM sessions',
    )
    const known = new Map(rows.map((row) => [row.id, row]))
    const open = this.#closed.filter((id) => ['IDLE', 'ACTIVE', undefined].includes(known.get(id)?.state))
    const missed = [...this.#beats].filter(([id, at]) => Number(known.get(id)?.beat ?? 0) < at)
    return [...open.map((id) => `still open: session ${id}`), ...missed.map(([id]) => `no heartbeat: session ${id}`)]
  }
}

interface CallOptions {
  readonly body?: string | Buffer
  readonly key?: string
  readonly token?: string
  readonly isCompressed?: boolean
}
