// How many requests of devices are served at the same time. Their responses end when the test says so.
import { EventEmitter, once } from 'node:events'
import { type AddressInfo, type Socket, connect } from 'node:net'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { Entrance } from '../../../src/cloud/http/entrance.ts'
import { bareServer } from './bare-server.ts'
import { type CallerKind, CLIENTS_AND_DEVICES, edgeOperation } from '../../../src/cloud/http/operation.ts'
import { type ServeDeps, serveOperations } from '../../../src/cloud/http/serve.ts'
import { Slots } from '../../../src/cloud/http/slots.ts'
import { CodedError } from '../../../src/protocol/errors.ts'

const INSIDE = 128

function request() {
  const response = Object.assign(new EventEmitter(), { closed: false })
  const close = (): void => {
    response.closed = true
    response.emit('close')
  }
  return { response, close }
}

/** Requests that have arrived, and the numbers of those that have begun. */
async function arrive(entrance: Entrance, count: number, headers: Record<string, string> = {}) {
  const begun: number[] = []
  const requests = Array.from({ length: count }, request)
  for (const [index, { response }] of requests.entries()) {
    void Promise.resolve(entrance.enter(response, headers)).then(() => begun.push(index))
  }
  await settled()
  return { begun, requests }
}

async function settled(): Promise<void> {
  for (let turn = 0; turn < 10; turn += 1) await Promise.resolve()
}

describe('Entrance', () => {
  it('admits requests in the order of arrival, each when another one has ended', async () => {
    const entrance = new Entrance()
    const { begun, requests } = await arrive(entrance, INSIDE + 3)
    expect(begun).toEqual(Array.from({ length: INSIDE }, (_, index) => index))
    requests[7]?.close()
    requests[3]?.close()
    await settled()
    expect(begun.slice(INSIDE)).toEqual([INSIDE, INSIDE + 1])
    expect(entrance.waiting).toBe(1)
  })

  it('admits another one when a request only waits for its client', async () => {
    const entrance = new Entrance()
    const { begun, requests } = await arrive(entrance, INSIDE + 2)
    const [first] = requests
    if (first === undefined) throw new Error('no request has arrived')
    entrance.leave(first.response)
    first.close()
    await settled()
    expect(begun.slice(INSIDE)).toEqual([INSIDE])
  })

  it('never begins a request whose client has gone while it waited, and gives its turn to the next one', async () => {
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
      await entrance.enter(response, {})
    }
    expect((await arrive(entrance, INSIDE)).begun.length).toBe(INSIDE)
  })

  it.each([{ 'content-length': '8193' }, { 'transfer-encoding': 'chunked' }])(
    'holds up no request with a long body: %j',
    async (headers) => {
      const entrance = new Entrance()
      expect((await arrive(entrance, INSIDE + 5, headers)).begun.length).toBe(INSIDE + 5)
      expect((await arrive(entrance, INSIDE + 5, { 'content-length': '8192' })).begun.length).toBe(INSIDE)
    },
  )

  it('makes no request wait for more than ten seconds, and returns to its limit', async () => {
    vi.useFakeTimers()
    onTestFinished(() => void vi.useRealTimers())
    const entrance = new Entrance()
    const { begun, requests } = await arrive(entrance, INSIDE + 10)
    await vi.advanceTimersByTimeAsync(9_999)
    expect(begun.length).toBe(INSIDE)
    await vi.advanceTimersByTimeAsync(1)
    expect(begun.length).toBe(INSIDE + 10)
    const { begun: later } = await arrive(entrance, 20)
    for (const { close } of requests.slice(0, 12)) close()
    await settled()
    expect(later.length).toBe(2)
  })

  it('starts a request at once if too many wait', async () => {
    vi.useFakeTimers()
    onTestFinished(() => void vi.useRealTimers())
    const { begun } = await arrive(new Entrance(), INSIDE + 4_097)
    expect(begun.slice(INSIDE)).toEqual([INSIDE + 4_096])
  })
})

/** Serves operations for devices, and for clients and devices, with this check of tokens. */
async function serve(authenticate: (token: string | undefined) => Promise<never>) {
  const operation = (path: string, principals: readonly CallerKind[]) => {
    const texts = { id: path, tag: 'Test', summary: path }
    return edgeOperation({
      ...texts,
      method: 'GET',
      path,
      principals,
      answers: {},
      handle: () => new Promise(() => undefined),
    })
  }
  const deps = {
    ...{ authenticator: { authenticate }, entrance: new Entrance(), now: Date.now, routeOver: null },
    slots: new Slots({ requestsMax: 1_000, ofKeyMax: 1_000, now: () => 0 }),
  }
  const server = bareServer()
  const { http } = server
  serveOperations(server, '', deps as unknown as ServeDeps, [
    operation('/own', ['DEVICE']),
    operation('/sessions', CLIENTS_AND_DEVICES),
  ])
  onTestFinished(async () => {
    http.server.closeAllConnections()
    await http.close()
  })
  return http
}

/** Fewer requests than one connection may have before their callers are known. */
const AT_ONCE = 32

describe('operations', () => {
  it('hold up requests that only devices make', async () => {
    let checked = 0
    const http = await serve(() => {
      checked += 1
      return new Promise(() => undefined)
    })
    await http.ready()
    const send = async (path: string): Promise<void> => {
      for (let count = 0; count < INSIDE + 5; count += 1) void http.inject(`/edge/api/v1${path}`).catch(() => undefined)
      for (let turn = 0; turn < 3; turn += 1) await nextTurn()
    }
    await send('/own')
    expect(checked).toBe(INSIDE)
    await send('/sessions')
    expect(checked).toBe(INSIDE + INSIDE + 5)
  })

  it('keep no place for responses that wait for an earlier one of their connection', async () => {
    // No request waits so long that it begins for that.
    vi.useFakeTimers({ toFake: ['setTimeout'] })
    onTestFinished(() => void vi.useRealTimers())
    let checked = Promise.withResolvers<undefined>()
    let [refused, stuck] = [0, false]
    const http = await serve(async (token) => {
      if (token === 'Bearer stuck') {
        stuck = true
        return new Promise(() => undefined)
      }
      refused += 1
      if (refused % AT_ONCE === 0) checked.resolve(undefined)
      throw new CodedError('TOKEN_INVALID', 'The token is not one.')
    })
    await http.listen({ host: '127.0.0.1', port: 0 })
    const socket: Socket = connect((http.server.address() as AddressInfo).port, '127.0.0.1')
    onTestFinished(() => void socket.destroy())
    await once(socket, 'connect')
    const ask = (token: string): string =>
      `GET /edge/api/v1/own HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n\r\n`
    socket.write(ask('stuck'))
    while (refused < 2 * INSIDE) {
      checked = Promise.withResolvers<undefined>()
      socket.write(ask('wrong').repeat(AT_ONCE))
      await checked.promise
    }
    expect(stuck).toBe(true)
  })
})
