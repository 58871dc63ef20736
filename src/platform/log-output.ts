import { type DestinationStream, type Logger, pino } from 'pino'
import { CodedError, causeText } from '../protocol/errors.ts'

/** Of lines that wait. Later lines are dropped. */
const WAITING_BYTES_MAX = 1024 * 1024

/** For log lines. They wait while they cannot be written, for example to a file on a full disk: the service continues. */
export function logOutput(fd = 1): ReturnType<typeof pino.destination> {
  // Asynchronous: a reader that stalls must not stop the service.
  const output = pino.destination({ dest: fd, sync: false, maxLength: WAITING_BYTES_MAX })
  let isFailing = false
  output.on('error', () => (isFailing = true))
  output.on('write', () => (isFailing = false))
  const flushSync = output.flushSync.bind(output)
  // At the exit of the process. It repeats a write that fails until it succeeds.
  output.flushSync = () => {
    if (!isFailing) flushSync()
  }
  return output
}

export function createLog(level: string, output: DestinationStream): Logger {
  const err = (error: unknown): unknown => errorFields(error, log.isLevelEnabled('debug'))
  const log: Logger = pino({ level, base: null, serializers: { err } }, output)
  return log
}

/** A failure with a code has a known reason, which its message names: it has a stack only while an engineer looks for more. */
function errorFields(error: unknown, isDebugging: boolean): unknown {
  if (!(error instanceof CodedError) || error.code === 'INTERNAL') {
    return error instanceof Error ? pino.stdSerializers.err(error) : error
  }
  const { code, message, details, cause, stack } = error
  return {
    ...{ type: error.name, code, message, cause: causeText(error) },
    details: Object.keys(details).length === 0 ? undefined : details,
    stack: !isDebugging ? undefined : cause instanceof Error ? `${stack}\ncaused by: ${cause.stack}` : stack,
  }
}
