// What is kept beside the charges of sessions: who owns them, which are listed, what callers are held to, and for how long one
// that ended is remembered.
import { describe, expect, it } from 'vitest'
import type { Hold } from '../../../src/agent/app/callers/callers.ts'
import { SESSION_REST_MS } from '../../../src/core/session.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { requestOf, sessionAccessRequestBody } from '../../../src/protocol/service/access-request.ts'
import { INSTANCE } from '../link/fake-cloud.ts'
import { HOUR, MINUTE, SessionDevice } from './device.ts'

/** A caller whose calls are noted, and who has so many tokens. */
class NotedHold implements Hold {
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

function request(device: SessionDevice, sessionId: string, count: number, hold: Hold) {
  const body = sessionAccessRequestBody['v1.1'].parse({
    requester: { type: 'user', value: 'ada' },
    rollbackOnDeny: true,
    requestedItems: count === 0 ? [] : [{ item: 'print', count }],
  })
  const order = { apiVersion: 'v1.1' as const, sessionId, request: requestOf(body), metaData: [undefined] }
  return device.sessions.request({ ...order, rollbackOnDeny: true, belongs: () => undefined, repeat: null, hold })
}

describe('sessions that are listed', () => {
  it('are live, of whoever asks, and the newest comes first', async () => {
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

  it('are not found before they stand in the journal', async () => {
    const device = await SessionDevice.make()
    const opening = device.open()
    const id = '00000000-0000-4000-8000-000000000001'
    expect(() => device.session(id)).toThrow(expect.objectContaining({ code: 'NOT_FOUND' }))
    expect(device.sessions.list(() => true)).toEqual([])
    expect(await opening).toBe(id)
    expect(device.session(id).state).toBe('IDLE')
  })
})

describe('what a caller is held to', () => {
  it('is told how many of its own sessions have not ended, locked ones included', async () => {
    const device = await SessionDevice.make()
    const hold = new NotedHold()
    const open = async (owner: string): Promise<string> => {
      const answer = await device.sessions.open({ instanceId: INSTANCE, owner, bound: false, repeat: null, hold })
      if (!answer.operable) throw new Error('it was just opened')
      return (JSON.parse(answer.body) as { sessionId: string }).sessionId
    }
    const [locked, ended] = [await open('ada'), await open('ada')]
    await open('bob')
    device.sessions.takeOrders([{ id: locked, order: 'LOCK' }], () => undefined)
    await device.close(ended)
    await open('ada')
    expect(hold.calls).toEqual(['open beside 0', 'open beside 1', 'open beside 0', 'open beside 1'])
  })

  it('is asked before anything is decided, and spends what is granted', async () => {
    const device = await SessionDevice.make(100)
    const hold = new NotedHold(50_000_000n)
    const id = await device.open()
    expect(await request(device, id, 30, hold)).toMatchObject({ status: 200 })
    expect(await request(device, id, 0, hold)).toMatchObject({ status: 200 })
    expect(await request(device, id, 500, hold)).toMatchObject({ status: 403 })
    await expect(request(device, id, 21, hold)).rejects.toMatchObject({ code: 'CALLER_LIMITED' })
    expect([hold.tokens, hold.calls]).toEqual([20_000_000n, Array<string>(4).fill('request of user ada')])
    expect(device.billed()).toBeCloseTo(0, 2)
  })

  it('gets its tokens back when the charge cannot be recorded', async () => {
    const device = await SessionDevice.make(100)
    const hold = new NotedHold(50_000_000n)
    const id = await device.open()
    device.journal.refusals = 1
    await expect(request(device, id, 30, hold)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    expect(hold.tokens).toBe(50_000_000n)
  })

  it('hears of each automatic charge, by the owner of the session', async () => {
    const device = await SessionDevice.make(13)
    const [owned, nobodys] = [await device.open({ owner: 'ada' }), await device.open()]
    await device.request(owned, 4)
    await device.request(nobodys, 2)
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
  it('is remembered for as long as one may rest, and then unknown', async () => {
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

  it('is remembered with so many others that ended, the oldest being forgotten first', async () => {
    const device = await SessionDevice.make()
    const [oldest, next] = [await device.open(), await device.open()]
    await device.close(oldest)
    await device.close(next)
    const stored = device.disk.sessions.get(next)!
    for (let n = 0; n < 998; n += 1) {
      const id = `11111111-0000-4000-8000-${String(n).padStart(12, '0')}`
      device.disk.sessions.set(id, { ...stored, id, document: stored.document.replaceAll(next, id) })
    }
    await device.restart()
    expect(device.session(oldest).state).toBe('TERMINATED')
    await device.close(await device.open())
    expect(() => device.session(oldest)).toThrow(expect.objectContaining({ code: 'NOT_FOUND' }))
    expect(device.session(next).state).toBe('TERMINATED')
  })

  it('takes no more requests under a number, and the number may be used again', async () => {
    const device = await SessionDevice.make()
    const id = await device.open()
    await device.close(id)
    const close = () => device.sessions.close(id, () => undefined, { session: 'app', n: 1, requestHash: 'h' })
    const answers = [await close(), await close()]
    expect(answers.map((answer) => answer.operable)).toEqual([false, false])
  })
})

it('what cannot be moved on is tried again, and the log says of which session and why', async () => {
  const device = await SessionDevice.make()
  const id = await device.open()
  await device.request(id, 3)
  device.journal.refusals = 1
  await device.pass(61 * MINUTE)
  expect(device.warned).toEqual([{ sessionId: id, code: 'NOT_RECORDED', message: 'a session could not be moved on' }])
  expect(device.billed()).toBe(6)
})

it('sessions that are stopped do nothing more by themselves', async () => {
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
