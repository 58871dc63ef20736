// Brokers that accept a connection and end it, or deny the subscription.
import { type Server, type Socket, createServer } from 'node:net'
import { expect, test } from 'vitest'
import { ExternalBroker } from '../../../../src/cloud/platform/mqtt/external-broker.ts'

const CONNACK = Buffer.from([0x20, 3, 0, 0, 0])
const SUBSCRIBE = 0x82

interface Opened {
  readonly logged: readonly string[]
  readonly attempts: () => number
  readonly close: () => Promise<void>
}

async function open(scheme: string, answer: (socket: Socket, packet: Buffer) => void): Promise<Opened> {
  let attempts = 0
  const server: Server = createServer({ allowHalfOpen: true }, (socket) => {
    attempts += 1
    socket.on('error', () => undefined).on('data', (packet: Buffer) => answer(socket, packet))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  const logged: string[] = []
  const say = ({ code }: { readonly code?: unknown }, message: string): void =>
    void logged.push(`${typeof code === 'string' ? code : 'INFO'}: ${message.replaceAll(String(port), 'PORT')}`)
  const broker = new ExternalBroker({
    ...{ url: `${scheme}://127.0.0.1:${port}`, username: 'twin', password: 's3cret', ca: null, clientId: 'twin' },
    ...{ onConnect: () => undefined, onPresence: () => undefined, fraction: () => 0, log: { info: say, warn: say } },
  })
  const close = async (): Promise<void> => {
    await broker.close()
    server.close()
  }
  return { logged, attempts: () => attempts, close }
}

test.each([
  ['after CONNECT', (socket: Socket) => void socket.end()],
  ['after CONNACK', (socket: Socket) => void socket.end(CONNACK)],
])('a broker that closes %s is reported once, and tried again', async (_, answer) => {
  const { logged, attempts, close } = await open('mqtt', answer)
  await expect.poll(attempts, { timeout: 10_000 }).toBeGreaterThan(3)
  await close()
  expect(logged).toEqual([
    'BROKER_UNREACHABLE: The broker mqtt://127.0.0.1:PORT cannot be reached: the broker closed the connection without a reason; the port may be one for TLS, as in mqtts://127.0.0.1:PORT.',
  ])
})

test('a proxy that answers a WebSocket with 502 is reported', async () => {
  const { logged, close } = await open(
    'ws',
    (socket) => void socket.end('HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n'),
  )
  await expect
    .poll(() => logged)
    .toEqual([expect.stringMatching(/^BROKER_UNREACHABLE: .*: Unexpected server response: 502\.$/)])
  await close()
})

test('a broker that denies the subscription is reported, and its connection kept', async () => {
  const { logged, attempts, close } = await open('mqtt', (socket, packet) => {
    if (packet[0] === SUBSCRIBE) socket.write(Buffer.from([0x90, 4, packet[2]!, packet[3]!, 0, 0x87]))
    else if (packet[0] === 0x10) socket.write(CONNACK)
  })
  await expect
    .poll(() => logged)
    .toEqual(['INFO: connected to the push broker', expect.stringMatching(/^BROKER_REFUSED: .* denies the topics /)])
  expect(attempts()).toBe(1)
  await close()
})

test('a broker that does not close its side of the connection is left at the stop', async () => {
  let connection: Socket | undefined
  const { logged, close } = await open('mqtt', (socket, packet) => {
    connection = socket
    if (packet[0] === SUBSCRIBE) socket.write(Buffer.from([0x90, 4, packet[2]!, packet[3]!, 0, 1]))
    else if (packet[0] === 0x10) socket.write(CONNACK)
  })
  await expect.poll(() => logged).toEqual(['INFO: connected to the push broker'])
  await close()
  const isReset = (): boolean | undefined => {
    connection?.write('more')
    return connection?.destroyed
  }
  await expect.poll(isReset).toBe(true)
})
