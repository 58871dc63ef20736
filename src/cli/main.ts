/**
 * The process of the command: hands the real world to the program and its exit code to the caller. A reader that has
 * gone away (`tallygate ... | head`) ends it quietly, and so does a signal. A command that has something to bring to an end
 * is asked by the first signal and ended by the second. A service takes SIGHUP as the wish to read its settings again.
 */
import { readFileSync } from 'node:fs'
import { run } from './program.ts'

/** As a shell reports a process that a signal ended: SIGPIPE is 13. */
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
