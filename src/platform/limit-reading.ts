import type { Socket } from 'node:net'

/** Requests that may arrive at once. */
const HEADS_MAX = 64

/** The request line ends with the version, such as HTTP/1.1. No JSON text or form contains it before a line end. */
const VERSION = Buffer.from('HTTP/')
const LINE_END = Buffer.from('\r\n')
const VERSION_LENGTH = 'HTTP/1.1'.length

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
  let heads = 0
  for (let at = bytes.indexOf(VERSION); at >= 0; at = bytes.indexOf(VERSION, at + VERSION_LENGTH)) {
    const end = at + VERSION_LENGTH
    if (bytes.subarray(end, end + LINE_END.length).equals(LINE_END)) heads += 1
    if (heads > HEADS_MAX) return true
  }
  return false
}
