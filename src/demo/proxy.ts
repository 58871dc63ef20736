/** TCP proxy between device and cloud that can be cut, slow or lossy. */
import { once } from 'node:events'
import { type AddressInfo, createServer, connect, type Server, type Socket } from 'node:net'
import { Transform } from 'node:stream'

/** `one way`: responses are lost and the connection breaks instead. */
export type Behaviour = 'well' | 'slowly' | 'one way'

const SLOW_MS = 300

export interface Proxy {
  readonly port: number
  lead(targetPort: number): void
  cut(): Promise<void>
  restore(): Promise<void>
  close(): Promise<void>
  behave(how: Behaviour): void
}

const LOOPBACK = '127.0.0.1'

export async function startProxy(): Promise<Proxy> {
  const open = new Set<Socket>()
  let target: number | undefined
  let behaviour: Behaviour = 'well'

  const pair = (from: Socket): void => {
    if (target === undefined) {
      from.destroy()
      return
    }
    const to = connect(target, LOOPBACK)
    for (const [one, other] of [
      [from, to],
      [to, from],
    ] as const) {
      open.add(one)
      one.setNoDelay(true)
      one.on('error', () => other.destroy())
      one.on('close', () => {
        open.delete(one)
        other.destroy()
      })
      const carry = carrier(() =>
        behaviour === 'one way' && one === to ? 'lose' : behaviour === 'slowly' ? SLOW_MS : 0,
      )
      carry.on('error', () => one.destroy())
      one.pipe(carry).pipe(other)
    }
  }

  const listen = async (port: number): Promise<Server> => {
    const server = createServer(pair).listen(port, LOOPBACK)
    await once(server, 'listening')
    return server
  }

  let server: Server | undefined = await listen(0)
  const { port } = server.address() as AddressInfo

  const cut = async (): Promise<void> => {
    const standing = server
    server = undefined
    const closed = standing === undefined ? undefined : new Promise((resolve) => standing.close(resolve))
    for (const socket of open) socket.destroy()
    await closed
  }

  return {
    port,
    lead: (targetPort) => (target = targetPort),
    cut,
    restore: async () => {
      server ??= await listen(port)
    },
    close: cut,
    behave: (how) => (behaviour = how),
  }
}

function carrier(how: () => number | 'lose'): Transform {
  return new Transform({
    transform(chunk: Buffer, _encoding, done) {
      const delay = how()
      if (delay === 'lose') done(new Error('the response is lost'))
      else if (delay === 0) done(null, chunk)
      else setTimeout(() => done(null, chunk), delay)
    },
  })
}
