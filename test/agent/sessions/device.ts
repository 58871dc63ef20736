// A device for tests of sessions: the real state machine, ledger, clock and journal, a disk that outlives the process,
// a cloud that is as near as the test wants, and time that the test moves.
import { expect } from 'vitest'
import { Access } from '../../../src/agent/access/access.ts'
import { Clock } from '../../../src/agent/runtime/clock.ts'
import { IdempotencyCache } from '../../../src/agent/access/idempotency-cache.ts'
import type { Journal } from '../../../src/agent/ledger/journal.ts'
import { Ledger } from '../../../src/agent/ledger/ledger.ts'
import { LocalDecisions, type WaitingTopUp } from '../../../src/agent/access/local-decisions.ts'
import { ActivePolicies, type PolicyInForce } from '../../../src/agent/policy/active-policies.ts'
import { type SessionAnswer, Sessions } from '../../../src/agent/sessions/sessions.ts'
import { type AccountId, lineAccount } from '../../../src/core/accounts/account.ts'
import type { PolicyDocumentWire } from '../../../src/protocol/edge/policy-document.ts'
import { sessionSnapshot } from '../../../src/protocol/edge/sessions.ts'
import {
  accessResponseBody,
  requestOf,
  sessionAccessRequestBody,
} from '../../../src/protocol/service/access-request.ts'
import { accessBody, grantedAccount, IDENTITY, policyInForce, SEAL, unsigned } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { FakeTime } from '../sync/fake-time.ts'
import { TestDisk } from '../test-disk.ts'
import { policyWith } from '../sync/policies.ts'

export const LINE = lineAccount(INSTANCE, 'line-1', 0)
export const MINUTE = 60_000
export const HOUR = 60 * MINUTE
const TOKEN = 1_000_000n

/** Rules by which `print` costs one token, of a line item that may owe so much while the cloud cannot be asked. */
export async function essentialRules(
  revision: number,
  cap: bigint,
  consumptionLimit: PolicyDocumentWire['lineItems'][number]['consumptionLimit'] = null,
): Promise<PolicyInForce> {
  const offline = { policy: 'essential' as const, overspendCap: String(cap) }
  const { lineItems } = policyWith(revision)
  return policyInForce(revision, { lineItems: lineItems.map((item) => ({ ...item, offline, consumptionLimit })) })
}

const anybody = (): void => undefined

export class SessionDevice {
  readonly time = new FakeTime()
  readonly disk = new TestDisk()
  journal!: Journal
  clock!: Clock
  ledger!: Ledger
  sessions!: Sessions
  access!: Access
  activePolicies = new ActivePolicies()
  readonly fatal: unknown[] = []
  /** What happens at a broken invariant, besides its being noted. */
  onFatal: () => void = () => undefined
  readonly asked: WaitingTopUp[] = []
  /** What the cloud does while a request waits for it. */
  cloud: (request: WaitingTopUp) => Promise<void> = async () => undefined
  connected = true
  liveMax = 100
  /** Automatic charges, by the owner of the session. */
  readonly charged: [string | null, bigint][] = []
  readonly warned: Record<string, unknown>[] = []
  #term = 0
  #ids = 0

  /** Attached, with rules by which `print` costs one token, and so many tokens. */
  static async make(tokens = 1_000): Promise<SessionDevice> {
    const device = new SessionDevice()
    device.activePolicies.put(await policyInForce(1))
    await device.start()
    device.clock.learn({
      time: device.time.truth(),
      sentAt: device.time.sinceBoot(),
      receivedAt: device.time.sinceBoot(),
    })
    await device.grant(BigInt(tokens) * TOKEN)
    return device
  }

  /** A process begins with what the disk holds. */
  async start(): Promise<void> {
    this.journal = await this.disk.open({
      sign: async (payload) => unsigned(payload),
      now: () => this.time.truth(),
      onBroken: (error) => this.#broken(error),
    })
    if (this.disk.commits === 0) {
      await this.journal.saveIdentity(IDENTITY)
      await this.journal.attach(1)
    }
    const snapshot = await this.journal.read()
    this.clock = new Clock(this.time, snapshot.clock)
    this.ledger = new Ledger(
      {
        journal: this.journal,
        clock: this.clock,
        policies: this.activePolicies,
        startingGrant: 0n,
        batchEntries: 1_000,
        writeBehind: null,
        defer: (call) => void setImmediate(call),
        now: () => this.time.sinceBoot(),
        timers: this.time,
        onNeed: () => undefined,
        beforeFreeze: () => this.sessions.suspend(),
        onFatal: (error) => this.#broken(error),
      },
      snapshot,
    )
    const link = {
      requestGrant: async (request: WaitingTopUp, deadlineMs: number) => {
        if (!this.connected) return null
        this.asked.push(request)
        const begun = this.time.sinceBoot()
        await this.cloud(request)
        return this.time.sinceBoot() - begun < deadlineMs ? new Map() : null
      },
      status: () => ({ deviceId: 'device', policies: [{ instanceId: INSTANCE }] }),
    }
    const idempotencyCache = new IdempotencyCache([], 10)
    const { ledger, clock, activePolicies: policies } = this
    const decisions = new LocalDecisions({ ledger, clock, policies, link, topUpDeadlineMs: 2_000 })
    const newId = (): string => `00000000-0000-4000-a000-${String((this.#ids += 1)).padStart(12, '0')}`
    this.access = new Access({
      ledger,
      decisions,
      idempotencyCache,
      keepsInputs: true,
      newCorrelationId: newId,
      engine: 1,
    })
    this.sessions = new Sessions(
      {
        ...{ ledger, clock, policies, link, newId, newCorrelationId: newId, engine: 1 },
        access: this.access,
        liveMax: this.liveMax,
        timers: this.time,
        onCharged: (owner, tokens) => void this.charged.push([owner, tokens]),
        log: { warn: (fields, message) => void this.warned.push({ ...fields, message }) },
        onFatal: (error) => this.#broken(error),
      },
      snapshot.sessions,
    )
    this.sessions.start()
    await this.settle()
  }

  /** The process is gone, after what was durable. */
  kill(): void {
    this.disk.detach()
    this.sessions.stop()
    this.time.forgetTimers()
  }

  async restart(offMs = 0): Promise<void> {
    this.kill()
    this.time.advance(offMs)
    await this.start()
  }

  /** More tokens, cumulatively, durable before they can be spent. */
  async grant(granted: bigint, account: AccountId = LINE, exhausted = false): Promise<void> {
    const before = this.ledger.grant() === null ? 0n : (this.disk.read().accounts.get(account)?.granted ?? 0n)
    const grant = {
      term: (this.#term += 1),
      lifetimeMs: 365 * 24 * HOUR,
      expiresAt: this.time.truth() + 365 * 24 * HOUR,
      agedMs: 0,
      accounts: [{ ...grantedAccount(account, before + granted), exhausted }],
    }
    await this.#withDiskSpace(async () => {
      const { seq } = await this.journal.seal(SEAL)
      await this.journal.acknowledge(seq, grant, null)
    })
    this.ledger.applyGrant(grant)
  }

  /** The device attaches anew, after its ledger was frozen. */
  async beginEpoch(): Promise<void> {
    const epoch = this.disk.read().epoch + 1
    await this.#withDiskSpace(() => this.journal.attach(epoch))
    this.ledger.begin('device-1', epoch)
  }

  /** Deliveries have disk space of their own. */
  async #withDiskSpace(work: () => Promise<void>): Promise<void> {
    const { disk } = this
    const { refusals } = disk
    disk.refusals = 0
    await work()
    disk.refusals = refusals
  }

  #broken(error: unknown): void {
    this.fatal.push(error)
    this.onFatal()
  }

  async settle(): Promise<void> {
    for (let turn = 0; turn < 30; turn += 1) await new Promise((resolve) => setImmediate(resolve))
  }

  /** Time passes, in steps small enough that everything due is done when it is due. */
  async pass(ms: number): Promise<void> {
    let left = ms
    while (left > 0) {
      const most = Math.min(left, Math.max(1, this.time.untilNext))
      this.time.advance(most)
      left -= most
      await this.settle()
    }
    expect(this.fatal).toEqual([])
  }

  async open({ bound = false, owner = null }: { bound?: boolean; owner?: string | null } = {}): Promise<string> {
    const answer = await this.sessions.open({ instanceId: INSTANCE, owner, bound, idempotencyKey: null })
    if (!answer.operable) throw new Error('a session that was just opened is operable')
    return (JSON.parse(answer.body) as { sessionId: string }).sessionId
  }

  /** Asks for so many prints; 0 for an empty list. */
  async request(...asked: Parameters<SessionDevice['ask']>): Promise<number | string> {
    return outcome(await this.ask(...asked))
  }

  /** As {@link SessionDevice.request}, with all of the answer. */
  ask(
    sessionId: string,
    count: number,
    { rollbackOnDeny = true, item = 'print' }: { rollbackOnDeny?: boolean; item?: string } = {},
  ): Promise<SessionAnswer> {
    const body = sessionAccessRequestBody['v1.1'].parse({
      requester: { type: 'user', value: 'ada', dictionary: { a: 'b' } },
      rollbackOnDeny,
      requestedItems: count === 0 ? [] : [{ item, count, metaData: { job: 7 } }],
    })
    return this.sessions.request({
      apiVersion: 'v1.1',
      sessionId,
      request: requestOf(body),
      metaData: body.requestedItems.map(({ metaData }) => metaData),
      rollbackOnDeny,
      belongs: anybody,
      idempotencyKey: null,
    })
  }

  /** Asks for so many prints outside of any session. Returns the tokens that were charged. */
  async oneOff(count: number, user = 'ada'): Promise<number> {
    const body = { ...accessBody(count), requester: { type: 'user', value: user } }
    const call = { instanceId: INSTANCE, text: JSON.stringify(body), body, idempotencyKey: null }
    const { body: answer } = await this.access.request({ apiVersion: 'v1.1', ...call })
    const { requestedItems } = accessResponseBody.parse(JSON.parse(answer))
    return requestedItems.reduce((sum, { totalTokensCharged }) => sum + totalTokensCharged, 0)
  }

  async heartbeat(id: string): Promise<number | string> {
    return outcome(await this.sessions.heartbeat(id, anybody))
  }

  async close(id: string): Promise<number | string> {
    return outcome(await this.sessions.close(id, anybody, null))
  }

  session(id: string) {
    return this.sessions.get(id, anybody)
  }

  /** Tokens that are charged and not given back, by the counters, checked against the entries. */
  billed(epoch?: number): number {
    const stored = this.disk.read()
    const asked = epoch ?? stored.epoch
    const sums = { used: 0n, refunded: 0n }
    for (const { kind, postings, ...entry } of this.disk.history) {
      if (entry.epoch !== asked) continue
      for (const { account, amount } of postings)
        if (account === LINE) sums[kind === 'refund' ? 'refunded' : 'used'] += amount
    }
    if (asked === stored.epoch) {
      const { used, refunded } = stored.accounts.get(LINE) ?? { used: 0n, refunded: 0n }
      expect({ used, refunded }).toEqual(sums)
    }
    return Number(sums.used - sums.refunded) / 1_000_000
  }

  /** Kinds and events of the entries, in order. */
  log(): readonly string[] {
    for (const { snapshot } of this.disk.read().sessions) sessionSnapshot.parse(JSON.parse(snapshot))
    return this.disk.history.map(({ kind, session }) => `${kind} ${session?.event ?? ''}`)
  }
}

/** The status, or the state of a session that takes no more requests. */
function outcome(answer: SessionAnswer): number | string {
  return answer.operable ? answer.status : answer.session.state
}
