/**
 * Runs the command in the real process. A closed output (`tallygate ... | head`) ends it without an error message. A
 * command that cleans up gets the first signal and is killed by the second. Services reload their settings on SIGHUP.
 */
import { readFileSync } from 'node:fs'
import { run } from './program.ts'

/** Shell convention for processes that end by a signal: 128 + signal number. SIGPIPE is 13. */
const BY_SIGNAL = 128

for (const stream of [process.stdout, process.stderr]) {
  stream.on('error', (error: NodeJS.ErrnoException) => {
    process.exit(error.code === 'EPIPE' ? BY_SIGNAL + 13 : 74)
  })
}

let stop: AbortController | null = null
let hangup: (() => void) | null = null
for (const [signal, number] of [
  ['SIGHUP', 1],
  ['SIGINT', 2],
  ['SIGTERM', 15],
] as const) {
  process.on(signal, () => {
    if (signal === 'SIGHUP' && hangup !== null) {
      hangup()
      return
    }
    if (stop === null || stop.signal.aborted) process.exit(BY_SIGNAL + number)
    stop.abort()
  })
}

process.exitCode = await run(process.argv.slice(2), {
  stdout: process.stdout,
  stderr: process.stderr,
  env: process.env,
  now: () => Date.now(),
  readText: (path) => readFileSync(path, 'utf8'),
  stop: () => (stop ??= new AbortController()).signal,
  onHangup: (listener) => {
    hangup = listener
  },
})
