/**
 * What a service manager that speaks systemd's protocols has told this process by its environment, and what it wants to
 * hear from it (sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3)). Outside of one there is nothing to tell and nobody
 * listens: every call is a no-op then. A manager that has gone away keeps nobody from working.
 */
import { CodedError } from '../../protocol/errors.ts'
import { listeningPath, sendDatagram } from './unix-calls.ts'

type Environment = Readonly<Record<string, string | undefined>>

/** A Unix socket that somebody else has opened, listens on, and keeps when this process ends. */
export interface PassedSocket {
  readonly fd: number
  readonly path: string
}

export interface ServiceManager {
  /** Within which it must hear that the service is well, ms; null: it does not ask. */
  readonly watchdogMs: number | null
  readonly passedSocket: PassedSocket | null
  /** The service has begun to serve. */
  ready(): void
  /** The service is well; the sentence is for a person who asks how it is. */
  well(sentence: string): void
  /** The service has begun to end. */
  stopping(): void
}

/** The first descriptor after standard input, output and error. */
const FIRST_PASSED = 3

/** @throws CodedError SOCKET_PASSED_UNUSABLE */
export function serviceManager(env: Environment, pid: number): ServiceManager {
  const path = env['NOTIFY_SOCKET']
  const tell = (...lines: readonly string[]): void => {
    if (path !== undefined) sendDatagram(path, lines.join('\n'))
  }
  return {
    watchdogMs: watchdogOf(env, pid),
    passedSocket: passedSocketOf(env, pid),
    ready: () => tell('READY=1'),
    // A line break would begin another assignment.
    well: (sentence) => tell('WATCHDOG=1', `STATUS=${sentence.replaceAll(/\s+/g, ' ')}`),
    stopping: () => tell('STOPPING=1'),
  }
}

function watchdogOf(env: Environment, pid: number): number | null {
  const microseconds = Number(env['WATCHDOG_USEC'] ?? '0')
  const isMeant = env['WATCHDOG_PID'] === undefined || env['WATCHDOG_PID'] === String(pid)
  return isMeant && microseconds > 0 ? microseconds / 1_000 : null
}

function passedSocketOf(env: Environment, pid: number): PassedSocket | null {
  // What was meant for a parent is not meant for us, although it is inherited.
  if (env['LISTEN_PID'] !== String(pid)) return null
  const count = Number(env['LISTEN_FDS'] ?? '0')
  if (count === 0) return null
  const path = count === 1 ? listeningPath(FIRST_PASSED) : null
  if (path !== null) return { fd: FIRST_PASSED, path }
  throw new CodedError(
    'SOCKET_PASSED_UNUSABLE',
    count === 1
      ? 'What the service manager passes is no Unix stream socket with a path that listens.'
      : `The service manager passes ${env['LISTEN_FDS'] ?? ''} sockets; the agent takes one.`,
  )
}
