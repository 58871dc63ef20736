// How many requests of devices begin at the same time. Their responses end when the test says so.
import { EventEmitter } from 'node:events'
import Fastify from 'fastify'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { Entrance } from '../../../src/cloud/http/entrance.ts'
import { type CallerKind, CLIENTS_AND_DEVICES, edgeOperation } from '../../../src/cloud/http/operation.ts'
import { type ServeDeps, serveOperations } from '../../../src/cloud/http/serve.ts'
import { Slots } from '../../../src/cloud/http/slots.ts'

const INSIDE = 64

function request() {
  const response = Object.assign(new EventEmitter(), { closed: false })
  const close = (): void => {
    response.closed = true
    response.emit('close')
  }
  return { response, close }
}

/** Requests that have arrived, and the numbers of those that have begun. */
async function arrive(entrance: Entrance, count: number) {
  const begun: number[] = []
  const requests = Array.from({ length: count }, request)
  for (const [index, { response }] of requests.entries()) void entrance.enter(response).then(() => begun.push(index))
  await settled()
  return { begun, requests }
}

async function settled(): Promise<void> {
  for (let turn = 0; turn < 10; turn += 1) await Promise.resolve()
}

describe('Entrance', () => {
  it('lets requests in by arrival, each when another one has ended', async () => {
    const { begun, requests } = await arrive(new Entrance(), INSIDE + 3)
    expect(begun).toEqual(Array.from({ length: INSIDE }, (_, index) => index))
    requests[7]?.close()
    requests[3]?.close()
    await settled()
    expect(begun.slice(INSIDE)).toEqual([INSIDE, INSIDE + 1])
  })

  it('lets another one in while a request waits for its body', async () => {
    const entrance = new Entrance()
    const { begun, requests } = await arrive(entrance, INSIDE + 2)
    const slow = requests[0]?.response
    if (slow === undefined) throw new Error('no request has arrived')
    entrance.leave(slow)
    await settled()
    expect(begun.at(-1)).toBe(INSIDE)
    let hasEntered = false
    void entrance.enter(slow).then(() => (hasEntered = true))
    requests[1]?.close()
    await settled()
    expect([begun.at(-1), hasEntered]).toEqual([INSIDE + 1, false])
    requests[2]?.close()
    await settled()
    expect(hasEntered).toBe(true)
  })

  it('lets a request that is inside go on', async () => {
    const entrance = new Entrance()
    const { requests } = await arrive(entrance, INSIDE + 1)
    const inside = requests[0]?.response
    if (inside === undefined) throw new Error('no request has arrived')
    await entrance.enter(inside)
  })

  it('never begins a request whose client has gone while it waited', async () => {
    const { begun, requests } = await arrive(new Entrance(), INSIDE + 2)
    requests[INSIDE]?.close()
    requests[0]?.close()
    await settled()
    expect(begun.slice(INSIDE)).toEqual([INSIDE + 1])
  })

  it('keeps no place for a client that had gone before', async () => {
    const entrance = new Entrance()
    for (let index = 0; index < INSIDE; index += 1) {
      const { response, close } = request()
      close()
      await entrance.enter(response)
    }
    expect((await arrive(entrance, INSIDE)).begun.length).toBe(INSIDE)
  })

  it('lets no request wait for more than ten seconds', async () => {
    vi.useFakeTimers()
    onTestFinished(() => void vi.useRealTimers())
    const { begun } = await arrive(new Entrance(), INSIDE + 2)
    await vi.advanceTimersByTimeAsync(9_999)
    expect(begun.length).toBe(INSIDE)
    await vi.advanceTimersByTimeAsync(1)
    expect(begun.length).toBe(INSIDE + 2)
  })

  it('lets a request go on at once if too many wait', async () => {
    vi.useFakeTimers()
    onTestFinished(() => void vi.useRealTimers())
    const { begun } = await arrive(new Entrance(), INSIDE + 4_097)
    expect(begun.slice(INSIDE)).toEqual([INSIDE + 4_096])
  })
})

it('holds up requests that only devices make', async () => {
  let authenticated = 0
  const never = new Promise<never>(() => undefined)
  const authenticate = (): Promise<never> => {
    authenticated += 1
    return never
  }
  const operation = (path: string, principals: readonly CallerKind[]) => {
    const texts = { id: path, tag: 'Test', summary: path }
    return edgeOperation({ ...texts, method: 'GET', path, principals, answers: {}, handle: () => never })
  }
  const deps = {
    ...{ authenticator: { authenticate }, entrance: new Entrance(), now: Date.now, routeOver: null },
    slots: new Slots({ requestsMax: 1_000, ofKeyMax: 1_000, now: () => 0 }),
  }
  const http = Fastify()
  serveOperations(http, '', deps as unknown as ServeDeps, [
    operation('/own', ['DEVICE']),
    operation('/sessions', CLIENTS_AND_DEVICES),
  ])
  await http.ready()
  const send = async (path: string): Promise<void> => {
    for (let count = 0; count < INSIDE + 5; count += 1) void http.inject(`/edge/api/v1${path}`).catch(() => undefined)
    await new Promise((resolve) => setImmediate(() => setImmediate(resolve)))
  }
  await send('/own')
  expect(authenticated).toBe(INSIDE)
  await send('/sessions')
  expect(authenticated).toBe(INSIDE + INSIDE + 5)
})
