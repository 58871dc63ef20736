import { pino } from 'pino'

/** Of lines that wait. Later lines are dropped. */
const WAITING_BYTES_MAX = 1024 * 1024

/** For log lines. They wait while they cannot be written, for example to a file on a full disk: the service continues. */
export function logOutput(fd = 1): ReturnType<typeof pino.destination> {
  const output = pino.destination({ dest: fd, sync: true, maxLength: WAITING_BYTES_MAX })
  output.on('error', () => undefined)
  return output
}
