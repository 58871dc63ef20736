/**
 * Knocks on the agent's own door as an application would: a connection, a request, an answer. It asks for nothing that is
 * counted or refused to anybody.
 */
import { connect } from 'node:net'

const REQUEST = 'GET /livez HTTP/1.1\r\nHost: device\r\nConnection: close\r\n\r\n'

/**
 * Whether somebody answers at the path within `limitMs`. A door that closes on us is one that somebody looks after: it has as many
 * visitors as it takes.
 */
export function knock(path: string, limitMs: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
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
