/** systemd's protocols: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3). Without systemd, calls are no-ops. */
import type { Supervisor } from '../../agent/compose.ts'
import { CodedError } from '../../protocol/errors.ts'
import { listeningPath, sendDatagram } from './unix-calls.ts'

type Environment = Readonly<Record<string, string | undefined>>

/** A listening Unix socket that the service manager opened and keeps after this process ends. */
export interface PassedSocket {
  readonly fd: number
  readonly path: string
}

export interface ServiceManager extends Supervisor {
  readonly passedSocket: PassedSocket | null
  /** Where it takes notifications; null: nowhere. */
  readonly notifyPath: string | null
}

/** The first descriptor after standard input, output and error. */
const FIRST_PASSED = 3

export function serviceManager(env: Environment, pid: number): ServiceManager {
  const path = env['NOTIFY_SOCKET'] ?? null
  const tell = (...lines: readonly string[]): void => {
    if (path !== null) sendDatagram(path, lines.join('\n'))
  }
  return {
    watchdogMs: watchdogOf(env, pid),
    passedSocket: passedSocketOf(env, pid),
    notifyPath: path,
    ready: () => tell('READY=1'),
    // A line break would start another assignment.
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
  // Variables for a parent process are inherited but not for us.
  if (env['LISTEN_PID'] !== String(pid)) return null
  const count = Number(env['LISTEN_FDS'] ?? '0')
  if (count === 0) return null
  const path = count === 1 ? listeningPath(FIRST_PASSED) : null
  if (path !== null) return { fd: FIRST_PASSED, path }
  throw new CodedError(
    'SOCKET_PASSED_UNUSABLE',
    count === 1
      ? 'The service manager passed something other than a listening Unix stream socket with a path.'
      : `The service manager passed ${env['LISTEN_FDS'] ?? ''} sockets; the agent accepts one.`,
  )
}
