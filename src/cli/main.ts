/**
 * The process of the command: hands the real world to the program and its exit code to the caller. A reader that has
 * gone away (`tallygate ... | head`) ends it quietly; the first signal asks it to stop, the second ends it at once. A service takes SIGHUP as the wish to read its settings again.
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

const stop = new AbortController()
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
    if (stop.signal.aborted) process.exit(BY_SIGNAL + number)
    stop.abort()
  })
}

process.exitCode = await run(process.argv.slice(2), {
  stdout: process.stdout,
  stderr: process.stderr,
  env: process.env,
  now: () => Date.now(),
  readText: (path) => readFileSync(path, 'utf8'),
  stop: stop.signal,
  onHangup: (listener) => {
    hangup = listener
  },
})
