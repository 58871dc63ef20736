// A whole device but for its socket and its disk: the real ledger, clock, tokens, HTTP calls and link, over a faulty network
// to the fake cloud, in time that the test moves. It can lose its process at any commit and start again from its disk.
import { ENGINE } from '../../../src/core/engine.ts'
import type { HttpExchange } from '../../../src/agent/platform/http/exchange.ts'
import { createCloudHttp } from '../../../src/agent/platform/http/cloud-client.ts'
import { Clock } from '../../../src/agent/runtime/clock.ts'
import type { Journal } from '../../../src/agent/ledger/journal.ts'
import { Ledger } from '../../../src/agent/ledger/ledger.ts'
import type { DeviceKey } from '../../../src/agent/keys/device-key.ts'
import { DeviceTokens } from '../../../src/agent/keys/device-token.ts'
import type { LinkSettings } from '../../../src/agent/sync/step.ts'
import { createLink, type Link } from '../../../src/agent/sync/link.ts'
import type { Push } from '../../../src/agent/sync/push.ts'
import { ActivePolicies } from '../../../src/agent/policy/active-policies.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import type { EntryBodyWire } from '../../../src/protocol/edge/sync.ts'
import type { SessionCommand } from '../../../src/protocol/edge/sessions.ts'
import { signDocument } from '../../../src/protocol/signing.ts'
import { newSigner } from '../../support/new-signer.ts'
import { FakeCloud, INSTANCE } from './fake-cloud.ts'
import { FakeTime } from './fake-time.ts'
import { FaultyNetwork } from '../../scenarios/link/faulty-network.ts'
import { TestDisk } from '../test-disk.ts'
import { type KeyPlace, MemoryKeys, signerOf } from '../keys/memory-keys.ts'
import { policyWith } from './policies.ts'

export const SYNC: LinkSettings['sync'] = {
  interval: 5 * 60_000,
  heartbeat: 15 * 60_000,
  sessionCheck: 60 * 60_000,
  batch: 1_000,
  backoffMin: 1_000,
  backoffMax: 5 * 60_000,
  stopTimeout: 2_000,
}

const LINE_ITEM = 'line-1'
export const ACCOUNT = lineAccount(INSTANCE, LINE_ITEM, 0)

/** What the pool of {@link ACCOUNT} holds, micro-tokens. */
export const CAP = 1_000_000_000n

/** Micro-tokens that a device wants before it has spent anything. */
export const STARTING_GRANT = 10_000_000n

export interface TestDeviceOptions {
  readonly sync?: Partial<LinkSettings['sync']>
  readonly returnOnStop?: boolean
  readonly push?: Push
  /** Uniform in [0, 1); by default always 0.5. */
  readonly fraction?: () => number
}

export class TestDevice {
  readonly time: FakeTime
  readonly cloud: FakeCloud
  readonly network: FaultyNetwork
  readonly key: DeviceKey
  /** Of the device itself, over restarts. */
  readonly keyPlace: KeyPlace
  keys: MemoryKeys
  readonly #how: TestDeviceOptions
  /** What charges are on. */
  charged = { instanceId: INSTANCE, lineItemId: LINE_ITEM, account: ACCOUNT }
  disk = new TestDisk()
  journal!: Journal
  /** Of the process; resolves with it. */
  #end = Promise.withResolvers<undefined>()
  token: string | null = null
  /** Of the process that starts next. */
  engine = ENGINE
  fatal: unknown[] = []
  /** What the link has written to its log. */
  readonly logged: { readonly fields: Record<string, unknown>; readonly message: string }[] = []
  readonly warned: string[] = []
  /** For its sessions, as the cloud gave them. */
  readonly commands: SessionCommand[] = []
  /** Amounts whose charge or return was sent to an application. */
  readonly told = { charged: 0n, refunded: 0n }
  ledger!: Ledger
  activePolicies!: ActivePolicies
  clock!: Clock
  link!: Link
  #tokensMade = 0

  private constructor(time: FakeTime, cloud: FakeCloud, key: DeviceKey, how: TestDeviceOptions) {
    this.time = time
    this.cloud = cloud
    this.network = new FaultyNetwork(cloud.exchange)
    this.key = key
    this.keyPlace = { current: key, next: null }
    this.keys = this.#openKeys()
    this.#how = how
  }

  /** A device with an enrollment token, before its first start. */
  static async make(how: TestDeviceOptions = {}): Promise<TestDevice> {
    const time = new FakeTime()
    const cloud = new FakeCloud(() => time.truth(), await newSigner())
    cloud.caps.set(ACCOUNT, CAP)
    await cloud.publish(policyWith(1))
    const device = new TestDevice(time, cloud, await makeDeviceKey(), how)
    device.token = await cloud.enrollmentToken()
    return device
  }

  /** A device on its way to a cloud that is not the fake one. */
  static async at(site: {
    readonly exchange: HttpExchange
    readonly push: Push
    readonly begin: number
    readonly token: string
    readonly charged: TestDevice['charged']
  }): Promise<TestDevice> {
    const time = new FakeTime(site.begin)
    const cloud = new FakeCloud(() => time.truth(), await newSigner())
    const device = new TestDevice(time, cloud, await makeDeviceKey(), { push: site.push })
    device.network.intercept = site.exchange
    device.token = site.token
    device.charged = site.charged
    return device
  }

  /** The same, started, and with everything that the cloud gives at first. */
  static async running(how: TestDeviceOptions = {}): Promise<TestDevice> {
    const device = await TestDevice.make(how)
    await device.start()
    await device.settle()
    return device
  }

  /** A process begins, with what the disk holds. */
  async start(): Promise<void> {
    const { time } = this
    this.keys = this.#openKeys()
    this.#end = Promise.withResolvers()
    // The process ends at the first.
    const onFatal = (error: unknown): void => {
      if (this.fatal.length === 0) this.fatal.push(error)
    }
    const signer = signerOf(() => this.keys)
    this.journal = await this.disk.open({
      sign: (payload) => signDocument('segment', payload, signer),
      now: () => time.truth(),
      onBroken: onFatal,
    })
    const snapshot = await this.journal.read()
    this.clock = new Clock(time, snapshot.clock)
    this.activePolicies = new ActivePolicies()
    this.ledger = new Ledger(
      {
        journal: this.journal,
        clock: this.clock,
        policies: this.activePolicies,
        startingGrant: STARTING_GRANT,
        batchEntries: SYNC.batch,
        defer: (call) => void setImmediate(call),
        writeBehind: null,
        now: () => time.sinceBoot(),
        timers: time,
        onNeed: () => this.link.wake('low-water'),
        onFatal,
      },
      snapshot,
    )
    const fraction = this.#how.fraction ?? (() => 0.5)
    const tokens = new DeviceTokens(this.keys, this.clock)
    const { exchange } = this.network
    this.link = await createLink({
      snapshot,
      journal: this.journal,
      ledger: this.ledger,
      activePolicies: this.activePolicies,
      clock: this.clock,
      applyCommands: (commands) => void this.commands.push(...commands),
      timers: time,
      randomness: { fraction, token: () => this.#token() },
      cloud: createCloudHttp({ exchange, tokens, pause: async () => undefined, fraction }),
      keys: this.keys,
      tokens,
      push: this.#how.push ?? null,
      enrollmentToken: async () =>
        this.token === null
          ? { token: null, reason: 'There is no enrollment token.' }
          : { token: this.token, source: '/etc/tallygate/enrollment-token' },
      log: {
        info: (fields, message) => void this.logged.push({ fields, message }),
        warn: (fields, message) => {
          this.logged.push({ fields, message })
          this.warned.push(message)
        },
      },
      settings: { sync: { ...SYNC, ...this.#how.sync }, grants: { returnOnStop: this.#how.returnOnStop ?? false } },
      software: 'tallygate test',
      engine: this.engine,
      onFatal,
    })
    await this.link.start()
  }

  /** The process is gone without a word. */
  kill(): void {
    this.disk.detach()
    this.#end.resolve(undefined)
    this.time.forgetTimers()
  }

  /** The process is gone and begins anew; with a power cut the boot id changes as well. */
  async restart({ reboot = false } = {}): Promise<void> {
    this.kill()
    if (reboot) this.time.bootId = `${this.time.bootId}'`
    this.fatal = []
    await this.start()
  }

  /** Lets everything run that is due at this moment, until nothing moves. */
  async settle(): Promise<void> {
    for (let quiet = 0; quiet < 3;) {
      this.time.advance(0)
      await new Promise((resolve) => setImmediate(resolve))
      quiet = this.link.status().rounds.running && this.fatal.length === 0 ? 0 : quiet + 1
    }
  }

  /** Moves time, stopping at every timer to let its work end. */
  async pass(ms: number): Promise<void> {
    let left = ms
    while (left > 0) {
      const step = Math.min(left, Math.max(1, this.time.untilNext))
      this.time.advance(step)
      left -= step
      await this.settle()
    }
  }

  /** A round, whatever the wait of a failed one. */
  async sync(): Promise<void> {
    this.link.wake('operator')
    await this.settle()
  }

  get left(): bigint {
    return this.ledger.availableAt(this.clock.reading())(this.charged.account).left
  }

  /** Charges as an access request would: if the balance suffices, with the response after it is durable. */
  async charge(amount: bigint): Promise<'GRANTED' | 'REFUSED' | 'UNKNOWN'> {
    if (this.ledger.status() !== 'ATTACHED' || this.left < amount) return 'REFUSED'
    const recorded = this.#record('access', amount)
    const outcome = recorded.then(
      () => 'GRANTED' as const,
      () => 'UNKNOWN' as const,
    )
    const done = (await Promise.race([outcome, this.#end.promise])) ?? 'UNKNOWN'
    if (done === 'GRANTED') this.told.charged += amount
    return done
  }

  /** Charges an essential line item beyond the grant. */
  async overspend(amount: bigint): Promise<void> {
    await this.#record('access', amount, new Map([[this.charged.account, amount]]))
    this.told.charged += amount
  }

  /** Gives back a part of what was charged before. */
  async refund(amount: bigint): Promise<boolean> {
    if (this.ledger.status() !== 'ATTACHED') return false
    const held = this.disk.read().accounts.get(this.charged.account)
    if (held === undefined || held.used - held.refunded < amount) return false
    const done = await Promise.race([
      this.#record('refund', amount).then(
        () => true,
        () => false,
      ),
      this.#end.promise,
    ])
    if (done !== true) return false
    this.told.refunded += amount
    return true
  }

  /** What became durable, over all epochs. */
  get durable(): { readonly charged: bigint; readonly refunded: bigint } {
    const sums = { charged: 0n, refunded: 0n }
    for (const { kind, postings } of this.disk.history) {
      for (const { amount } of postings) sums[kind === 'refund' ? 'refunded' : 'charged'] += amount
    }
    return sums
  }

  get conditions(): readonly string[] {
    return this.link.status().conditions.map(({ subject, code }) => `${subject.split(' ')[0] ?? ''}: ${code}`)
  }

  #record(kind: 'access' | 'refund', amount: bigint, allowances?: ReadonlyMap<string, bigint>): Promise<unknown> {
    const { instanceId, lineItemId, account } = this.charged
    const n = this.ledger.lastEntry() + 1
    const reading = this.clock.reading()
    const body: EntryBodyWire = {
      n,
      kind,
      at: reading.now,
      earliest: reading.earliest,
      latest: reading.latest,
      instanceId,
      policyRevision: 1,
      engine: 1,
      correlationId: '5c8ec4fd-f17f-4657-bf09-74a97ddc9f8b',
      requester: { type: 'user', value: 'lisa' },
      items: [
        {
          item: 'print',
          version: '',
          count: '1',
          outcome: 'GRANTED',
          total: String(amount),
          parts: [{ lineItemId, rate: '1', actionId: null, charged: String(amount) }],
        },
      ],
      postings: [{ account, amount: String(amount) }],
    }
    return this.ledger.record({
      n,
      body: JSON.stringify(body),
      moves: kind === 'access' ? 'used' : 'refunded',
      postings: [{ account, amount }],
      idempotencyRecord: null,
      ...(allowances === undefined ? {} : { allowances }),
    })
  }

  #openKeys(): MemoryKeys {
    return new MemoryKeys(this.keyPlace, this.disk, makeDeviceKey)
  }

  #token(): string {
    this.#tokensMade += 1
    return `token-${String(this.#tokensMade).padStart(12, '0')}-${this.time.bootId.length}-${this.disk.history.length}`
  }
}

export async function makeDeviceKey(): Promise<DeviceKey> {
  const { jwk, signer } = await newSigner()
  return { publicJwk: jwk, signer }
}
