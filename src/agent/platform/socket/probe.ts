/** Probes the agent's own socket with an uncounted request that every caller may make. */
import { connect } from 'node:net'

const REQUEST = 'GET /livez HTTP/1.1\r\nHost: device\r\nConnection: close\r\n\r\n'

/** A connection closed without a response counts as alive: the agent closes connections above a limit. */
export function probeSocket(path: string, limitMs: number): Promise<boolean> {
  return new Promise((resolve) => {
    // Not `connect(path)`: Node takes a path that is a number for a port.
    const socket = connect({ path })
    let isIn = false
    let received = ''
    const end = (isAnswered: boolean): void => {
      clearTimeout(limit)
      socket.destroy()
      resolve(isAnswered)
    }
    const limit = setTimeout(() => end(false), limitMs)
    socket.setEncoding('latin1')
    socket.once('connect', () => {
      isIn = true
      socket.write(REQUEST)
    })
    socket.on('data', (chunk: string) => {
      received += chunk
    })
    socket.once('error', () => end(isIn))
    socket.once('close', () => end(received === '' ? isIn : received.startsWith('HTTP/1.1 200 ')))
  })
}
