// Connections that are read and written beside their streams.
import { once } from 'node:events'
import { type Socket, connect, createServer } from 'node:net'
import { join } from 'node:path'
import { Duplex } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { expect, it, onTestFinished } from 'vitest'
import { readInPlace, writeNow } from '../../src/platform/direct-socket.ts'
import { temporaryDirectory } from '../agent/harness.ts'

/** Both ends of a connection over a Unix socket. */
async function connection(): Promise<{ readonly accepted: Socket; readonly client: Socket }> {
  const path = join(temporaryDirectory(), 'a.sock')
  const server = createServer({ allowHalfOpen: true }).listen(path)
  await once(server, 'listening')
  const client = connect(path)
  const [accepted] = (await once(server, 'connection')) as [Socket]
  onTestFinished(() => {
    client.destroy()
    accepted.destroy()
    server.close()
  })
  return { accepted, client }
}

/** Resolves with the next bytes, copied, and the memory that they came in. */
function nextRead(socket: Socket): {
  readonly read: () => Promise<[string, ArrayBufferLike]>
  readonly end: () => void
} {
  let pending = Promise.withResolvers<[string, ArrayBufferLike]>()
  const end = readInPlace(socket, (bytes) => pending.resolve([bytes.toString(), bytes.buffer]))
  const read = async (): Promise<[string, ArrayBufferLike]> => {
    const result = await pending.promise
    pending = Promise.withResolvers()
    return result
  }
  return { read, end }
}

it('reads all connections into the same memory, with this Node', async () => {
  const [one, other] = [await connection(), await connection()]
  const [first, second] = [nextRead(one.accepted), nextRead(other.accepted)]
  one.client.write('one')
  const [text, memory] = await first.read()
  expect(text).toBe('one')
  other.client.write('other')
  const [next, nextMemory] = await second.read()
  expect(next).toBe('other')
  expect(nextMemory).toBe(memory)
})

it('gives what comes later to the stream, with its end', async () => {
  const { accepted, client } = await connection()
  const { read, end } = nextRead(accepted)
  client.write('before')
  expect((await read())[0]).toBe('before')
  end()
  client.end('a'.repeat(300_000))
  expect((await buffer(accepted)).toString()).toBe('a'.repeat(300_000))
})

it('reads a stream that offers no memory by its events', async () => {
  const stream = new Duplex({ read: () => undefined, write: (_bytes, _encoding, done) => done() }) as Socket
  const { read, end } = nextRead(stream)
  stream.push('before')
  expect((await read())[0]).toBe('before')
  end()
  const rest = buffer(stream)
  stream.push('later')
  stream.push(null)
  expect((await rest).toString()).toBe('later')
})

it('writes texts in their sequence to a client that reads none of them for a while', async () => {
  const { accepted, client } = await connection()
  client.pause()
  const texts = ['a'.repeat(3), 'ä'.repeat(400_000), 'b'.repeat(400_000), 'c']
  for (const text of texts) writeNow(accepted, text, text.startsWith('ä') ? 'utf8' : 'latin1')
  expect(accepted.writableLength).toBeGreaterThan(0)
  accepted.end()
  expect((await buffer(client)).toString()).toBe(texts.join(''))
})

it('leaves the error of a connection that is gone to its stream', async () => {
  const { accepted, client } = await connection()
  client.destroy()
  const failed = once(accepted, 'error').catch((error: unknown) => [error])
  await once(client, 'close')
  writeNow(accepted, 'x', 'latin1')
  expect((await failed)[0]).toMatchObject({ code: 'EPIPE' })
  accepted.destroy()
  accepted.on('error', () => undefined)
  expect(() => writeNow(accepted, 'x', 'latin1')).not.toThrow()
})
