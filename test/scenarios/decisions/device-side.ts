// The agent's use cases over its journal. The clock has no error, and the device has all tokens of the cloud: with a part
// of them it would spend its own before it requests those of an earlier line item.
import { randomUUID } from 'node:crypto'
import { Access } from '../../../src/agent/access/access.ts'
import { IdempotencyCache } from '../../../src/agent/access/idempotency-cache.ts'
import { LocalDecisions, type WaitingTopUp } from '../../../src/agent/access/local-decisions.ts'
import type { GrantedAccount, Journal } from '../../../src/agent/ledger/journal.ts'
import { Ledger } from '../../../src/agent/ledger/ledger.ts'
import { ActivePolicies } from '../../../src/agent/policy/active-policies.ts'
import { type SessionAnswer, Sessions } from '../../../src/agent/sessions/sessions.ts'
import { capByPolicy } from '../../../src/cloud/policy/rules-in-force.ts'
import type { LoadedPolicy } from '../../../src/cloud/policy/load-policy.ts'
import type { UsageRecord } from '../../../src/cloud/storage/records.ts'
import { usageOfEntries } from '../../../src/cloud/usage/usage-of-entries.ts'
import { type AccountId, actionAccount, limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { compilePolicy, periodAt } from '../../../src/core/rules/compile.ts'
import { exactly } from '../../../src/core/rules/decision.ts'
import type { Policy } from '../../../src/core/rules/policy.ts'
import type { Session } from '../../../src/core/sessions/session.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { policyDocument, policyOf, policyToWire } from '../../../src/protocol/edge/policy-document.ts'
import { requestOf, sessionAccessRequestBody } from '../../../src/protocol/service/access-request.ts'
import type { ApiVersion } from '../../../src/protocol/service/status.ts'
import { IDENTITY, SEAL, unsigned } from '../../agent/harness.ts'
import { newSigner } from '../../support/new-signer.ts'
import type { FakeTime } from '../../agent/sync/fake-time.ts'
import { TestDisk } from '../../agent/test-disk.ts'
import type { Command } from './cloud-side.ts'
import { REQUESTERS } from './random-site.ts'

const CENTURY_MS = 36_500 * 86_400_000

export class DeviceSide {
  readonly #instanceId: string
  readonly #time: FakeTime
  readonly #disk = new TestDisk()
  readonly #rules = new ActivePolicies()
  readonly #problems: unknown[] = []
  #term = 0
  #journal!: Journal
  #ledger!: Ledger
  #access!: Access
  #sessions!: Sessions

  private constructor(instanceId: string, time: FakeTime) {
    this.#instanceId = instanceId
    this.#time = time
  }

  static async start(instanceId: string, time: FakeTime): Promise<DeviceSide> {
    const device = new DeviceSide(instanceId, time)
    device.#journal = await device.#openJournal()
    await device.#journal.saveIdentity({ ...IDENTITY, instanceIds: [instanceId] })
    await device.#journal.attach(1)
    await device.#begin()
    await device.#take([])
    return device
  }

  async restart(): Promise<void> {
    await this.settle()
    this.stop()
    this.#disk.detach()
    this.#journal = await this.#openJournal()
    await this.#begin()
  }

  stop(): void {
    this.#sessions.stop()
    this.#time.forgetTimers()
  }

  #openJournal(): Promise<Journal> {
    return this.#disk.open({
      sign: async (payload) => unsigned(payload),
      now: () => this.#time.truth(),
      onBroken: (error) => void this.#problems.push(error),
    })
  }

  async #begin(): Promise<void> {
    const [time, journal, policies] = [this.#time, this.#journal, this.#rules]
    const snapshot = await journal.read()
    const clock = {
      reading: () => exactly(time.truth()),
      sinceBoot: () => time.sinceBoot(),
      stored: () => ({
        bootId: time.bootId,
        sinceBoot: time.sinceBoot(),
        earliest: time.truth(),
        latest: time.truth(),
      }),
    }
    const onFatal = (error: unknown): void => void this.#problems.push(error)
    const ledger = new Ledger(
      {
        ...{ journal, clock, policies, onFatal },
        startingGrant: 0n,
        batchEntries: 1_000,
        writeBehind: null,
        defer: (call) => void setImmediate(call),
        now: () => time.sinceBoot(),
        timers: time,
        onNeed: () => undefined,
      },
      snapshot,
    )
    const link = {
      requestGrant: async ({ accounts }: WaitingTopUp) =>
        new Map(accounts.map((account) => [account, { available: 0n, returnable: 0n }])),
      status: () => ({ deviceId: 'device', policies: [{ instanceId: this.#instanceId }] }),
    }
    const decisions = new LocalDecisions({ ledger, clock, policies, link, topUpDeadlineMs: 2_000 })
    const parts = { ledger, newCorrelationId: randomUUID, engine: 1 }
    const idempotencyCache = new IdempotencyCache([], 10)
    this.#ledger = ledger
    this.#access = new Access({ ...parts, decisions, idempotencyCache, keepsInputs: true })
    this.#sessions = new Sessions(
      {
        ...{ ...parts, clock, policies, link, onFatal },
        access: this.#access,
        newId: randomUUID,
        liveMax: 1_000,
        timers: time,
        onCharged: () => undefined,
        log: { warn: (fields, message) => void this.#problems.push({ ...fields, message }) },
      },
      snapshot.sessions,
    )
    this.#sessions.start()
  }

  /** Through the text that the cloud signs. Returns the rules as the device reads them. */
  async takeRules({ policy }: LoadedPolicy, sessionIntervalMs: number): Promise<Policy> {
    const { jwk } = await newSigner()
    const wire = policyToWire(policy, {
      instanceName: 's',
      issuedAt: this.#time.truth(),
      usableForMs: CENTURY_MS,
      grantHorizonMs: 0,
      sessionIntervalMs,
      trustedKeys: [jwk],
    })
    const document = policyDocument.parse(JSON.parse(JSON.stringify(wire)))
    const read = policyOf(document)
    await this.#ledger.prepareRules(read)
    this.#rules.put({ document, compiled: compilePolicy(read) })
    return read
  }

  async fill(loaded: LoadedPolicy, at: number): Promise<void> {
    const known = new Map(this.#ledger.accounts())
    const lacking = accountsAt(loaded.policy, at).flatMap((account): GrantedAccount[] => {
      const cap = capByPolicy(loaded, account)
      const { granted = 0n, unlimited = false } = known.get(account) ?? {}
      if (cap === null) return unlimited ? [] : [{ account, granted, exhausted: false, unlimited: true }]
      return granted >= cap ? [] : [{ account, granted: cap, exhausted: false, unlimited: false }]
    })
    if (lacking.length > 0) await this.#take(lacking)
  }

  async #take(accounts: readonly GrantedAccount[]): Promise<void> {
    const expiresAt = this.#time.truth() + CENTURY_MS
    const grant = { term: (this.#term += 1), lifetimeMs: CENTURY_MS, expiresAt, agedMs: 0, accounts }
    const { seq } = await this.#journal.seal(SEAL)
    await this.#journal.acknowledge(seq, grant, null)
    this.#ledger.applyGrant(grant)
  }

  async settle(): Promise<void> {
    // Denials are recorded after their response.
    await this.#ledger.settled()
    for (let turn = 0; turn < 12; turn += 1) await new Promise((resolve) => setImmediate(resolve))
    const [problem] = this.#problems
    if (problem !== undefined) throw new Error('the device has failed', { cause: problem })
  }

  async access(apiVersion: ApiVersion, text: string): Promise<string> {
    const body: unknown = JSON.parse(text)
    const call = { apiVersion, instanceId: this.#instanceId, text, body, idempotencyKey: null }
    return (await this.#access.request(call)).body
  }

  async open(): Promise<string> {
    const order = { instanceId: this.#instanceId, owner: null, bound: false, idempotencyKey: null }
    const answer = await this.#sessions.open(order)
    if (!answer.operable) throw new Error('a session that was just opened is operable')
    return (JSON.parse(answer.body) as { readonly sessionId: string }).sessionId
  }

  async request(sessionId: string, text: string): Promise<string> {
    const body = sessionAccessRequestBody['v1.1'].parse(JSON.parse(text))
    const { rollbackOnDeny, requestedItems } = body
    const answer = await this.#sessions.request({
      ...{ apiVersion: 'v1.1', sessionId, rollbackOnDeny, belongs: anybody, idempotencyKey: null },
      request: requestOf(body),
      metaData: requestedItems.map(({ metaData }) => metaData),
    })
    return answer.operable ? `${answer.status} ${answer.body}` : answer.session.state
  }

  async heartbeat(id: string): Promise<string> {
    return outcome(await this.#sessions.heartbeat(id, anybody))
  }

  async close(id: string): Promise<string> {
    return outcome(await this.#sessions.close(id, anybody, null))
  }

  command(id: string, command: Command): void {
    this.#sessions.applyCommands([{ id, command }], () => undefined)
  }

  session(id: string): Session | undefined {
    try {
      return this.#sessions.get(id, anybody)
    } catch (error) {
      if (error instanceof CodedError && error.code === 'NOT_FOUND') return undefined
      throw error
    }
  }

  charged(): readonly (readonly [account: string, amount: bigint])[] {
    return [...this.#ledger.accounts()].flatMap(([account, { used, refunded }]) =>
      used > refunded ? [[account, used - refunded] as const] : [],
    )
  }

  /** As the cloud makes them of the entries. */
  usage(): readonly UsageRecord[] {
    const nothing = { accountIds: new Map(), quantities: new Map(), used: new Map() }
    const inputs = { ...nothing, deviceId: 'device', epoch: 1, writeTime: 0 }
    return usageOfEntries(
      this.#disk.history.map((body) => ({ n: body.n, body })),
      inputs,
    )
  }
}

const anybody = (): void => undefined

function outcome(answer: SessionAnswer): string {
  return answer.operable ? String(answer.status) : answer.session.state
}

/** All that a request at this time can charge. */
function accountsAt({ instanceId, lineItems }: Policy, at: number): readonly AccountId[] {
  return lineItems.flatMap(({ id, periods, actions, consumptionLimit }) => {
    const period = periodAt(periods, at)
    const limit = periodAt(consumptionLimit?.periods ?? [], at)
    return [
      ...(period === undefined ? [] : [lineAccount(instanceId, id, period.index)]),
      ...actions.flatMap((each) => (each.allocation === null ? [] : [actionAccount(instanceId, id, each.id)])),
      ...(limit === undefined
        ? []
        : REQUESTERS.map((value) => limitAccount(instanceId, id, { type: 'user', value }, limit.index))),
    ]
  })
}
