import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
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
  message: expect.stringMatching(/^The agent starts: it is checking its ledger of 2\.0 GiB, \d+ % done\.$/) as unknown,
}

it('answers callers at the socket of the service manager, and leaves it listening', async () => {
  const { socketPath, notifyPath } = places()
  const fd = listeningSocket(socketPath)
  const end = reportLongStart(
    { ledgerBytes: 2 * GIB, socketPath: '/nowhere', mode: 0o660 },
    { notifyPath, passedSocket: { fd, path: socketPath } },
    0,
  )
  expect(await ask(socketPath)).toMatchObject(STARTING)
  // The clients take no response without a length.
  using client = new HttpClient({ address: `unix:${socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  const { headers } = await client.call({ method: 'GET', path: '/livez' })
  expect(Number(headers['content-length'])).toBeGreaterThan(0)
  await end()
  expect(listeningPath(fd)).toBe(socketPath)
})

it('answers callers at a path that exists until the agent opens its own socket', async () => {
  const { socketPath } = places()
  const end = reportLongStart(
    { ledgerBytes: 2 * GIB, socketPath, mode: 0o660 },
    { notifyPath: null, passedSocket: null },
    0,
  )
  await expect.poll(() => existsSync(socketPath), { timeout: 10_000 }).toBe(true)
  expect(await ask(socketPath)).toMatchObject(STARTING)
  await end()
  expect(existsSync(socketPath)).toBe(false)
})

it('asks the service manager for more time while the check reads', async () => {
  const { socketPath, notifyPath } = places()
  const received = datagramSocket(notifyPath)
  const end = reportLongStart({ ledgerBytes: 2 * GIB, socketPath, mode: 0o660 }, { notifyPath, passedSocket: null }, 0)
  let sent: readonly string[] = []
  await expect.poll(() => (sent = [...sent, ...received()]).length, { timeout: 10_000 }).toBeGreaterThan(0)
  await end()
  expect([...sent, ...received()]).toEqual([
    expect.stringMatching(
      /^EXTEND_TIMEOUT_USEC=60000000\nSTATUS=The agent starts: it is checking its ledger of 2\.0 GiB/,
    ),
    'STATUS=The agent starts.',
  ])
})

it('leaves a start that is soon over alone', async () => {
  const { socketPath, notifyPath } = places()
  const received = datagramSocket(notifyPath)
  await reportLongStart({ ledgerBytes: 2 * GIB, socketPath, mode: 0o660 }, { notifyPath, passedSocket: null })()
  expect(received()).toEqual([])
  expect(existsSync(socketPath)).toBe(false)
})
