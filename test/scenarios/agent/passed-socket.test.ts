// A socket that outlives the agent: the process is given one by its service manager, and one process after the other serves
// it while applications go on asking.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, openSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { datagramSocket, listeningSocket } from '../../support/unix-sockets.ts'
import { accessBody, journalIn, temporaryDirectory } from '../../agent/harness.ts'
import { INSTANCE } from '../../agent/sync/fake-cloud.ts'
import { Site } from './site.ts'
import { COMMAND } from '../../support/command.ts'

const PATH = `/v1.0/instances/${INSTANCE}/access-request`

/** As a service manager starts it: the descriptor is number 3, and the environment names the process. */
function startWith(site: Site, fd: number, env: Record<string, string>): ChildProcess {
  const flags = ['--state-directory', site.stateDirectory, '--log-level', 'error']
  const command = 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@"'
  const child = spawn('/bin/sh', ['-c', command, process.execPath, COMMAND, 'agent', ...flags], {
    stdio: ['ignore', 'ignore', 'inherit', fd],
    env: { ...process.env, ...env },
  })
  onTestFinished(() => void child.kill('SIGKILL'))
  return child
}

/** A call of an application that is not prepared for any failure. Each has a connection of its own. */
function call(socketPath: string): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    const headers = { 'content-type': 'application/json' }
    const asked = request({ socketPath, method: 'POST', path: PATH, headers, agent: false }, (response) => {
      response.resume().once('end', () => resolve(response.statusCode))
    })
    asked.once('error', reject)
    asked.end(JSON.stringify(accessBody(1)))
  })
}

describe('an agent that is passed its socket', () => {
  it('is followed by another one without a call that fails', async () => {
    const site = await Site.offline()
    const path = join(temporaryDirectory(), 'passed.sock')
    const fd = listeningSocket(path)
    let answered = 0
    let isOver = false
    // They begin before anybody serves.
    const callers = Array.from({ length: 4 }, async () => {
      for (; !isOver; answered += 1) expect(await call(path)).toBe(200)
    })
    const failed = Promise.all(callers)
    for (let run = 0; run < 3; run += 1) {
      const before = answered
      const child = startWith(site, fd, {})
      await Promise.race([failed, expect.poll(() => answered, { timeout: 20_000 }).toBeGreaterThan(before + 100)])
      child.kill('SIGTERM')
      expect(await once(child, 'exit')).toEqual([0, null])
      expect(existsSync(path)).toBe(true)
    }
    const last = startWith(site, fd, {})
    isOver = true
    await failed
    last.kill('SIGTERM')
    await once(last, 'exit')
    expect((await (await journalIn(site.stateDirectory)).read()).lastEntry).toBe(answered)
  }, 90_000)

  it('tells its service manager that it is ready, well, and about to end', async () => {
    const site = await Site.offline()
    const path = join(temporaryDirectory(), 'passed.sock')
    const notify = join(temporaryDirectory(), 'notify')
    const received = datagramSocket(notify)
    const heard: string[] = []
    const hears = (text: string) =>
      expect
        .poll(
          () => {
            heard.push(...received())
            return heard
          },
          { timeout: 20_000 },
        )
        .toContainEqual(expect.stringContaining(text))
    const child = startWith(site, listeningSocket(path), { NOTIFY_SOCKET: notify, WATCHDOG_USEC: '600000' })
    await hears('READY=1')
    expect(await call(path)).toBe(200)
    await hears('WATCHDOG=1\nSTATUS=This device is offline')
    child.kill('SIGSTOP')
    // What is in the queue was sent before.
    received()
    const ended = once(child, 'exit')
    child.kill('SIGTERM')
    child.kill('SIGCONT')
    await hears('STOPPING=1')
    expect(await ended).toEqual([0, null])
  }, 60_000)

  it('does not start with an invalid one', async () => {
    const site = await Site.make()
    const child = startWith(site, openSync('/dev/null', 'r'), {})
    expect(await once(child, 'exit')).toEqual([78, null])
  })
})
