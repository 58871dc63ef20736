/**
 * The network between device and cloud, as a TCP proxy that can be cut, slow, or lose what comes back. Cut means cut:
 * connections that stand are destroyed, and nobody listens, so that a device sees what it sees when the cable is out.
 */
import { createServer, connect, type Server, type Socket } from 'node:net'
import type { AddressInfo } from 'node:net'
import { Transform } from 'node:stream'

/** `one way`: what the target answers never arrives, and the connection breaks in its place. */
export type Behaviour = 'well' | 'slowly' | 'one way'

/** Each way, ms. */
const SLOW_MS = 300

export interface Proxy {
  readonly port: number
  /** Where connections lead from now on. */
  lead(targetPort: number): void
  cut(): Promise<void>
  /** Listens on the same port again. */
  restore(): Promise<void>
  close(): Promise<void>
  /** How it carries from now on, connections that stand included. */
  behave(how: Behaviour): void
  /** Bytes carried in both directions. */
  readonly carried: number
}

const LOOPBACK = '127.0.0.1'

export async function startProxy(): Promise<Proxy> {
  const open = new Set<Socket>()
  let target: number | undefined
  let carried = 0
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
      one.on('data', (chunk: Buffer) => (carried += chunk.length))
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
    const server = createServer(pair)
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.listen(port, LOOPBACK, resolve)
    })
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
    get carried() {
      return carried
    },
  }
}

/** Passes on what it gets, after as many ms as it is told at that moment, or breaks instead. */
function carrier(how: () => number | 'lose'): Transform {
  return new Transform({
    transform(chunk: Buffer, _encoding, done) {
      const delay = how()
      if (delay === 'lose') done(new Error('the answer is lost'))
      else if (delay === 0) done(null, chunk)
      else setTimeout(() => done(null, chunk), delay)
    },
  })
}
