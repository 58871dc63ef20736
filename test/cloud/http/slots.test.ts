// Places of requests under way, with answers of a real server.
import { once } from 'node:events'
import { type ServerResponse, createServer } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import type { FastifyReply } from 'fastify'
import { expect, it, onTestFinished } from 'vitest'
import { Slots } from '../../../src/cloud/http/slots.ts'

const KEY = { kind: 'ADMINISTRATOR', keyId: 'key-1', name: null, instances: null, deviceId: null } as const

/** The answer to a request that somebody has just made, and the way to leave it. */
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

it('a place is free again when the caller has gone', async () => {
  const slots = new Slots(1)
  const [first, second] = [await request(), await request()]
  slots.take(KEY, first.reply)
  expect(() => slots.take(KEY, second.reply)).toThrow(expect.objectContaining({ code: 'KEY_BUSY' }) as Error)
  await first.leave()
  slots.take(KEY, second.reply)
})

it('who has gone before it was known whose the request is takes no place', async () => {
  const slots = new Slots(1)
  const gone = await request()
  await gone.leave()
  slots.take(KEY, gone.reply)
  slots.take(KEY, (await request()).reply)
})
