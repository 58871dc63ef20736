import { once } from 'node:events'
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text as readAll } from 'node:stream/consumers'
import { expect, it, onTestFinished } from 'vitest'
import { z } from 'zod'
import { HttpClient } from '../../src/client/http.ts'
import { reportLongStart } from '../../src/cli/service-manager/long-start.ts'
import { listeningPath } from '../../src/cli/service-manager/unix-calls.ts'
import { datagramSocket, listeningSocket } from '../support/unix-sockets.ts'

const GIB = 2 ** 30

function places(): { readonly socketPath: string; readonly notifyPath: string } {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-long-start-'))
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }))
  return { socketPath: join(directory, 'agent.sock'), notifyPath: join(directory, 'notify') }
}

async function ask(path: string): Promise<unknown> {
  using client = new HttpClient({ address: `unix:${path}`, unreachable: 'AGENT_UNREACHABLE' })
  return await client.json({ method: 'GET', path: '/livez' }, z.unknown()).catch((error: unknown) => error)
}

const STARTING = {
  code: 'AGENT_STARTING',
  message: expect.stringMatching(
    /^The agent starts: it is checking its ledger of 2\.0 GiB, [\d.]+ [KM]?i?B read\.$/,
  ) as unknown,
}

it('answers callers at the socket of the service manager, and leaves it listening', async () => {
  const { socketPath, notifyPath } = places()
  const fd = listeningSocket(socketPath)
  const end = reportLongStart(
    { ledgerBytes: 2 * GIB, socketPath: '/nowhere', mode: 0o660, connectionsMax: 2 },
    { notifyPath, passedSocket: { fd, path: socketPath } },
    0,
  )
  expect(await ask(socketPath)).toMatchObject(STARTING)
  // The clients take no response without a length.
  using client = new HttpClient({ address: `unix:${socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  const { headers } = await client.call({ method: 'GET', path: '/livez' })
  expect(Number(headers['content-length'])).toBeGreaterThan(0)
  for (const more of ['', 'Host: x\r\nExpect: more\r\n']) {
    const socket = connect(socketPath)
    socket.end(`GET /livez HTTP/1.1\r\n${more}\r\n`)
    expect(await readAll(socket)).toMatch(/^HTTP\/1\.1 503 .*"code":"AGENT_STARTING"/s)
  }
  await end()
  expect(listeningPath(fd)).toBe(socketPath)
})

it('answers callers at a path that exists until the agent opens its own socket', async () => {
  const { socketPath } = places()
  const end = reportLongStart(
    { ledgerBytes: 2 * GIB, socketPath, mode: 0o660, connectionsMax: 2 },
    { notifyPath: null, passedSocket: null },
    0,
  )
  await expect.poll(() => existsSync(socketPath), { timeout: 10_000 }).toBe(true)
  expect(await ask(socketPath)).toMatchObject(STARTING)
  await end()
  expect(existsSync(socketPath)).toBe(false)
})

/** The thread is blocked, as by the check, until a datagram arrives. */
function firstAfter(work: () => void, received: () => readonly string[]): readonly string[] {
  for (;;) {
    work()
    const sent = received()
    if (sent.length > 0) return sent
    Atomics.wait(new Int32Array(new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT)), 0, 0, 1)
  }
}

const PROGRESS = /^STATUS=The agent starts: it is checking its ledger of 2\.0 GiB, [\d.]+ [KM]?i?B read\.$/

it('asks the service manager for more time while the check reads', async () => {
  const { socketPath, notifyPath } = places()
  const received = datagramSocket(notifyPath)
  const start = { ledgerBytes: 2 * GIB, socketPath, mode: 0o660, connectionsMax: 2 }
  const end = reportLongStart(start, { notifyPath, passedSocket: null }, 100)
  const sent = firstAfter(() => readFileSync(import.meta.filename), received)
  expect(sent).toEqual([
    expect.stringMatching(/^EXTEND_TIMEOUT_USEC=60000000\nSTATUS=The agent starts: it is checking/),
  ])
  await end()
  expect(received()).toEqual(['STATUS=The agent starts.'])
})

it('asks the service manager for more time while a salvage only writes', async () => {
  const { socketPath, notifyPath } = places()
  const received = datagramSocket(notifyPath)
  const start = { ledgerBytes: 2 * GIB, socketPath, mode: 0o660, connectionsMax: 2 }
  const draft = openSync(`${socketPath}.draft`, 'w')
  onTestFinished(() => closeSync(draft))
  const end = reportLongStart(start, { notifyPath, passedSocket: null }, 100)
  const sent = firstAfter(() => writeSync(draft, 'an entry'), received)
  expect(sent).toEqual([
    expect.stringMatching(/^EXTEND_TIMEOUT_USEC=60000000\nSTATUS=The agent starts: it is checking/),
  ])
  await end()
})

it('asks for no more time while the check reads and writes nothing', async () => {
  const { socketPath, notifyPath } = places()
  const received = datagramSocket(notifyPath)
  const start = { ledgerBytes: 2 * GIB, socketPath, mode: 0o660, connectionsMax: 2 }
  const end = reportLongStart(start, { notifyPath, passedSocket: null }, 100)
  expect(firstAfter(() => undefined, received)).toEqual([expect.stringMatching(PROGRESS)])
  await end()
})

it('has the connections of the agent at most', async () => {
  const { socketPath } = places()
  const start = { ledgerBytes: 2 * GIB, socketPath, mode: 0o660, connectionsMax: 2 }
  const end = reportLongStart(start, { notifyPath: null, passedSocket: null }, 0)
  await expect.poll(() => existsSync(socketPath), { timeout: 10_000 }).toBe(true)
  const idle = [connect(socketPath), connect(socketPath)]
  await Promise.all(idle.map((socket) => once(socket, 'connect')))
  expect(await ask(socketPath)).toMatchObject({ code: 'AGENT_UNREACHABLE' })
  for (const socket of idle) socket.destroy()
  await expect.poll(() => ask(socketPath)).toMatchObject(STARTING)
  await end()
})

it('leaves a start that is soon over alone', async () => {
  const { socketPath, notifyPath } = places()
  const received = datagramSocket(notifyPath)
  await reportLongStart(
    { ledgerBytes: 2 * GIB, socketPath, mode: 0o660, connectionsMax: 2 },
    { notifyPath, passedSocket: null },
  )()
  expect(received()).toEqual([])
  expect(existsSync(socketPath)).toBe(false)
})

it('does not end a start that can have no worker', async () => {
  const { socketPath, notifyPath } = places()
  const received = datagramSocket(notifyPath)
  // No thread can take a function, which fails like the creation of one too many.
  const start = { ledgerBytes: 2 * GIB, socketPath, mode: 0o660, connectionsMax: 2, other: () => undefined }
  await reportLongStart(start, { notifyPath, passedSocket: null }, 0)()
  expect(received()).toEqual([])
})
