// What the process says to its service manager, over a real datagram socket, and what it understands of the environment.
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { serviceManager } from '../../src/cli/service-manager/service-manager.ts'
import { listeningPath, sendDatagram } from '../../src/cli/service-manager/unix-calls.ts'
import { datagramSocket, listeningSocket } from '../support/unix-sockets.ts'

const PID = 4711

function directory(): string {
  const made = mkdtempSync(join(tmpdir(), 'tallygate-manager-'))
  onTestFinished(() => rmSync(made, { recursive: true, force: true }))
  return made
}

describe('what is sent to the service manager', () => {
  it.each([
    ['a path', () => join(directory(), 'notify')],
    ['an abstract name', () => `@tallygate-${randomUUID()}`],
  ])('arrives at %s, one datagram each', (_kind, name) => {
    const path = name()
    const received = datagramSocket(path)
    const manager = serviceManager({ NOTIFY_SOCKET: path }, PID)
    manager.ready()
    manager.well('This device works.')
    manager.stopping()
    expect(received()).toEqual(['READY=1', 'WATCHDOG=1\nSTATUS=This device works.', 'STOPPING=1'])
  })

  it('cannot smuggle in another assignment with a sentence', () => {
    const path = join(directory(), 'notify')
    const received = datagramSocket(path)
    serviceManager({ NOTIFY_SOCKET: path }, PID).well('well\nMAINPID=1')
    expect(received()).toEqual(['WATCHDOG=1\nSTATUS=well MAINPID=1'])
  })

  it('is lost without harm if no service manager listens', () => {
    const path = join(directory(), 'gone')
    expect(sendDatagram(path, 'READY=1')).toBe(false)
    expect(sendDatagram(`/${'x'.repeat(200)}`, 'READY=1')).toBe(false)
    expect(() => serviceManager({ NOTIFY_SOCKET: path }, PID).ready()).not.toThrow()
    expect(() => serviceManager({}, PID).ready()).not.toThrow()
  })
})

describe('what the service manager has sent', () => {
  it.each([
    [{}, null],
    [{ WATCHDOG_USEC: '30000000' }, 30_000],
    [{ WATCHDOG_USEC: '30000000', WATCHDOG_PID: '4711' }, 30_000],
    [{ WATCHDOG_USEC: '30000000', WATCHDOG_PID: '1' }, null],
    [{ WATCHDOG_USEC: 'soon' }, null],
  ])('says when it must hear something: %j', (env, ms) => {
    expect(serviceManager(env, PID).watchdogMs).toBe(ms)
  })

  it.each([{}, { LISTEN_FDS: '1' }, { LISTEN_FDS: '1', LISTEN_PID: '1' }, { LISTEN_FDS: '0', LISTEN_PID: '4711' }])(
    'passes no socket where none is meant for this process: %j',
    (env) => {
      expect(serviceManager(env, PID).passedSocket).toBeNull()
    },
  )

  it('passes one socket and no more', () => {
    expect(() => serviceManager({ LISTEN_FDS: '2', LISTEN_PID: '4711' }, PID)).toThrow(
      expect.objectContaining({ code: 'SOCKET_PASSED_UNUSABLE' }),
    )
  })
})

describe('a descriptor', () => {
  it('of a listening Unix socket has its path, and anything else has none', () => {
    const path = join(directory(), 'agent.sock')
    expect(listeningPath(listeningSocket(path))).toBe(path)
    expect(listeningPath(0)).toBeNull()
    expect(listeningPath(9_999)).toBeNull()
  })
})
