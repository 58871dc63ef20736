import { pino } from 'pino'

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
