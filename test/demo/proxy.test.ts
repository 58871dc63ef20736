import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { type Proxy, startProxy } from '../../src/demo/proxy.ts'

let target: Server
let proxy: Proxy
beforeEach(async () => {
  target = createServer((socket) => socket.on('error', () => undefined).pipe(socket))
  await new Promise<void>((resolve) => target.listen(0, '127.0.0.1', resolve))
  proxy = await startProxy()
  proxy.lead((target.address() as AddressInfo).port)
})
afterEach(async () => {
  await proxy.close()
  await new Promise((resolve) => target.close(resolve))
})

/** What comes back for `word`; the socket stays open. */
async function say(socket: Socket, word: string): Promise<string> {
  socket.write(word)
  return new Promise((resolve, reject) => {
    socket.once('data', (chunk: Buffer) => resolve(chunk.toString()))
    socket.once('error', reject)
    socket.once('close', () => reject(new Error('closed')))
  })
}

const closed = (socket: Socket) => new Promise((resolve) => socket.once('close', resolve))

test('it carries bytes in both directions', async () => {
  const socket = connect(proxy.port, '127.0.0.1')
  expect(await say(socket, 'hello')).toBe('hello')
  socket.destroy()
})

test('a cut destroys the connections that stand and refuses others, until it is restored on the same port', async () => {
  const socket = connect(proxy.port, '127.0.0.1')
  await say(socket, 'hello')
  const end = closed(socket)
  await proxy.cut()
  await end
  await expect(say(connect(proxy.port, '127.0.0.1'), 'x')).rejects.toMatchObject({ code: 'ECONNREFUSED' })

  await proxy.restore()
  const again = connect(proxy.port, '127.0.0.1')
  expect(await say(again, 'back')).toBe('back')
  again.destroy()
})

test('when it loses what comes back, the target has heard, and the connection breaks', async () => {
  const heard = new Promise<string>((resolve) => {
    target.once('connection', (socket) => socket.once('data', (chunk: Buffer) => resolve(chunk.toString())))
  })
  proxy.behave('one way')
  const socket = connect(proxy.port, '127.0.0.1')
  await expect(say(socket, 'hello')).rejects.toThrow('closed')
  expect(await heard).toBe('hello')
  proxy.behave('well')
  const again = connect(proxy.port, '127.0.0.1')
  expect(await say(again, 'back')).toBe('back')
  again.destroy()
})

test('when it is slow, everything arrives, later', async () => {
  proxy.behave('slowly')
  const socket = connect(proxy.port, '127.0.0.1')
  const began = performance.now()
  expect(await say(socket, 'hello')).toBe('hello')
  expect(performance.now() - began).toBeGreaterThan(500)
  socket.destroy()
})

test('before it leads anywhere, and when its target is gone, a connection is closed', async () => {
  const aimless = await startProxy()
  const refused = connect(aimless.port, '127.0.0.1').on('error', () => undefined)
  await closed(refused)
  const empty = createServer()
  await new Promise<void>((resolve) => empty.listen(0, '127.0.0.1', resolve))
  const { port } = empty.address() as AddressInfo
  await new Promise((resolve) => empty.close(resolve))
  aimless.lead(port)
  await closed(connect(aimless.port, '127.0.0.1').on('error', () => undefined))
  await aimless.close()
})
