// The sessions of a device, step by step and through time, restarts, fences and full disks.
import { describe, expect, it } from 'vitest'
import { ActivePolicies } from '../../../src/agent/policy/active-policies.ts'
import { SESSION_REST_MS } from '../../../src/core/sessions/session.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { policyInForce } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { BEGIN } from '../sync/fake-time.ts'
import { HOUR, LINE, MINUTE, SessionDevice } from './device.ts'

describe('a session on the device', () => {
  it('begins IDLE without a charge, is listed, and ends after 30 days without a request', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    expect(device.session(id)).toMatchObject({ state: 'IDLE', charge: null, instanceId: INSTANCE })
    expect(device.sessions.list(() => true).map((one) => one.id)).toEqual([id])
    // At once: looking every 30 seconds of 30 days takes long.
    device.time.advance(SESSION_REST_MS - HOUR)
    await device.settle()
    expect(device.session(id).state).toBe('IDLE')
    await device.pass(HOUR + 20_000_000)
    expect(device.session(id).state).toBe('TERMINATED')
    expect(await device.request(id, 1)).toBe('TERMINATED')
    expect(device.billed()).toBe(0)
    expect(device.log()).toEqual(['session OPENED', 'session IDLED_OUT'])
  })

  it('follows the example of the service: charges at 0, 60 and 120 minutes, and refunds two thirds of the last one at 140', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    expect(await device.request(id, 3)).toBe(200)
    expect(device.billed()).toBe(3)
    await device.pass(61 * MINUTE)
    expect(device.billed()).toBe(6)
    expect(await device.heartbeat(id)).toBe(204)
    await device.pass(60 * MINUTE)
    expect(device.billed()).toBe(9)
    await device.pass(19 * MINUTE)
    expect(await device.close(id)).toBe(204)
    expect(device.billed()).toBeCloseTo(7, 2)
    expect(device.log()).toEqual([
      'session OPENED',
      'access GRANTED',
      'access RENEWED',
      'session HEARTBEAT',
      'access RENEWED',
      'refund CLOSED',
    ])
    expect(await device.close(id)).toBe('TERMINATED')
  })

  it('refunds the rest for the old items and charges the new ones in full, also from this refund', async () => {
    const device = await SessionDevice.make(10)
    const id = await device.open()
    await device.request(id, 8)
    await device.pass(30 * MINUTE)
    expect(await device.request(id, 5)).toBe(200)
    expect(device.billed()).toBeCloseTo(9, 2)
    expect(device.session(id).charge?.items.map(({ item }) => item.count.digits)).toEqual([5n])
    const [refund, access] = device.disk.history.slice(-2)
    expect([refund?.kind, access?.kind]).toEqual(['refund', 'access'])
    expect(refund).toMatchObject({
      items: [
        { item: 'print', outcome: 'REFUNDED', parts: [{ lineItemId: 'line-1', rate: '1' }], metaData: { job: 7 } },
      ],
    })
    expect(refund?.correlationId).not.toBe(access?.correlationId)
  })

  it('stays unchanged after a denied request, or ends with its refund, as the request says', async () => {
    const device = await SessionDevice.make(10)
    const [kept, ended] = [await device.open(), await device.open()]
    await device.request(kept, 4)
    await device.request(ended, 4)
    expect(await device.request(kept, 100)).toBe(403)
    expect(device.session(kept)).toMatchObject({ state: 'ACTIVE' })
    expect(device.billed()).toBe(8)
    await device.pass(30 * MINUTE)
    expect(await device.request(ended, 100, { rollbackOnDeny: false })).toBe(403)
    expect(device.session(ended)).toMatchObject({ state: 'TERMINATED' })
    expect(device.billed()).toBeCloseTo(6, 2)
  })

  it('is refused when its charges, with refunded ones, would exceed the maximum of a counter', async () => {
    const device = await SessionDevice.make(9_000_000_000_000)
    const id = await device.open()
    expect(await device.request(id, 5_000_000_000_000)).toBe(200)
    expect(await device.request(id, 5_000_000_000_001)).toBe(403)
    expect(await device.request(id, 2)).toBe(200)
    expect([device.billed(), device.fatal]).toEqual([2, []])
  })

  it('becomes IDLE after an empty list, with the rest of the interval refunded and no more charges', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 6)
    await device.pass(30 * MINUTE)
    const rested = await device.ask(id, 0)
    const { correlationId } = JSON.parse(rested.operable ? rested.body : '{}') as { readonly correlationId?: unknown }
    expect(device.disk.history.at(-1)).toMatchObject({ kind: 'refund', correlationId })
    expect(device.session(id)).toMatchObject({ state: 'IDLE', charge: null })
    await device.pass(5 * HOUR)
    expect(device.billed()).toBeCloseTo(3, 2)
    expect(await device.request(id, 6)).toBe(200)
  })

  it('ends when its tokens do', async () => {
    const device = await SessionDevice.make(10)
    const id = await device.open()
    await device.request(id, 8)
    await device.pass(61 * MINUTE)
    expect(device.session(id).state).toBe('TERMINATED')
    expect(device.asked).toHaveLength(1)
    expect(await device.heartbeat(id)).toBe('TERMINATED')
    expect(device.billed()).toBe(8)
    expect(device.disk.history.at(-1)).toMatchObject({ items: [{ outcome: 'INSUFFICIENT_TOKENS' }], postings: [] })
  })

  it('is charged from a top-up that comes in time', async () => {
    const device = await SessionDevice.make(10)
    device.cloud = () => device.grant(100_000_000n)
    const id = await device.open()
    await device.request(id, 8)
    await device.pass(61 * MINUTE)
    expect(device.session(id).state).toBe('ACTIVE')
    expect(device.billed()).toBe(16)
  })

  it('requests only the tokens that the rest of its interval does not cover', async () => {
    const device = await SessionDevice.make(10)
    const id = await device.open()
    await device.request(id, 8)
    await device.pass(30 * MINUTE)
    expect(await device.request(id, 6)).toBe(200)
    expect(device.asked).toEqual([])
    await device.pass(30 * MINUTE)
    expect(await device.request(id, 12)).toBe(403)
    const [need] = device.asked[0]?.needs ?? []
    expect(need?.map(({ account }) => account)).toEqual([LINE])
    expect(Number(need?.[0]?.amount) / 1e6).toBeCloseTo(9, 2)
  })

  it('continues if a pool that was used up has tokens again', async () => {
    const device = await SessionDevice.make(1)
    await device.grant(9_000_000n, undefined, true)
    const id = await device.open()
    await device.request(id, 8)
    device.cloud = () => device.grant(100_000_000n)
    await device.pass(61 * MINUTE)
    expect(device.session(id).state).toBe('ACTIVE')
    expect(device.billed()).toBe(16)
  })

  it('ends half an interval after an automatic charge without a heartbeat, with all of that charge refunded', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 3)
    await device.pass(60 * MINUTE + 25 * MINUTE)
    expect(device.billed()).toBe(6)
    await device.pass(6 * MINUTE)
    expect(device.session(id).state).toBe('TERMINATED')
    expect(device.billed()).toBe(3)
    expect(device.log().at(-1)).toBe('refund HEARTBEAT_MISSED')
  })

  it('refunds the rest of the interval after a heartbeat as well', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 3)
    await device.pass(60 * MINUTE + 15 * MINUTE)
    expect(await device.heartbeat(id)).toBe(204)
    await device.pass(15 * MINUTE)
    expect(await device.close(id)).toBe(204)
    expect(device.log()).toEqual([
      'session OPENED',
      'access GRANTED',
      'access RENEWED',
      'session HEARTBEAT',
      'refund CLOSED',
    ])
    expect(device.billed()).toBeCloseTo(4.5, 2)
  })

  it('counts an unnecessary heartbeat without an entry', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.pass(MINUTE)
    expect(await device.heartbeat(id)).toBe(204)
    expect(device.session(id).lastHeartbeat).toBeGreaterThan(BEGIN)
    expect(device.log()).toEqual(['session OPENED'])
  })

  it('is refused when too many are live', async () => {
    const device = await SessionDevice.make()
    device.liveMax = 2
    await device.restart()
    const [first] = [await device.open(), await device.open()]
    await expect(device.open()).rejects.toMatchObject({ code: 'OVERLOADED' })
    await device.close(first)
    await device.open()
  })

  it('is charged for the interval in the rules', async () => {
    const device = await SessionDevice.make()
    device.activePolicies.put(await policyInForce(2, { sessionIntervalMs: 10 * MINUTE }))
    const id = await device.open()
    await device.request(id, 1)
    await device.pass(10 * MINUTE + 1_000)
    expect(device.billed()).toBe(2)
    expect(device.session(id).heartbeatDue).not.toBeNull()
  })
})

describe('operations on one session', () => {
  it('wait for each other, and are each charged once', async () => {
    const device = await SessionDevice.make(100)
    const id = await device.open()
    const answers = await Promise.all([1, 2, 3, 4, 5].map((count) => device.request(id, count)))
    expect(answers).toEqual([200, 200, 200, 200, 200])
    expect(device.billed()).toBe(5)
    const [closed, ...others] = await Promise.all([device.close(id), device.close(id), device.request(id, 1)])
    expect([closed, ...others]).toEqual([204, 'TERMINATED', 'TERMINATED'])
    expect(device.billed()).toBeCloseTo(0, 2)
  })
})

it('names half of the charge interval as the longest time between heartbeats, unless none are needed', async () => {
  const device = await SessionDevice.make()
  const heartbeatMs = (id: string): number | null => device.sessions.heartbeatMs(id)
  const active = await device.open()
  await device.request(active, 6)
  device.activePolicies.put(await policyInForce(2, { sessionIntervalMs: MINUTE }))
  const [idle, bound] = [await device.open(), await device.open({ bound: true })]
  expect([active, idle, bound, 'unknown'].map(heartbeatMs)).toEqual([HOUR / 2, MINUTE / 2, null, null])
  await device.close(active)
  expect(heartbeatMs(active)).toBeNull()
  device.activePolicies = new ActivePolicies()
  await device.restart()
  expect(heartbeatMs(idle)).toBeNull()
})

describe('the clock of a session', () => {
  it('does not follow the wall clock, forwards or backwards', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 6)
    device.time.wallErrorMs = 365 * 24 * HOUR
    await device.pass(30 * MINUTE)
    expect(device.billed()).toBe(6)
    device.time.wallErrorMs = -365 * 24 * HOUR
    await device.pass(31 * MINUTE)
    expect(device.billed()).toBe(12)
  })

  const hear = ({ clock, time }: SessionDevice, aheadMs: number): void => {
    const now = time.sinceBoot()
    clock.learn({ time: time.truth() + aheadMs, sentAt: now, receivedAt: now })
  }

  it.each([false, true])('is charged from the present when a clock ahead was corrected, bound: %s', async (bound) => {
    const device = await SessionDevice.make()
    const id = await device.open({ bound })
    await device.request(id, 6)
    hear(device, 72 * HOUR)
    await device.pass(MINUTE)
    expect(device.billed()).toBe(12)
    hear(device, 0)
    await device.pass(MINUTE)
    expect(device.billed()).toBe(12)
    await device.heartbeat(id)
    await device.pass(HOUR)
    expect(device.billed()).toBe(18)
  })

  it('charges short intervals from the present when a clock was ahead by minutes', async () => {
    const device = await SessionDevice.make()
    device.activePolicies.put(await policyInForce(2, { sessionIntervalMs: MINUTE }))
    const id = await device.open({ bound: true })
    hear(device, 5 * MINUTE)
    await device.request(id, 6)
    hear(device, 0)
    await device.pass(4.75 * MINUTE)
    expect(device.billed()).toBe(5 * 6)
  })

  it('continues after a reboot without a network from the earliest possible time', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 6)
    await device.pass(30 * MINUTE)
    await device.heartbeat(id)
    device.kill()
    device.time.bootId = 'boot-2'
    await device.start()
    await device.pass(29 * MINUTE)
    expect(device.billed()).toBe(6)
    await device.pass(5 * MINUTE)
    expect(device.billed()).toBe(12)
  })
})

describe('a restart of the agent', () => {
  it('continues with every session unchanged', async () => {
    const device = await SessionDevice.make()
    const [active, idle, ended] = [await device.open(), await device.open(), await device.open()]
    await device.request(active, 3)
    await device.close(ended)
    const before = [active, idle, ended].map((id) => device.session(id))
    await device.restart()
    expect([active, idle, ended].map((id) => device.session(id))).toEqual(before)
    await device.pass(30 * MINUTE)
    await device.close(active)
    expect(device.billed()).toBeCloseTo(1.5, 2)
  })

  it('makes one of the automatic charges that became due meanwhile', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 3)
    await device.restart(7.5 * HOUR)
    expect(device.session(id)).toMatchObject({ state: 'ACTIVE' })
    expect(device.billed()).toBe(6)
    const until = device.session(id).charge?.until ?? 0
    expect(until - device.clock.reading().earliest).toBeCloseTo(30 * MINUTE, -5)
    await device.restart()
    await device.restart()
    expect(device.billed()).toBe(6)
  })

  it('ends a session whose heartbeat was due meanwhile, with its refund', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 3)
    await device.pass(61 * MINUTE)
    expect(device.billed()).toBe(6)
    await device.restart(2 * HOUR)
    expect(device.session(id).state).toBe('TERMINATED')
    expect(device.billed()).toBe(3)
  })

  it('after a crash at any commit, nothing is charged or refunded twice', async () => {
    for (let crashAfter = 1; crashAfter <= 7; crashAfter += 1) {
      const device = await SessionDevice.make()
      const id = await device.open()
      device.disk.commitsUntilCrash = crashAfter
      const script = async (): Promise<void> => {
        await device.request(id, 6)
        await device.pass(30 * MINUTE)
        await device.request(id, 4)
        await device.pass(61 * MINUTE)
        await device.heartbeat(id)
        await device.pass(30 * MINUTE)
        await device.close(id)
      }
      // A process that died does not respond.
      const running = { isOver: false }
      const over = (): void => void (running.isOver = true)
      void script().then(over, over)
      while (!running.isOver && device.disk.commitsUntilCrash !== Infinity) await device.settle()
      await device.settle()
      device.fatal.length = 0
      await device.restart()
      const session = device.session(id)
      const paid = (session.charge?.items ?? [])
        .flatMap(({ shares }) => shares)
        .reduce((sum, share) => sum + share.charged, 0n)
      if (session.state === 'IDLE') expect(device.billed()).toBe(0)
      else expect(device.billed()).toBeGreaterThanOrEqual(Number(paid) / 1e6)
      if (session.state === 'ACTIVE') await device.close(id)
      const numbers = device.disk.history.map(({ n }) => n)
      expect(numbers).toEqual(numbers.map((_, index) => index + 1))
      device.billed()
    }
  })
})

describe('a session that is bound to its connection', () => {
  it('needs no heartbeats, and ends with its refund when the connection closes', async () => {
    const device = await SessionDevice.make()
    const id = await device.open({ bound: true })
    await device.request(id, 6)
    await device.pass(5.5 * HOUR)
    expect(device.session(id)).toMatchObject({ state: 'ACTIVE', heartbeatDue: null })
    expect(device.billed()).toBe(36)
    device.sessions.connectionClosed(id)
    await device.settle()
    expect(device.session(id).state).toBe('TERMINATED')
    expect(device.billed()).toBeCloseTo(33, 1)
    const log = device.log()
    device.sessions.connectionClosed(id)
    await device.settle()
    expect(device.log()).toEqual(log)
  })

  it('ends when its tokens do', async () => {
    const device = await SessionDevice.make(10)
    const id = await device.open({ bound: true })
    await device.request(id, 8)
    await device.pass(61 * MINUTE)
    expect(device.session(id).state).toBe('TERMINATED')
    expect(device.billed()).toBe(8)
  })

  it('ends at the next start if the agent was killed', async () => {
    const device = await SessionDevice.make()
    const id = await device.open({ bound: true })
    await device.request(id, 6)
    await device.restart(30 * MINUTE)
    expect(device.session(id).state).toBe('TERMINATED')
    expect(device.billed()).toBeCloseTo(3, 2)
  })

  it('ends as soon as its end can be recorded', async () => {
    const device = await SessionDevice.make()
    const id = await device.open({ bound: true })
    await device.request(id, 6)
    device.disk.refusals = 2
    device.sessions.connectionClosed(id)
    await device.settle()
    expect(device.session(id).state).toBe('ACTIVE')
    await device.pass(10_000)
    expect(device.session(id).state).toBe('TERMINATED')
    expect(device.billed()).toBeCloseTo(0, 1)
  })
})

describe('a full disk', () => {
  it('leaves every session in the journal unchanged, and grants nothing', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 3)
    const before = device.session(id)
    device.disk.refusals = 4
    await expect(device.open()).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    await expect(device.request(id, 5)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    await expect(device.request(id, 0)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    await expect(device.close(id)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    expect(device.session(id)).toEqual(before)
    expect(device.sessions.list(() => true)).toHaveLength(1)
    expect(device.billed()).toBe(3)
    expect(await device.close(id)).toBe(204)
  })

  it('refuses requests of a session that it cannot charge, with the reason, and charges it once there is space', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 3)
    device.disk.refusals = Infinity
    await device.pass(61 * MINUTE)
    await expect(device.heartbeat(id)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    expect(device.billed()).toBe(3)
    device.disk.refusals = 0
    await device.pass(2_000)
    expect(device.billed()).toBe(6)
    expect(await device.heartbeat(id)).toBe(204)
  })
})

describe('a command of an administrator', () => {
  it('takes effect at once: a lock stops requests and heartbeats, an end refunds the rest', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 6)
    let taken = 0
    const order = async (what: 'LOCK' | 'UNLOCK' | 'TERMINATE'): Promise<void> => {
      device.sessions.applyCommands([{ id: id.toUpperCase(), command: what }], () => (taken += 1))
      await device.settle()
    }
    await order('LOCK')
    await order('LOCK')
    expect([await device.request(id, 1), await device.heartbeat(id)]).toEqual(['LOCKED', 'LOCKED'])
    expect(device.sessions.list(() => true)).toEqual([])
    await device.pass(3 * HOUR)
    expect(device.billed()).toBe(6)
    await device.restart()
    expect(device.session(id).state).toBe('LOCKED')
    await order('UNLOCK')
    expect(device.session(id).state).toBe('IDLE')
    expect(await device.request(id, 6)).toBe(200)
    await device.pass(30 * MINUTE)
    await order('TERMINATE')
    await order('TERMINATE')
    expect(device.session(id).state).toBe('TERMINATED')
    expect(device.billed()).toBeCloseTo(9, 2)
    expect(taken).toBe(3)
  })

  it('changes nothing for an unknown session', async () => {
    const device = await SessionDevice.make()
    device.sessions.applyCommands([{ id: '00000000-0000-4000-8000-00000000ffff', command: 'LOCK' }], () => undefined)
    await device.settle()
    expect(device.log()).toEqual([])
  })
})

describe('a fence', () => {
  it('refunds to the accounts of the old epoch, and the next one continues to charge: each moment is charged once', async () => {
    const device = await SessionDevice.make()
    const [active, idle] = [await device.open(), await device.open()]
    await device.request(active, 6)
    await device.pass(30 * MINUTE)
    await device.ledger.freeze()
    expect(device.billed()).toBeCloseTo(3, 2)
    await expect(device.request(active, 1)).rejects.toMatchObject({ code: 'NOT_ATTACHED' })
    await expect(device.open()).rejects.toMatchObject({ code: 'NOT_ATTACHED' })
    expect(device.session(idle).state).toBe('IDLE')
    await device.beginEpoch()
    await device.pass(5_000)
    expect(device.session(active).state).toBe('ACTIVE')
    expect(device.disk.history.filter(({ epoch }) => epoch === 2)).toEqual([])
    await device.grant(100_000_000n)
    await device.pass(5_000)
    expect(device.billed()).toBe(6)
    await device.pass(29 * MINUTE)
    await device.close(active)
    expect(device.billed(1) + device.billed(2)).toBeCloseTo(5.9, 0)
    expect(device.log().filter((entry) => entry.endsWith('SUSPENDED'))).toEqual(['refund SUSPENDED'])
  })

  it('in the middle of a charge refunds it in full, and the session stays ACTIVE', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    const asked = device.request(id, 6)
    await Promise.resolve()
    await Promise.resolve()
    await Promise.resolve()
    await device.ledger.freeze()
    expect(await asked).toBe(200)
    expect(device.billed()).toBe(0)
    expect(device.session(id)).toMatchObject({ state: 'ACTIVE', charge: { items: [{ shares: [] }] } })
  })

  it('refunds nothing from a later epoch if the refund could not be recorded in time', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 6)
    device.disk.refusals = 1
    await device.ledger.freeze()
    await device.beginEpoch()
    await device.grant(100_000_000n)
    expect(await device.close(id)).toBe(204)
    expect(device.billed(1)).toBe(6)
    expect(device.billed(2)).toBe(0)
  })
})

describe('a request that is sent again', () => {
  it('gets the first response and changes nothing, for every operation with a number', async () => {
    const device = await SessionDevice.make()
    const idempotencyKey = (n: number) => ({ session: 'app', n, requestHash: `hash ${n}` })
    const open = () =>
      device.sessions.open({ instanceId: INSTANCE, owner: null, bound: false, idempotencyKey: idempotencyKey(1) })
    const [first, second] = [await open(), await open()]
    expect(second).toMatchObject({ ...first, warnings: [] })
    expect(device.sessions.list(() => true)).toHaveLength(1)
    const id = device.sessions.list(() => true)[0]?.id ?? ''
    const close = () => device.sessions.close(id, () => undefined, idempotencyKey(2))
    expect([await close(), await close()]).toMatchObject([{ status: 204 }, { status: 204, body: '' }])
    const wrong = device.sessions.open({
      instanceId: INSTANCE,
      owner: null,
      bound: false,
      idempotencyKey: { ...idempotencyKey(2), requestHash: 'another' },
    })
    await expect(wrong).rejects.toBeInstanceOf(CodedError)
  })

  it('learns the state of a session that has ended, also while the first request waits', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.close(id)
    const close = () => device.sessions.close(id, () => undefined, { session: 'app', n: 1, requestHash: 'close' })
    const ended = { operable: false, session: { state: 'TERMINATED' } }
    expect(await Promise.all([close(), close()])).toMatchObject([ended, ended])
    expect(await close()).toMatchObject(ended)
  })
})

describe('a session of a requester with a rule', () => {
  it('is decided with its dictionary at every automatic charge, and refunded to the allocation too', async () => {
    const device = await SessionDevice.make()
    const conditionId = '0d9b7f38-6c5e-4a51-9a43-0a5d4b2f1c3e'
    const actionId = '6b0f3f7e-30a5-4d2f-8d2f-1f1a3c4b5d6e'
    const base = await policyInForce(1)
    const [item] = base.document.lineItems
    const action = { id: actionId, name: null, conditionId, effect: 'ALLOW' as const, allocation: '20000000' }
    const { quantity, offline: _, ...rest } = item!
    device.activePolicies.put(
      await policyInForce(2, {
        lineItems: [{ ...rest, quantity: String(quantity), overdraft: '0', actions: [action], consumptionLimit: null }],
        conditions: [{ id: conditionId, name: null, condition: { operator: 'IN', property: 'a', values: ['b'] } }],
      }),
    )
    const account = `action/${INSTANCE}/line-1/${actionId}`
    await device.grant(20_000_000n, account)
    const id = await device.open()
    expect(await device.request(id, 6)).toBe(200)
    await device.pass(61 * MINUTE)
    expect(device.disk.read().accounts.get(account)?.used).toBe(12_000_000n)
    await device.pass(10 * MINUTE)
    await device.close(id)
    const { refunded } = device.disk.read().accounts.get(account) ?? { refunded: 0n }
    expect(refunded).toBeGreaterThan(0n)
    expect(device.disk.read().accounts.get(LINE)?.refunded).toBe(refunded)
    expect(device.disk.history.at(-1)).toMatchObject({ kind: 'refund', items: [{ parts: [{ actionId }] }] })
  })
})

describe('a device whose service is terminated', () => {
  const terminate = (device: SessionDevice): void => {
    device.activePolicies.suspension = { state: 'TERMINATED', since: device.time.truth() }
  }

  it('ends its sessions before the epoch does, and refunds the rest to its accounts', async () => {
    const device = await SessionDevice.make()
    const [active, locked, idle, closed] = [
      await device.open(),
      await device.open(),
      await device.open(),
      await device.open(),
    ]
    for (const id of [active, locked, closed]) await device.request(id, 6)
    await device.close(closed)
    device.sessions.applyCommands([{ id: locked, command: 'LOCK' }], () => undefined)
    await device.pass(30 * MINUTE)
    terminate(device)
    await device.ledger.freeze()
    await device.settle()
    expect([active, locked, idle].map((id) => device.session(id).state)).toEqual(Array(3).fill('TERMINATED'))
    expect(device.billed()).toBeCloseTo(6, 2)
    expect(device.log().slice(-3)).toEqual(['refund CLOSED', 'refund CLOSED', 'session CLOSED'])
    await device.pass(3 * HOUR)
    expect(await device.heartbeat(active)).toBe('TERMINATED')
    await expect(device.open()).rejects.toMatchObject({ code: 'DEVICE_TERMINATED' })
    await device.restart()
    expect(device.sessions.list(() => true)).toEqual([])
    expect(device.warned).toEqual([])
  })

  it('ends a session at its next charge while it can still record it', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 6)
    terminate(device)
    await device.pass(61 * MINUTE)
    expect([device.session(id).state, device.billed()]).toEqual(['TERMINATED', 6])
    expect(device.log().at(-1)).toBe('session NOT_RENEWED')
    expect(device.warned).toEqual([])
  })

  it('ends a session whose next charge the tokens of a refused device cannot pay', async () => {
    const device = await SessionDevice.make(6)
    const id = await device.open()
    await device.request(id, 6)
    device.connected = false
    device.activePolicies.isDeviceRefused = true
    await device.pass(61 * MINUTE)
    expect([device.session(id).state, device.billed()]).toEqual(['TERMINATED', 6])
    expect(device.log().at(-1)).toBe('access NOT_RENEWED')
    expect(device.warned).toEqual([])
  })

  it('leaves a session of an earlier epoch as it is, names the reason to its application, and logs nothing', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 6)
    await device.ledger.freeze()
    await device.journal.fence()
    terminate(device)
    await device.restart()
    await device.pass(3 * HOUR)
    await expect(device.heartbeat(id)).rejects.toMatchObject({ code: 'DEVICE_TERMINATED' })
    await expect(device.close(id)).rejects.toMatchObject({ code: 'NOT_ATTACHED' })
    expect(device.session(id).state).toBe('ACTIVE')
    expect(device.warned).toEqual([])
    device.activePolicies.suspension = null
    await device.beginEpoch()
    await device.grant(100_000_000n)
    device.sessions.applyCommands([{ id, command: 'TERMINATE' }], () => undefined)
    await device.settle()
    expect([device.session(id).state, device.billed(1)]).toEqual(['TERMINATED', 0])
  })
})

describe('a locked device', () => {
  const locked = async (): Promise<{ readonly device: SessionDevice; readonly id: string }> => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.request(id, 6)
    device.activePolicies.suspension = { state: 'LOCKED', since: device.time.truth() }
    await device.pass(90 * MINUTE)
    return { device, id }
  }

  it('does not charge a session again, and charges it after the lock', async () => {
    const { device, id } = await locked()
    expect([device.session(id).state, device.billed()]).toEqual(['ACTIVE', 6])
    await expect(device.heartbeat(id)).rejects.toMatchObject({ code: 'DEVICE_LOCKED' })
    expect(device.warned).toEqual([])
    device.activePolicies.suspension = null
    await device.pass(MINUTE)
    expect([device.session(id).state, device.billed()]).toEqual(['ACTIVE', 12])
  })

  it('ends a session whose application closes it', async () => {
    const { device, id } = await locked()
    expect(await device.close(id)).toBe(204)
    expect([device.session(id).state, device.billed()]).toEqual(['TERMINATED', 6])
  })

  it('follows commands for a session', async () => {
    const { device, id } = await locked()
    device.sessions.applyCommands([{ id, command: 'LOCK' }], () => undefined)
    await device.settle()
    expect([device.session(id).state, await device.heartbeat(id)]).toEqual(['LOCKED', 'LOCKED'])
    device.activePolicies.suspension = null
    device.sessions.applyCommands([{ id, command: 'UNLOCK' }], () => undefined)
    await device.settle()
    expect([device.session(id).state, device.billed()]).toEqual(['IDLE', 6])
  })
})

it('a session that cannot be charged for hours logs each reason once', async () => {
  const device = await SessionDevice.make()
  const id = await device.open()
  await device.request(id, 6)
  await device.ledger.freeze()
  await device.pass(3 * HOUR)
  expect(device.warned).toEqual([])
  await device.beginEpoch()
  await device.pass(3 * HOUR)
  const message = 'a session could not be advanced'
  expect(device.warned).toEqual([{ sessionId: id, code: 'NOT_ATTACHED', message }])
})
