// Probes of real sockets that answer, hang, refuse or do not exist.
import { type AddressInfo, createServer } from 'node:net'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { probeSocket } from '../../../../src/agent/platform/socket/probe.ts'
import { listeningSocket } from '../../../support/unix-sockets.ts'
import { temporaryDirectory } from '../../harness.ts'

async function socketThatSends(answers: string | null): Promise<string> {
  const path = join(temporaryDirectory(), 'agent.sock')
  const server = createServer((socket) => {
    socket.on('error', () => undefined)
    if (answers === null) socket.destroy()
    else socket.once('data', () => socket.end(answers))
  })
  onTestFinished(() => void server.close())
  await new Promise<void>((resolve) => void server.listen(path, resolve))
  return path
}

describe('a probe', () => {
  it('succeeds if the server responds with 200', async () => {
    expect(await probeSocket(await socketThatSends('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'), 5_000)).toBe(true)
  })

  it('fails if the server refuses, is missing or does not respond', async () => {
    expect(await probeSocket(await socketThatSends('HTTP/1.1 500 Oops\r\n\r\n'), 5_000)).toBe(false)
    expect(await probeSocket(join(temporaryDirectory(), 'agent.sock'), 5_000)).toBe(false)
    const path = join(temporaryDirectory(), 'agent.sock')
    listeningSocket(path)
    expect(await probeSocket(path, 20)).toBe(false)
  })

  it('takes a number for the name of a file, not for a port', async () => {
    const server = createServer((socket) => void socket.end('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'))
    onTestFinished(() => void server.close())
    await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as AddressInfo
    expect(await probeSocket(String(port), 5_000)).toBe(false)
  })

  it('finds an agent that refuses further connections', async () => {
    expect(await probeSocket(await socketThatSends(null), 5_000)).toBe(true)
  })
})
