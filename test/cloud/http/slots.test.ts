// Places of requests under way, with answers of a real server.
import { EventEmitter, once } from 'node:events'
import { type ServerResponse, createServer } from 'node:http'
import { type AddressInfo, Socket, connect } from 'node:net'
import type { FastifyReply } from 'fastify'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Caller } from '../../../src/cloud/http/operation.ts'
import { Slots } from '../../../src/cloud/http/slots.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { device as enrolled } from '../storage/suite.ts'

const KEY = {
  kind: 'ADMINISTRATOR',
  keyId: 'key-1',
  name: null,
  issuer: null,
  scope: null,
  rights: [],
  instances: null,
  deviceId: null,
} as const
const BUSY = expect.objectContaining({ code: 'KEY_BUSY' }) as Error
const OVERLOADED = expect.objectContaining({ code: 'OVERLOADED' }) as Error

/** The response to a request that was just made, and the way to leave it. */
async function request() {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1')
  onTestFinished(() => {
    socket.destroy()
    server.close()
  })
  socket.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n')
  const [, raw] = (await once(server, 'request')) as [unknown, ServerResponse]
  const leave = async (): Promise<void> => {
    const closed = once(raw, 'close')
    socket.destroy()
    await closed
  }
  return { reply: { raw } as unknown as FastifyReply, leave }
}

const onConnection = () => ({ socket: new Socket() })

it('a place is free again when the caller has gone', async () => {
  const slots = new Slots({ requestsMax: 10, ofKeyMax: 1, now: () => 0 })
  const [first, second] = [await request(), await request()]
  slots.takeUntilClose(KEY, first.reply, false)
  expect(() => slots.takeUntilClose(KEY, second.reply, false)).toThrow(BUSY)
  await first.leave()
  slots.takeUntilClose(KEY, second.reply, false)
})

it('who has gone before it was known whose the request is takes no place', async () => {
  const slots = new Slots({ requestsMax: 10, ofKeyMax: 1, now: () => 0 })
  const gone = await request()
  await gone.leave()
  slots.takeUntilClose(KEY, gone.reply, false)
  const { reply } = await request()
  expect(() => slots.takeUntilClose(KEY, reply, false)).not.toThrow()
})

/** Requests that never end. */
const reply = (): Pick<FastifyReply, 'raw'> => ({ raw: new EventEmitter() as ServerResponse })
const client = (keyId: string) =>
  ({
    kind: 'CLIENT',
    keyId,
    name: null,
    issuer: null,
    scope: null,
    instances: new Set<string>(),
    deviceId: null,
  }) as const
const device = (deviceId: string) =>
  ({
    kind: 'DEVICE',
    keyId: deviceId,
    name: null,
    issuer: null,
    scope: null,
    instances: new Set<string>(),
    deviceId,
    device: enrolled(deviceId),
  }) as const

/** Takes places until one is refused. */
function takeAll(slots: Slots, caller: Caller, hasBody = false): number {
  for (let taken = 0; ; taken += 1) {
    try {
      slots.takeUntilClose(caller, reply(), hasBody)
    } catch {
      return taken
    }
  }
}

describe.each([
  ['in progress', false],
  ['whose body is arriving', true],
])('requests %s', (_name, hasBody) => {
  it('of any number of client keys leave a place for the next key', () => {
    const slots = new Slots({ requestsMax: 1_000, ofKeyMax: 500, now: () => 0 })
    const taken = Array.from({ length: 20 }, (_, index) => takeAll(slots, client(`key-${index}`), hasBody))
    expect(taken[0]).toBe(375)
    expect(taken.filter((count) => count === 0).length).toBe(10)
  })

  it('of clients leave places for devices, and those of devices for administrators', () => {
    const slots = new Slots({ requestsMax: 100, ofKeyMax: 500, now: () => 0 })
    for (let index = 0; index < 20; index += 1) takeAll(slots, client(`key-${index}`), hasBody)
    const ofDevices = Array.from({ length: 20 }, (_, index) => takeAll(slots, device(`device-${index}`), hasBody))
    expect(ofDevices.reduce((sum, count) => sum + count, 0)).toBeGreaterThanOrEqual(15)
    expect(() => slots.takeUntilClose(device('another'), reply(), hasBody)).toThrow(OVERLOADED)
    expect(takeAll(slots, KEY, hasBody)).toBeGreaterThanOrEqual(10)
  })
})

it('a body that has not arrived takes no place of a request in progress', () => {
  const slots = new Slots({ requestsMax: 2, ofKeyMax: 500, now: () => 0 })
  const arriving = [reply(), reply()] as const
  for (const each of arriving) slots.takeUntilClose(KEY, each, true)
  expect(() => slots.takeUntilClose(KEY, reply(), true)).toThrow(OVERLOADED)
  const other = reply()
  slots.takeUntilClose(KEY, other, false)
  slots.begin(arriving[0])
  expect(() => slots.begin(arriving[1])).toThrow(OVERLOADED)
  other.raw.emit('close')
  slots.begin(arriving[1])
  for (const each of arriving) each.raw.emit('close')
  expect(takeAll(slots, KEY)).toBe(2)
})

it('limits callers whose token is being checked', async () => {
  const slots = new Slots({ requestsMax: 1, ofKeyMax: 1, now: () => 0 })
  const checked = Promise.withResolvers<string>()
  const first = slots.authenticate(onConnection(), () => checked.promise)
  await expect(slots.authenticate(onConnection(), async () => 'second')).rejects.toThrow(OVERLOADED)
  checked.resolve('first')
  expect(await first).toBe('first')
  expect(await slots.authenticate(onConnection(), async () => 'third')).toBe('third')
})

it('makes administrators retry sooner than many devices', () => {
  const slots = new Slots({ requestsMax: 10, ofKeyMax: 500, now: () => 0 })
  const waitOf = (caller: Caller): unknown => {
    try {
      slots.takeUntilClose(caller, reply(), false)
    } catch (error) {
      return error instanceof CodedError ? error.details['retryAfterMs'] : error
    }
    return 0
  }
  takeAll(slots, KEY)
  const waits = Array.from({ length: 1_000 }, (_, index) => waitOf(device(`device-${index}`)))
  expect(waits.at(-1)).toBe(3_498)
  expect(waitOf(client('key'))).toBe(3_500)
  expect(waitOf(KEY)).toBe(1_000)
})

it('measures the pace while requests are in progress only', () => {
  let now = 0
  const slots = new Slots({ requestsMax: 10, ofKeyMax: 500, now: () => now })
  for (let n = 0; n < 1_000; n += 1) {
    now += 10_000
    const [first, second] = [reply(), reply()]
    slots.takeUntilClose(KEY, first, n % 2 === 0)
    now += n % 2 === 0 ? 10_000 : 0
    slots.begin(first)
    slots.takeUntilClose(KEY, second, false)
    now += 4
    first.raw.emit('close')
    now += 4
    second.raw.emit('close')
  }
  takeAll(slots, KEY)
  const retryOf = (id: string) => expect.objectContaining({ details: { retryAfterMs: Number(id) } }) as Error
  for (const id of ['1000', '1002', '1004']) {
    expect(() => slots.takeUntilClose(device(id), reply(), false)).toThrow(retryOf(id))
  }
})

it('one connection cannot keep others from being authenticated', async () => {
  const slots = new Slots({ requestsMax: 100, ofKeyMax: 100, now: () => 0 })
  const [one, another] = [onConnection(), onConnection()]
  const checked = Promise.withResolvers<string>()
  const waiting = Array.from({ length: 64 }, () => slots.authenticate(one, () => checked.promise))
  await expect(slots.authenticate(one, async () => 'more')).rejects.toThrow(BUSY)
  expect(await slots.authenticate(another, async () => 'other')).toBe('other')
  checked.resolve('done')
  await Promise.all(waiting)
  expect(await slots.authenticate(one, async () => 'again')).toBe('again')
})
