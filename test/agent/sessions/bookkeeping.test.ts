// What is kept beside the charges of sessions: who owns them, which are listed, what callers are held to, and for how long one
// that ended is remembered.
import { describe, expect, it } from 'vitest'
import type { CallerQuota } from '../../../src/agent/access/callers/callers.ts'
import { SESSION_REST_MS } from '../../../src/core/sessions/session.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { requestOf, sessionAccessRequestBody } from '../../../src/protocol/service/access-request.ts'
import { policyInForce } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { BEGIN } from '../sync/fake-time.ts'
import { HOUR, MINUTE, SessionDevice } from './device.ts'

/** A caller whose calls are noted, and who has so many tokens. */
class NotedQuota implements CallerQuota {
  readonly key = 'noted'
  readonly connectionsMax = null
  readonly calls: string[] = []
  tokens: bigint

  constructor(tokens = 1_000_000_000n) {
    this.tokens = tokens
  }

  request({ type, value }: { readonly type: string; readonly value: string }): void {
    this.calls.push(`request of ${type} ${value}`)
  }

  open(live: number): void {
    this.calls.push(`open beside ${live}`)
  }

  spend(tokens: bigint): void {
    if (tokens > this.tokens) throw new CodedError('CALLER_LIMITED', 'the budget is used up')
    this.tokens -= tokens
  }

  unspend(tokens: bigint): void {
    this.tokens += tokens
  }

  charged(): void {
    this.calls.push('charged')
  }
}

function request(device: SessionDevice, sessionId: string, count: number, quota: CallerQuota) {
  const body = sessionAccessRequestBody['v1.1'].parse({
    requester: { type: 'user', value: 'ada' },
    rollbackOnDeny: true,
    requestedItems: count === 0 ? [] : [{ item: 'print', count }],
  })
  const order = { apiVersion: 'v1.1' as const, sessionId, request: requestOf(body), metaData: [undefined] }
  return device.sessions.request({
    ...order,
    rollbackOnDeny: true,
    belongs: () => undefined,
    idempotencyKey: null,
    quota,
  })
}

describe('sessions that are listed', () => {
  it('lists the live sessions of the caller, newest first', async () => {
    const device = await SessionDevice.make()
    const [first, closed] = [await device.open({ owner: 'ada' }), await device.open({ owner: 'ada' })]
    const [same, bobs] = [await device.open({ owner: 'ada' }), await device.open({ owner: 'bob' })]
    await device.pass(MINUTE)
    const last = await device.open({ owner: 'ada' })
    await device.close(closed)
    const ids = (owner: string) => device.sessions.list((kept) => kept.owner === owner).map(({ id }) => id)
    expect([ids('ada'), ids('bob'), ids('carl')]).toEqual([[last, same, first], [bobs], []])
  })

  it('are found by their id, unless they are of another caller or unknown', async () => {
    const device = await SessionDevice.make()
    const id = await device.open({ owner: 'ada' })
    const foreign = (): never => {
      throw new CodedError('CALLER_NOT_ALLOWED', 'it is of another caller')
    }
    expect(() => device.sessions.get(id, foreign)).toThrow(expect.objectContaining({ code: 'CALLER_NOT_ALLOWED' }))
    expect(() => device.session('unknown')).toThrow(expect.objectContaining({ code: 'NOT_FOUND' }))
    await expect(device.sessions.close(id, foreign, null)).rejects.toMatchObject({ code: 'CALLER_NOT_ALLOWED' })
    expect(device.session(id).state).toBe('IDLE')
  })

  it('are not found before they are in the journal', async () => {
    const device = await SessionDevice.make()
    const opening = device.open()
    const id = '00000000-0000-4000-a000-000000000001'
    expect(() => device.session(id)).toThrow(expect.objectContaining({ code: 'NOT_FOUND' }))
    expect(device.sessions.list(() => true)).toEqual([])
    expect(await opening).toBe(id)
    expect(device.session(id).state).toBe('IDLE')
  })

  it('are shown as they are in the journal, without changes that are not recorded yet', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    const asked = device.request(id, 3)
    for (let turn = 0; turn < 50; turn += 1) await Promise.resolve()
    expect([device.session(id).state, device.sessions.list(() => true)[0]?.state]).toEqual(['IDLE', 'IDLE'])
    expect(await asked).toBe(200)
    expect(device.session(id).state).toBe('ACTIVE')
  })

  it('are settled when every operation that was begun has ended', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    const asked = device.request(id, 3)
    await device.sessions.settled()
    expect(device.session(id).state).toBe('ACTIVE')
    expect(await asked).toBe(200)
  })
})

it('records a session without requests without a requester', async () => {
  const device = await SessionDevice.make()
  await device.close(await device.open())
  const requesters = device.disk.history.map(({ requester }) => requester)
  expect(requesters).toEqual([
    { type: '', value: '' },
    { type: '', value: '' },
  ])
})

describe('the quota of a caller', () => {
  it('counts the sessions of the caller that have not ended, also locked ones', async () => {
    const device = await SessionDevice.make()
    const quota = new NotedQuota()
    const open = async (owner: string): Promise<string> => {
      const answer = await device.sessions.open({
        instanceId: INSTANCE,
        owner,
        bound: false,
        idempotencyKey: null,
        quota,
      })
      if (!answer.operable) throw new Error('it was just opened')
      return (JSON.parse(answer.body) as { sessionId: string }).sessionId
    }
    const [locked, ended] = [await open('ada'), await open('ada')]
    await open('bob')
    device.sessions.applyCommands([{ id: locked, command: 'LOCK' }], () => undefined)
    await device.close(ended)
    await open('ada')
    expect(quota.calls).toEqual(['open beside 0', 'open beside 1', 'open beside 0', 'open beside 1'])
  })

  it('is checked before the decision, and spends the granted tokens', async () => {
    const device = await SessionDevice.make(100)
    const quota = new NotedQuota(50_000_000n)
    const id = await device.open()
    expect(await request(device, id, 30, quota)).toMatchObject({ status: 200 })
    expect(await request(device, id, 0, quota)).toMatchObject({ status: 200 })
    expect(await request(device, id, 500, quota)).toMatchObject({ status: 403 })
    await expect(request(device, id, 21, quota)).rejects.toMatchObject({ code: 'CALLER_LIMITED' })
    expect([quota.tokens, quota.calls]).toEqual([20_000_000n, Array<string>(4).fill('request of user ada')])
    expect(device.billed()).toBeCloseTo(0, 2)
  })

  it('gets the tokens back when the charge cannot be recorded', async () => {
    const device = await SessionDevice.make(100)
    const quota = new NotedQuota(50_000_000n)
    const id = await device.open()
    device.disk.refusals = 1
    await expect(request(device, id, 30, quota)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    expect(quota.tokens).toBe(50_000_000n)
  })

  it('does not limit automatic charges, which are reported', async () => {
    const device = await SessionDevice.make(100)
    const quota = new NotedQuota(30_000_000n)
    const id = await device.open()
    await request(device, id, 30, quota)
    expect(quota.tokens).toBe(0n)
    await device.pass(61 * MINUTE)
    expect(device.session(id).state).toBe('ACTIVE')
    expect(device.billed()).toBe(60)
    expect(device.charged).toEqual([[null, 30_000_000n]])
    expect(quota.tokens).toBe(0n)
  })

  it('gets a report of each automatic charge, with the owner of the session', async () => {
    const device = await SessionDevice.make(13)
    const [owned, unowned] = [await device.open({ owner: 'ada' }), await device.open()]
    await device.request(owned, 4)
    await device.request(unowned, 2)
    expect(device.charged).toEqual([])
    await device.pass(61 * MINUTE)
    expect(device.charged).toEqual([
      ['ada', 4_000_000n],
      [null, 2_000_000n],
    ])
    await device.heartbeat(owned)
    await device.pass(60 * MINUTE)
    expect(device.charged.slice(2)).toEqual([['ada', 0n]])
  })
})

describe('a session that ended', () => {
  it('is kept as long as an idle session, and then deleted', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.close(id)
    device.time.advance(SESSION_REST_MS - HOUR)
    await device.restart()
    expect(await device.heartbeat(id)).toBe('TERMINATED')
    device.time.advance(2 * HOUR + SESSION_REST_MS / 1_000)
    await device.pass(60_000)
    await expect(device.heartbeat(id)).rejects.toMatchObject({ code: 'NOT_FOUND' })
  })

  it('is deleted when 1,000 others have ended after it', async () => {
    const device = await SessionDevice.make()
    const live = await device.open()
    const [oldest, next] = [await device.open(), await device.open()]
    await device.close(oldest)
    await device.pass(1)
    await device.close(next)
    // Writes pending commits to the tables.
    await device.journal.recent(0)
    device.kill()
    const copy = `INSERT INTO session SELECT ?, ended, since, replace(document, id, ?), snapshot, 0 FROM session WHERE id = ?`
    for (let n = 0; n < 998; n += 1) {
      const id = `11111111-0000-4000-8000-${String(n).padStart(12, '0')}`
      device.disk.change(copy, id, id, next)
    }
    await device.start()
    expect(device.session(oldest).state).toBe('TERMINATED')
    await device.close(await device.open())
    expect(() => device.session(oldest)).toThrow(expect.objectContaining({ code: 'NOT_FOUND' }))
    expect(device.session(next).state).toBe('TERMINATED')
    expect(device.session(live).state).toBe('IDLE')
  })

  it('refuses a numbered request, and the number can be used again', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.close(id)
    const close = () => device.sessions.close(id, () => undefined, { session: 'app', n: 1, requestHash: 'h' })
    const answers = [await close(), await close()]
    expect(answers.map((answer) => answer.operable)).toEqual([false, false])
  })
})

it('retries an automatic charge that could not be recorded, and logs the session and the reason', async () => {
  const device = await SessionDevice.make()
  const id = await device.open()
  await device.request(id, 3)
  device.disk.refusals = 1
  await device.pass(61 * MINUTE)
  expect(device.warned).toEqual([{ sessionId: id, code: 'NOT_RECORDED', message: 'a session could not be advanced' }])
  expect(device.billed()).toBe(6)
})

it('a session whose opening could not be recorded does not count as live', async () => {
  const device = await SessionDevice.make()
  device.liveMax = 1
  await device.restart()
  device.disk.refusals = 1
  await expect(device.open()).rejects.toMatchObject({ code: 'NOT_RECORDED' })
  expect(device.session(await device.open()).state).toBe('IDLE')
})

it('a session is charged on time however short its interval is', async () => {
  const device = await SessionDevice.make()
  device.activePolicies.put(await policyInForce(2, { sessionIntervalMs: 10_000 }))
  const id = await device.open()
  await device.pass(1_000)
  await device.request(id, 1)
  await device.pass(10_500)
  expect(device.billed()).toBe(2)
})

it('charges nothing after a stop', async () => {
  const device = await SessionDevice.make()
  const id = await device.open()
  await device.request(id, 3)
  device.sessions.stop()
  await device.pass(3 * HOUR)
  device.sessions.connectionClosed(id)
  await device.settle()
  expect([device.billed(), device.session(id).state]).toEqual([3, 'ACTIVE'])
  await device.sessions.settled()
})

/** A request for several items, with what the response must repeat to the application. */
function requestItems(
  device: SessionDevice,
  sessionId: string,
  requestedItems: readonly { readonly item: string; readonly count: number; readonly metaData?: object }[],
  n: number | null = null,
) {
  const body = sessionAccessRequestBody['v1.1'].parse({
    requester: { type: 'user', value: 'ada', dictionary: { site: 'x' } },
    rollbackOnDeny: true,
    requestedItems,
  })
  return device.sessions.request({
    apiVersion: 'v1.1',
    sessionId,
    request: requestOf(body),
    metaData: body.requestedItems.map(({ metaData }) => metaData),
    rollbackOnDeny: true,
    belongs: () => undefined,
    idempotencyKey: n === null ? null : { session: 'app', n, requestHash: `hash ${n}` },
  })
}

describe('a request for several items', () => {
  it('is granted as a whole or not at all', async () => {
    const device = await SessionDevice.make(10)
    const id = await device.open()
    const both = (first: number, second: number) =>
      requestItems(device, id, [
        { item: 'print', count: first },
        { item: 'print', count: second },
      ])
    expect(await both(6, 5)).toMatchObject({ status: 403 })
    expect(await both(11, 1)).toMatchObject({ status: 403 })
    expect(
      await requestItems(device, id, [
        { item: 'print', count: 1 },
        { item: 'scan', count: 1 },
      ]),
    ).toMatchObject({
      status: 403,
    })
    expect([device.billed(), device.session(id).state]).toEqual([0, 'IDLE'])
    expect(await both(6, 4)).toMatchObject({ status: 200 })
    expect(device.billed()).toBe(10)
  })

  it('is renewed as a whole or not at all', async () => {
    const device = await SessionDevice.make(19)
    const id = await device.open()
    await requestItems(device, id, [
      { item: 'print', count: 6 },
      { item: 'print', count: 4 },
    ])
    await device.pass(61 * MINUTE)
    expect([device.billed(), device.session(id).state]).toEqual([10, 'TERMINATED'])
    expect(device.disk.history.at(-1)?.items.map(({ outcome }) => outcome)).toEqual([
      'NOT_CHARGED',
      'INSUFFICIENT_TOKENS',
    ])
  })

  it('copies the metadata of each item to its automatic charges and refunds', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await requestItems(device, id, [
      { item: 'print', count: 2, metaData: { job: 7 } },
      { item: 'print', count: 1 },
    ])
    await device.pass(61 * MINUTE)
    await device.close(id)
    const told = device.disk.history.flatMap(({ session, items }) => {
      return items.length === 0 ? [] : [[session?.event, ...items.map(({ metaData }) => metaData)]]
    })
    expect(told).toEqual([
      ['GRANTED', { job: 7 }, undefined],
      ['RENEWED', { job: 7 }, undefined],
      ['CLOSED', { job: 7 }, undefined],
    ])
  })

  it('refunds no item whose rest rounds to zero', async () => {
    const device = await SessionDevice.make()
    const items = [
      { name: 'print', version: '', rate: '1' },
      { name: 'scan', version: '', rate: '0.000001' },
    ]
    const rateTables = [{ series: '', version: '1', effectiveFrom: BEGIN - 1, items }]
    device.activePolicies.put(await policyInForce(2, { rateTables }))
    const id = await device.open()
    await requestItems(device, id, [
      { item: 'scan', count: 1 },
      { item: 'print', count: 6 },
    ])
    await device.pass(40 * MINUTE)
    await device.close(id)
    const refund = device.disk.history.at(-1)
    expect(refund).toMatchObject({ kind: 'refund', requester: { type: 'user', value: 'ada' } })
    expect(refund?.items.map(({ item }) => item)).toEqual(['print'])
  })

  it('is shown to the cloud with its requester, its interval and the line items that paid', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    const snapshot = () => JSON.parse(device.disk.read().sessions[0]?.snapshot ?? '') as Record<string, unknown>
    expect(snapshot()).toMatchObject({ requester: null, charge: null })
    await requestItems(device, id, [{ item: 'print', count: 2 }])
    const { from, until } = device.session(id).charge!
    expect(snapshot()).toMatchObject({
      requester: { type: 'user', value: 'ada' },
      charge: { from, until, items: [{ item: 'print', version: '', count: '2', lineItemIds: ['line-1'] }] },
    })
  })
})

it('a request that could not be recorded may be sent again under its number', async () => {
  const device = await SessionDevice.make()
  const id = await device.open()
  device.disk.refusals = 1
  const ask = () => requestItems(device, id, [{ item: 'print', count: 2 }], 1)
  await expect(ask()).rejects.toMatchObject({ code: 'NOT_RECORDED' })
  expect(await ask()).toMatchObject({ status: 200 })
  expect(await ask()).toMatchObject({ status: 200 })
  expect(device.billed()).toBe(2)
})

it('a session whose rules may not be used any more ends at its next charge', async () => {
  const device = await SessionDevice.make()
  device.activePolicies.put(await policyInForce(2, { usableForMs: 30 * MINUTE }))
  const id = await device.open()
  await device.request(id, 3)
  await device.pass(61 * MINUTE)
  expect([device.billed(), device.session(id).state, device.log().at(-1)]).toEqual([
    3,
    'TERMINATED',
    'session NOT_RENEWED',
  ])
  await expect(device.open()).rejects.toMatchObject({ code: 'POLICY_STALE' })
})

it('only sessions with a charge are refunded when the epoch ends', async () => {
  const device = await SessionDevice.make()
  const open = () => device.open()
  const [charged, halted, closed, refused] = [await open(), await open(), await open(), await open()]
  await open()
  for (const id of [charged, halted, closed, refused]) await device.request(id, 3)
  await device.request(halted, 0)
  await device.close(closed)
  await device.request(refused, 5_000, { rollbackOnDeny: false })
  const before = device.log().length
  await device.ledger.freeze()
  await device.settle()
  expect(device.log().slice(before)).toEqual(['refund SUSPENDED'])
  expect(device.disk.history.at(-1)?.session?.id).toBe(charged)
  expect(device.warned).toEqual([])
})

it('a charge of an earlier epoch is not spent again in the next one', async () => {
  const device = await SessionDevice.make()
  const id = await device.open()
  await device.request(id, 6)
  device.disk.refusals = 1
  await device.ledger.freeze()
  await device.settle()
  expect(device.warned).toMatchObject([{ sessionId: id, code: 'NOT_RECORDED' }])
  await device.beginEpoch()
  await device.grant(10_000_000n)
  expect(await device.request(id, 11)).toBe(403)
  expect(await device.request(id, 10)).toBe(200)
  expect([device.billed(1), device.billed(2)]).toEqual([6, 10])
})

it.each([0, 1, 2, 3, 4])(
  'a heartbeat as an epoch ends keeps no refund that the journal rejects (after %i turns)',
  async (turns) => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 6)
    await device.heartbeat(id)
    await device.pass(MINUTE)
    const { charge } = device.session(id)
    device.disk.refusals = 1
    const alive = device.heartbeat(id).catch(() => undefined)
    for (let turn = 0; turn < turns; turn += 1) await Promise.resolve()
    await device.ledger.freeze()
    await alive
    await device.settle()
    expect(device.warned).toMatchObject([{ sessionId: id, code: 'NOT_RECORDED' }])
    expect(device.session(id).charge).toEqual(charge)
    await device.beginEpoch()
    await device.grant(100_000_000n)
    await device.pass(MINUTE)
    expect([device.billed(1), device.billed(2)]).toEqual([6, 0])
  },
)
