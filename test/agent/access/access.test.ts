// One access request with the real ledger and engine, a journal in memory, and a cloud that the test makes slow or unreachable.
import { describe, expect, it } from 'vitest'
import { Access, type AccessCall, RequestBodies } from '../../../src/agent/access/access.ts'
import { Clock } from '../../../src/agent/runtime/clock.ts'
import type { PendingEntry } from '../../../src/agent/ledger/journal.ts'
import { Callers } from '../../../src/agent/access/callers/callers.ts'
import { IdempotencyCache } from '../../../src/agent/access/idempotency-cache.ts'
import { Ledger } from '../../../src/agent/ledger/ledger.ts'
import { type PoolBalances, LocalDecisions, type WaitingTopUp } from '../../../src/agent/access/local-decisions.ts'
import { ActivePolicies, type PolicyInForce } from '../../../src/agent/policy/active-policies.ts'
import { limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { METERED_CHARGE_MAX, METERED_MAX } from '../../../src/core/accounts/grant.ts'
import { MICRO_MAX, decimal } from '../../../src/core/pricing/amount.ts'
import { NEED_ACCOUNTS_MAX, entryBody } from '../../../src/protocol/edge/sync.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import {
  accessRequestBody,
  accessResponseBody,
  type AccessResponse,
  requestOf,
} from '../../../src/protocol/service/access-request.ts'
import { accessBody, grantedAccount, policyInForce, snapshotWith } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { FakeTime } from '../sync/fake-time.ts'
import { policyWith } from '../sync/policies.ts'

const LINE = lineAccount(INSTANCE, 'line-1', 0)
const OTHER_INSTANCE = '00000000-0000-4000-8000-000000000000'

class Device {
  readonly time = new FakeTime()
  readonly clock = new Clock(this.time, null)
  readonly activePolicies = new ActivePolicies()
  readonly recorded: PendingEntry[] = []
  readonly asked: WaitingTopUp[] = []
  /** Runs while a request waits for the cloud. */
  cloud: (request: WaitingTopUp, deadlineMs: number) => Promise<void> = async () => undefined
  /** The balances that the cloud then reports; all other pools are empty. */
  poolBalances: PoolBalances = new Map()
  deviceId: string | null = 'device'
  served = [INSTANCE]
  diskIsFull = false
  connected = true
  readonly ledger: Ledger
  readonly access: Access
  #ids = 0

  constructor(epoch = 1) {
    const snapshot = snapshotWith({ epoch })
    this.ledger = new Ledger(
      {
        journal: {
          append: async (entries) => this.#append(entries),
          saveClock: async () => undefined,
          limit: async () => undefined,
        },
        clock: this.clock,
        policies: this.activePolicies,
        startingGrant: 0n,
        batchEntries: 1_000,
        defer: (call) => void setImmediate(call),
        writeBehind: null,
        now: () => 0,
        timers: { after: () => () => undefined },
        onNeed: () => undefined,
        onFatal: () => undefined,
      },
      snapshot,
    )
    const decisions = new LocalDecisions({
      ledger: this.ledger,
      policies: this.activePolicies,
      clock: this.clock,
      link: {
        requestGrant: async (request, deadlineMs) => {
          if (!this.connected) return null
          this.asked.push(request)
          const begun = this.time.sinceBoot()
          await this.cloud(request, deadlineMs)
          return this.time.sinceBoot() - begun < deadlineMs ? this.poolBalances : null
        },
        status: () => ({
          deviceId: this.deviceId,
          policies: this.served.map((instanceId) => ({ instanceId })),
        }),
      },
      topUpDeadlineMs: 2_000,
    })
    this.access = new Access({
      ledger: this.ledger,
      decisions,
      idempotencyCache: new IdempotencyCache([], 10),
      keepsInputs: true,
      newCorrelationId: () => `00000000-0000-4000-8000-${String((this.#ids += 1)).padStart(12, '0')}`,
      engine: 1,
    })
  }

  async #append(entries: readonly PendingEntry[]): Promise<void> {
    await this.recording
    if (this.diskIsFull) throw new CodedError('NOT_RECORDED', 'the disk is full')
    this.recorded.push(...entries)
  }

  /** Of the next batches. */
  recording: Promise<undefined> = Promise.resolve(undefined)

  #term = 0
  grant(granted: bigint, account = LINE, exhausted = false, unlimited = false): void {
    this.ledger.applyGrant({
      term: (this.#term += 1),
      lifetimeMs: 86_400_000,
      expiresAt: this.time.truth() + 86_400_000,
      agedMs: 0,
      accounts: [{ ...grantedAccount(account, granted), exhausted, unlimited }],
    })
  }

  async ask(body: unknown, call: Partial<AccessCall> = {}): Promise<AccessResponse> {
    const { body: answer } = await this.access.request({
      apiVersion: 'v1.0',
      instanceId: INSTANCE,
      text: JSON.stringify(body),
      body,
      idempotencyKey: null,
      ...call,
    })
    return accessResponseBody.parse(JSON.parse(answer))
  }

  get lastEntry() {
    const last = this.recorded.at(-1)
    return last === undefined ? undefined : entryBody.parse(JSON.parse(last.body))
  }
}

async function ready(granted = 100_000_000n, policy: PolicyInForce | null = null): Promise<Device> {
  const device = new Device()
  device.activePolicies.put(policy ?? (await policyInForce(1)))
  if (granted > 0n) device.grant(granted)
  return device
}

const statusOf = ({ requestedItems }: AccessResponse): string[] => requestedItems.map(({ status }) => status.code)

describe('an access request', () => {
  it('is charged, recorded with all that led to it, and answered in the words of the service', async () => {
    const device = await ready()
    const answer = await device.ask({
      requester: { type: 'user', value: 'ada', dictionary: { department: 'print' } },
      requestedItems: [{ item: 'print', count: 2.5, metaData: { job: 7 } }],
    })
    expect(answer).toEqual({
      correlationId: '00000000-0000-4000-8000-000000000001',
      requester: { type: 'user', value: 'ada' },
      requestedItems: [
        {
          item: 'print',
          count: 2.5,
          status: { code: '101', description: 'Successfully checked out' },
          totalTokensCharged: 2.5,
          lineItems: [{ activationId: 'line-1', rate: 1, tokensCharged: 2.5 }],
        },
      ],
    })
    const reading = device.clock.reading()
    expect(device.lastEntry).toEqual({
      n: 1,
      kind: 'access',
      at: reading.now,
      earliest: reading.earliest,
      latest: reading.latest,
      instanceId: INSTANCE,
      policyRevision: 1,
      engine: 1,
      correlationId: answer.correlationId,
      requester: { type: 'user', value: 'ada' },
      items: [
        {
          item: 'print',
          version: '',
          count: '2.5',
          outcome: 'GRANTED',
          total: 2_500_000n,
          parts: [{ lineItemId: 'line-1', rate: '1', actionId: null, charged: 2_500_000n }],
          metaData: { job: 7 },
        },
      ],
      postings: [{ account: LINE, amount: 2_500_000n }],
    })
    expect(device.asked).toEqual([])
  })

  it('is refused and not recorded if it charges more accounts than a segment can name', async () => {
    const [lineItem] = policyWith(1).lineItems
    const ids = Array.from({ length: NEED_ACCOUNTS_MAX + 1 }, (_, n) => `line-${n + 1}`)
    const device = await ready(0n, await policyInForce(1, { lineItems: ids.map((id) => ({ ...lineItem!, id })) }))
    for (const id of ids) device.grant(1_000_000n, lineAccount(INSTANCE, id, 0))
    await expect(device.ask(accessBody(ids.length))).rejects.toMatchObject({ code: 'REQUEST_TOO_LARGE' })
    expect(device.recorded).toEqual([])
    expect(statusOf(await device.ask(accessBody(ids.length - 1)))).toEqual(['101'])
  })

  it('is charged by the formula of the policy, and its entry has the variables', async () => {
    const items = [{ name: 'print', version: '', formula: 'Size * 2' }]
    const rateTables = [{ series: '', version: '1', effectiveFrom: 0, items }]
    const device = await ready(100_000_000n, await policyInForce(1, { rateTables }))
    const body = {
      requester: { type: 'user', value: 'ada' },
      requestedItems: [{ item: 'print', count: 2, variables: { SIZE: 1.5 } }],
    }
    const answer = await device.ask(body, { apiVersion: 'v1.1' })
    expect(answer.requestedItems[0]?.lineItems).toEqual([{ activationId: 'line-1', rate: 3, tokensCharged: 6 }])
    expect(device.lastEntry?.items[0]).toMatchObject({ variables: { size: '1.5' }, total: 6_000_000n })
    expect(statusOf(await device.ask(accessBody(1), { apiVersion: 'v1.1' }))).toEqual(['2007'])
    await expect(device.ask(body)).rejects.toMatchObject({ code: 'BAD_REQUEST' })
  })

  it('is recorded in a form that the cloud can read when two line items together pay more than 64 bits', async () => {
    const [line] = policyWith(1).lineItems
    if (line === undefined) throw new Error('the rules have a line item')
    const device = await ready(0n, await policyInForce(1, { lineItems: [line, { ...line, id: 'line-2' }] }))
    for (const id of ['line-1', 'line-2']) device.grant(MICRO_MAX, lineAccount(INSTANCE, id, 0))
    const requestedItems = [{ item: 'print', count: 18e12 }]
    await device.ask({ requester: { type: 'user', value: 'ada' }, requestedItems })
    const parts = [MICRO_MAX, 18n * 10n ** 18n - MICRO_MAX].map((charged) => ({ charged }))
    expect(device.lastEntry?.items).toMatchObject([{ outcome: 'GRANTED', total: 18n * 10n ** 18n, parts }])
  })

  it('that is denied is answered before it is recorded; one that is numbered, after', async () => {
    const device = await ready()
    const recorded = Promise.withResolvers<undefined>()
    device.recording = recorded.promise
    const call = { apiVersion: 'v1.1', instanceId: INSTANCE, text: '', body: accessBody(1, 'scan') } as const
    expect(await device.access.request({ ...call, idempotencyKey: null })).toMatchObject({ durability: 'later' })
    let isAnswered = false
    const numbered = device.access.request({ ...call, idempotencyKey: { session: 'a b', n: 1 } })
    void numbered.then(() => (isAnswered = true))
    expect([isAnswered, device.recorded]).toEqual([false, []])
    recorded.resolve(undefined)
    expect(await numbered).toMatchObject({ durability: 'durable' })
    expect(device.recorded).toHaveLength(2)
  })

  it('that is refused is an entry too, with nothing charged', async () => {
    const device = await ready()
    const answer = await device.ask(accessBody(1, 'scan'), { apiVersion: 'v1.1' })
    expect(statusOf(answer)).toEqual(['2001'])
    await device.ledger.settled()
    expect(device.lastEntry).toMatchObject({ items: [{ outcome: 'ITEM_NOT_RATED', total: 0n }], postings: [] })
  })

  it.each([
    ['nothing', null],
    ['an unknown field', { ...accessBody(1), rollbackOnDeny: true }],
    ['no item', { requester: { type: 'user', value: 'ada' }, requestedItems: [] }],
    ['a count of zero', accessBody(0)],
    ['a negative count', accessBody(-1)],
    [
      'a requester whose account could not be named',
      { ...accessBody(1), requester: { type: 'user', value: '\u{20AC}'.repeat(140) } },
    ],
    ['a requester with a NUL', { ...accessBody(1), requester: { type: 'user', value: 'a\u0000' } }],
    ['a requester with half a character', { ...accessBody(1), requester: { type: 'user', value: '\ud800' } }],
  ])('with %s is refused before anything is looked at', async (_what, body) => {
    const device = new Device(0)
    device.deviceId = null
    await expect(device.ask(body)).rejects.toMatchObject({ code: 'BAD_REQUEST' })
  })
})

describe('the check order', () => {
  it('names the first missing condition: enrollment, instance, rules, fresh rules, an attached epoch', async () => {
    const device = new Device(0)
    const refusal = async (instanceId = INSTANCE): Promise<string> =>
      device.ask(accessBody(1), { instanceId }).then(
        (answer) => statusOf(answer).join(),
        (error: unknown) => (error as CodedError).code,
      )
    device.deviceId = null
    expect(await refusal()).toBe('NOT_ENROLLED')
    device.deviceId = 'device'
    expect(await refusal(OTHER_INSTANCE)).toBe('NOT_FOUND')
    expect(await refusal()).toBe('POLICY_MISSING')
    device.activePolicies.put(await policyInForce(1, { usableForMs: 1_000 }))
    expect(await refusal()).toBe('NOT_ATTACHED')
    device.ledger.begin('device-1', 1)
    device.grant(1_000_000n)
    expect(await refusal()).toBe('101')
    device.clock.learn({ time: device.time.truth() + 2_000, sentAt: 0, receivedAt: device.time.sinceBoot() })
    expect(await refusal()).toBe('POLICY_STALE')
    device.activePolicies.put(await policyInForce(2))
    void device.ledger.freeze()
    expect(await refusal()).toBe('NOT_ATTACHED')
    expect(await refusal(OTHER_INSTANCE)).toBe('NOT_FOUND')
    expect(device.recorded).toHaveLength(1)
  })

  it('grants nothing that cannot be recorded, and continues when it can be again', async () => {
    const device = await ready(10_000_000n)
    device.diskIsFull = true
    await expect(device.ask(accessBody(10))).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    device.diskIsFull = false
    expect(statusOf(await device.ask(accessBody(10)))).toEqual(['101'])
    expect(device.recorded).toHaveLength(1)
  })

  it("gives a caller's budget back when the charge could not be recorded", async () => {
    const device = await ready(20_000_000n)
    const settings = { use: '*', observe: '*', administer: '*', limits: 'uid:7 = 10 tokens/h' }
    const names = { user: () => undefined, group: () => undefined }
    const quota = new Callers(settings, names, 1, () => device.time.sinceBoot()).quotaOf({ uid: 7, gids: [], pid: 1 })
    if (quota === undefined) throw new Error('the caller is limited')
    device.diskIsFull = true
    await expect(device.ask(accessBody(10), { quota })).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    device.diskIsFull = false
    expect(statusOf(await device.ask(accessBody(10), { quota }))).toEqual(['101'])
    await expect(device.ask(accessBody(1), { quota })).rejects.toMatchObject({ code: 'CALLER_LIMITED' })
  })
})

describe('a request of a line item without a limit', () => {
  it('is refused without a question to the cloud when its count is absurd, and leaves the rest to others', async () => {
    const device = await ready(0n)
    device.poolBalances = new Map([[LINE, { available: 'UNLIMITED', returnable: 0n }]])
    device.cloud = async () => device.grant(0n, LINE, false, true)
    expect(statusOf(await device.ask(accessBody(1)))).toEqual(['101'])
    device.asked.length = 0
    expect(statusOf(await device.ask(accessBody(9_223_372_036_854)))).toEqual(['213'])
    expect(device.asked).toEqual([])
    expect(statusOf(await device.ask(accessBody(1_000_000_000)))).toEqual(['101'])
    expect(statusOf(await device.ask(accessBody(1_000_000_001)))).toEqual(['213'])
  })

  it('says so when its counter is full, also after the grant has expired', async () => {
    const device = await ready(0n)
    device.poolBalances = new Map([[LINE, { available: 'UNLIMITED', returnable: 0n }]])
    device.grant(0n, LINE, false, true)
    const most = METERED_MAX / METERED_CHARGE_MAX
    for (let n = 0n; n < most; n += 1n) await device.ask(accessBody(1_000_000_000))
    expect(statusOf(await device.ask(accessBody(1_000_000_000)))).toEqual(['213'])
    await device.ask(accessBody(Number(METERED_MAX % METERED_CHARGE_MAX) / 1e6))
    expect(statusOf(await device.ask(accessBody(1)))).toEqual(['213'])
    device.time.advance(2 * 86_400_000)
    expect(statusOf(await device.ask(accessBody(1)))).toEqual(['213'])
  })
})

describe('a request that the grant of the device does not cover', () => {
  const items = (...counts: number[]) => ({
    requester: { type: 'user', value: 'ada' },
    requestedItems: counts.map((count) => ({ item: 'print', count })),
  })
  const needOf = (amount: bigint, account = LINE) => [{ account, amount }]
  const pool = (available: bigint, returnable = 0n) => ({ available, returnable })
  const other = lineAccount(INSTANCE, 'line-2', 0)
  const twoLineItems = () => {
    const [first] = policyWith(1).lineItems
    const second = { ...first!, id: 'line-2', endsAt: first!.endsAt + 1 }
    return policyInForce(1, { lineItems: [first!, second] })
  }

  it('requests the missing tokens from the cloud at once, and is decided with those that it gets', async () => {
    const device = await ready(5_000_000n)
    device.cloud = async () => device.grant(20_000_000n)
    expect(statusOf(await device.ask(accessBody(12)))).toEqual(['101'])
    expect(device.asked).toEqual([{ needs: [needOf(12_000_000n)], accounts: [LINE] }])
    expect(device.recorded).toHaveLength(1)
  })

  it('requests tokens for each item separately, so that the pool pays as many items as it can', async () => {
    const device = await ready(5_000_000n)
    device.cloud = async () => device.grant(8_000_000n)
    device.poolBalances = new Map([[LINE, pool(2_000_000n)]])
    expect(statusOf(await device.ask(items(3, 5, 4)))).toEqual(['101', '101', '202'])
    expect(device.asked).toEqual([
      { needs: [needOf(3_000_000n), needOf(5_000_000n), needOf(4_000_000n)], accounts: [LINE] },
    ])
  })

  it('requests a second time exactly the tokens that the pools can pay together', async () => {
    const device = await ready(0n, await twoLineItems())
    device.poolBalances = new Map([
      [LINE, pool(7_000_000n)],
      [other, pool(90_000_000n)],
    ])
    device.cloud = async ({ needs }) => {
      if (needs.flat().length === 1) return
      device.grant(7_000_000n)
      device.grant(3_000_000n, other)
    }
    expect(statusOf(await device.ask(accessBody(10)))).toEqual(['101'])
    expect(device.asked).toEqual([
      { needs: [needOf(10_000_000n)], accounts: [LINE, other] },
      { needs: [[...needOf(7_000_000n), ...needOf(3_000_000n, other)]], accounts: [LINE, other] },
    ])
    expect(device.lastEntry?.postings).toEqual([...needOf(7_000_000n), ...needOf(3_000_000n, other)])
  })

  it('names the line item whose tokens other devices can return when the pools cannot pay', async () => {
    const device = await ready(0n, await twoLineItems())
    device.poolBalances = new Map([
      [LINE, pool(1_000_000n)],
      [other, pool(0n, 90_000_000n)],
    ])
    expect(statusOf(await device.ask(accessBody(10)))).toEqual(['202'])
    expect(device.asked).toEqual([
      { needs: [needOf(10_000_000n)], accounts: [LINE, other] },
      { needs: [[...needOf(1_000_000n), ...needOf(9_000_000n, other)]], accounts: [LINE, other] },
    ])
    device.cloud = async ({ needs }) => {
      if (needs.flat().length === 1) return
      device.grant(1_000_000n)
      device.grant(9_000_000n, other)
    }
    expect(statusOf(await device.ask(accessBody(10)))).toEqual(['101'])
  })

  it('keeps the refusal of the cloud when the request for tokens of other devices is too slow', async () => {
    const device = await ready(0n, await twoLineItems())
    device.poolBalances = new Map([[other, pool(0n, 90_000_000n)]])
    device.cloud = async () => device.time.advance(1_500)
    expect(statusOf(await device.ask(accessBody(10)))).toEqual(['202'])
    expect(device.asked).toHaveLength(2)
  })

  it('does not request again for the rest when other items are granted from the balance', async () => {
    const device = await ready(5_000_000n)
    device.poolBalances = new Map([[LINE, pool(0n, 1_000_000n)]])
    expect(statusOf(await device.ask(items(5, 4)))).toEqual(['101', '202'])
    expect(device.asked).toHaveLength(1)
  })

  it('asks for every account that is too small, the limit of the requester too', async () => {
    const { lineItems } = policyWith(1)
    const consumptionLimit = { limit: '50000000', periods: [{ index: 0, from: null, until: null }] }
    const device = await ready(0n, await policyInForce(1, { lineItems: [{ ...lineItems[0]!, consumptionLimit }] }))
    const limit = limitAccount(INSTANCE, 'line-1', { type: 'user', value: 'ada' }, 0)
    device.poolBalances = new Map([[LINE, pool(50_000_000n)]])
    expect(statusOf(await device.ask(accessBody(2), { apiVersion: 'v1.1' }))).toEqual(['2005'])
    expect(device.asked).toEqual([
      { needs: [[...needOf(2_000_000n), ...needOf(2_000_000n, limit)]], accounts: [LINE, limit] },
    ])
    await device.ledger.settled()
    expect(device.lastEntry).toMatchObject({ items: [{ outcome: 'CONSUMPTION_LIMIT_REACHED' }], postings: [] })
  })

  it('is refused when the cloud reports that the pool cannot pay it, without a second top-up request', async () => {
    const device = await ready(5_000_000n)
    device.poolBalances = new Map([[LINE, pool(6_000_000n)]])
    expect(statusOf(await device.ask(accessBody(12)))).toEqual(['202'])
    expect(device.asked).toHaveLength(1)
    await device.ledger.settled()
    expect(device.lastEntry).toMatchObject({ items: [{ outcome: 'INSUFFICIENT_TOKENS' }], postings: [] })
  })

  it('is refused as GRANT_EXHAUSTED when other requests use the granted tokens each time', async () => {
    const device = await ready(5_000_000n)
    device.poolBalances = new Map([[LINE, pool(100_000_000n)]])
    expect(statusOf(await device.ask(accessBody(12)))).toEqual(['208'])
    expect(device.asked).toHaveLength(10)
    await device.ledger.settled()
    expect(device.lastEntry).toMatchObject({ items: [{ outcome: 'GRANT_EXHAUSTED' }], postings: [] })
  })

  it('names the refused device instead of a retry online when the cloud refuses its key', async () => {
    const device = await ready(8_000_000n)
    device.connected = false
    expect(statusOf(await device.ask(accessBody(12)))).toEqual(['208'])
    device.activePolicies.isDeviceRefused = true
    expect(statusOf(await device.ask(accessBody(12)))).toEqual(['212'])
    expect(statusOf(await device.ask(items(3, 12)))).toEqual(['101', '212'])
    await device.ledger.settled()
    expect(device.lastEntry).toMatchObject({ items: [{ outcome: 'GRANTED' }, { outcome: 'DEVICE_REFUSED' }] })
    expect(statusOf(await device.ask(accessBody(0.001, 'unknown')))).toEqual(['201'])
    device.time.advance(2 * 86_400_000)
    expect(statusOf(await device.ask(accessBody(5)))).toEqual(['212'])
    device.activePolicies.isDeviceRefused = false
    expect(statusOf(await device.ask(accessBody(5)))).toEqual(['209'])
  })

  it('waits for the cloud no longer than the deadline', async () => {
    const device = await ready(5_000_000n)
    const deadlines: number[] = []
    device.poolBalances = new Map([[LINE, pool(100_000_000n)]])
    device.cloud = async (_request, deadlineMs) => {
      deadlines.push(deadlineMs)
      device.time.advance(1_500)
    }
    expect(statusOf(await device.ask(accessBody(12)))).toEqual(['208'])
    expect(deadlines).toEqual([2_000, 500])
    device.cloud = async () => device.time.advance(2_000)
    await device.ask(accessBody(12))
    expect(device.asked).toHaveLength(3)
  })

  it('asks the cloud again although an earlier answer reported an exhausted pool', async () => {
    const device = new Device()
    device.activePolicies.put(await policyInForce(1))
    device.grant(5_000_000n, LINE, true)
    expect(statusOf(await device.ask(accessBody(12)))).toEqual(['202'])
    expect(device.asked).toHaveLength(1)
    device.cloud = async () => device.grant(12_000_000n)
    expect(statusOf(await device.ask(accessBody(12)))).toEqual(['101'])
  })

  it('is refused by the last report of the cloud when the cloud cannot be reached', async () => {
    const device = new Device()
    device.connected = false
    device.activePolicies.put(await policyInForce(1))
    device.grant(5_000_000n, LINE, true)
    expect(statusOf(await device.ask(accessBody(12)))).toEqual(['202'])
    device.grant(5_000_000n, LINE, false)
    expect(statusOf(await device.ask(accessBody(12)))).toEqual(['208'])
    expect(device.asked).toEqual([])
  })

  it('does not request more than any pool can hold', async () => {
    const device = await ready(5_000_000n)
    expect(statusOf(await device.ask(accessBody(1e15)))).toEqual(['202'])
    expect(device.asked).toEqual([])
  })

  it.each<[string, PoolBalances | null, string]>([
    ['of the pool, if that cannot pay it', new Map([[LINE, { available: 1n, returnable: 0n }]]), '202'],
    ['of its grant, if the cloud cannot be asked', null, '208'],
    ['of none, if the pool could pay it', new Map([[LINE, { available: 10_000_000n, returnable: 0n }]]), '102'],
  ])('names the reason %s, beside an item that refuses all of them', async (_name, poolBalances, status) => {
    const device = await ready(4_000_000n)
    device.connected = poolBalances !== null
    device.poolBalances = poolBalances ?? new Map()
    const items = ['unknown', 'print'].map((name) => ({ name, version: '', count: decimal(5) }))
    const request = { requester: { type: 'user', value: 'ada', dictionary: {} }, items }
    const of = {
      apiVersion: 'v1.0' as const,
      instanceId: INSTANCE,
      metaData: [],
      claim: null,
      quota: undefined,
      session: null,
    }
    const answer = await device.access.charge({ ...of, request, mode: 'ALL_OR_NOTHING' })
    if (!answer.operable) throw new Error('outside a session, each request is operable')
    expect(statusOf(accessResponseBody.parse(JSON.parse(answer.body)))).toEqual(['201', status])
    expect(device.asked).toEqual(poolBalances === null ? [] : [{ needs: [], accounts: [LINE] }])
  })

  it('asks when the grant has expired, and is refused as such where the cloud cannot be asked', async () => {
    const device = await ready()
    device.time.advance(86_400_001)
    device.connected = false
    expect(statusOf(await device.ask(accessBody(1)))).toEqual(['209'])
    device.connected = true
    device.cloud = async () => device.grant(100_000_000n)
    expect(statusOf(await device.ask(accessBody(1)))).toEqual(['101'])
  })

  it('is checked again from the first check after a wait', async () => {
    const device = await ready(5_000_000n)
    device.cloud = async () => void device.ledger.freeze()
    await expect(device.ask(accessBody(12))).rejects.toMatchObject({ code: 'NOT_ATTACHED' })
    expect(device.recorded).toHaveLength(0)
  })
})

describe('a request of an application session', () => {
  const idempotencyKey = (n: number) => ({ idempotencyKey: { session: 'app', n } })

  it('gets the first answer again for a retry, without another charge, even if the rules have changed', async () => {
    const device = await ready(10_000_000n)
    const first = await device.ask(accessBody(7), idempotencyKey(1))
    device.diskIsFull = true
    expect(await device.ask(accessBody(7), idempotencyKey(1))).toEqual(first)
    void device.ledger.freeze()
    expect(await device.ask(accessBody(7), idempotencyKey(1))).toEqual(first)
    expect(device.recorded).toHaveLength(1)
    expect(device.recorded[0]?.idempotencyRecord).toMatchObject({ session: 'app', n: 1, policyRevision: 1 })
  })

  it('that is repeated while the first is being decided is charged once', async () => {
    const device = await ready(10_000_000n)
    const answers = await Promise.all([1, 2, 3].map(() => device.ask(accessBody(7), idempotencyKey(1))))
    expect(new Set(answers.map(({ correlationId }) => correlationId)).size).toBe(1)
    expect(device.recorded).toHaveLength(1)
  })

  it('gets the first answer again for a retry although its caller has used up its quota', async () => {
    const device = await ready(10_000_000n)
    const settings = { use: '*', observe: '*', administer: '*', limits: 'uid:7 = 1 requests/s' }
    const names = { user: () => undefined, group: () => undefined }
    const quota = new Callers(settings, names, 1, () => device.time.sinceBoot()).quotaOf({ uid: 7, gids: [] })
    const first = await device.ask(accessBody(7), { ...idempotencyKey(1), quota })
    expect(await device.ask(accessBody(7), { ...idempotencyKey(1), quota })).toEqual(first)
    const next = device.ask(accessBody(7), { ...idempotencyKey(2), quota })
    await expect(next).rejects.toMatchObject({ code: 'CALLER_LIMITED' })
  })

  it('is refused under a number that had another body, another instance or another API version', async () => {
    const device = await ready(10_000_000n)
    await device.ask(accessBody(1), idempotencyKey(1))
    const mismatch = { code: 'IDEMPOTENCY_CONFLICT' }
    await expect(device.ask(accessBody(2), idempotencyKey(1))).rejects.toMatchObject(mismatch)
    await expect(device.ask(accessBody(1), { ...idempotencyKey(1), apiVersion: 'v1.1' })).rejects.toMatchObject(
      mismatch,
    )
    await expect(device.ask(accessBody(1), { ...idempotencyKey(1), instanceId: OTHER_INSTANCE })).rejects.toMatchObject(
      mismatch,
    )
    await device.ask(accessBody(1), idempotencyKey(2))
    await expect(device.ask(accessBody(1), idempotencyKey(1))).rejects.toMatchObject({ code: 'CONFLICT' })
  })

  it('that was not recorded may be sent again under its number, and is decided then', async () => {
    const device = await ready(10_000_000n)
    device.diskIsFull = true
    await expect(device.ask(accessBody(7), idempotencyKey(1))).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    device.diskIsFull = false
    expect(statusOf(await device.ask(accessBody(7), idempotencyKey(1)))).toEqual(['101'])
    expect(device.recorded).toHaveLength(1)
  })
})

describe('the bodies of access requests', () => {
  const plain = { requester: { type: 'user', value: 'ada' }, requestedItems: [{ item: 'Print', count: 1 }] }
  const withVariables = { ...plain, requestedItems: [{ item: 'Print', count: 1, variables: { n: 2 } }] }

  it('are judged once for each object that is kept, and read as they are without a memory', () => {
    const bodies = new RequestBodies()
    const first = bodies.read('v1.1', withVariables, true)
    expect(bodies.read('v1.1', withVariables, true)).toBe(first)
    expect(bodies.read('v1.1', { ...withVariables }, true)).not.toBe(first)
    expect(bodies.read('v1.1', withVariables)).not.toBe(first)
    const body = accessRequestBody['v1.1'].parse(withVariables)
    expect(first).toEqual({ request: requestOf(body), metaData: [undefined] })
  })

  it('are checked by each version of the interface, and refused each time', () => {
    const bodies = new RequestBodies()
    for (let times = 0; times < 2; times += 1) {
      expect(bodies.read('v1.1', withVariables, true).request.items).toHaveLength(1)
      expect(() => bodies.read('v1.0', withVariables, true)).toThrow(expect.objectContaining({ code: 'BAD_REQUEST' }))
      for (const nothing of [null, undefined, 1, 'x', [], {}]) {
        expect(() => bodies.read('v1.0', nothing, true)).toThrow(expect.objectContaining({ code: 'BAD_REQUEST' }))
      }
    }
  })
})
