import type { Socket } from 'node:net'

/** Empty lines in what has arrived at once. Each request has one, and bodies have few. */
const HEAD_ENDS_MAX = 64

const HEAD_END = Buffer.from('\r\n\r\n')

/**
 * Drops what a connection sends when far too many requests arrive at once: Node would make all of them before it serves
 * other connections. Call when Node's server has it.
 * @param onMany called once
 */
export function limitReading(socket: Socket, onMany: () => void): void {
  const [parse] = socket.listeners('data') as ((this: Socket, bytes: Buffer) => void)[]
  if (parse === undefined) throw new Error('invariant: the server reads its connections')
  let isRead = true
  socket.off('data', parse).on('data', (bytes: Buffer) => {
    if (!isRead) return
    isRead = !hasManyHeads(bytes)
    if (isRead) parse.call(socket, bytes)
    else onMany()
  })
}

function hasManyHeads(bytes: Buffer): boolean {
  let at = -HEAD_END.length
  for (let count = 0; count <= HEAD_ENDS_MAX; count += 1) {
    at = bytes.indexOf(HEAD_END, at + HEAD_END.length)
    if (at < 0) return false
  }
  return true
}
