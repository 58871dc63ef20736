/** Runs the command in the real process. A command that cleans up gets the first signal; the second one kills it. */
import { closeSync, openSync, statSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { TEXT_BYTES_MAX, readBounded, readSmallFile } from '../platform/read-file.ts'
import { ERRORS } from '../protocol/errors.ts'
import { STANDARD_INPUT } from './arguments.ts'
import { run } from './program.ts'

/** Shell convention for processes that end by a signal: 128 + signal number. SIGPIPE is 13. */
const BY_SIGNAL = 128

for (const stream of [process.stdout, process.stderr]) {
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(BY_SIGNAL + 13)
    const { exit, remedy } = ERRORS.OUTPUT_UNWRITABLE
    const message = `Cannot write the output: ${error.message}. The command may have taken effect: if it is repeated, an access request is charged again.`
    if (stream === process.stdout) process.stderr.write(`tallygate: OUTPUT_UNWRITABLE: ${message} ${remedy}\n`)
    process.exit(exit)
  })
}

let stop: AbortController | null = null
let hangup: (() => void) | null = null
const onSignal = (signal: NodeJS.Signals, number: number): void => {
  if (signal === 'SIGHUP' && hangup !== null) {
    hangup()
    return
  }
  if (stop === null || stop.signal.aborted) process.exit(BY_SIGNAL + number)
  stop.abort()
}
const SIGNALS = ['SIGHUP', 'SIGINT', 'SIGTERM'] as const
const listen = (): void => SIGNALS.forEach((signal) => process.on(signal, onSignal))
listen()

/** Refuses bytes that are not UTF-8: they would become U+FFFD, and different names would become the same. */
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

function readUtf8(path: string | 0): string {
  const file = path === 0 ? path : openSync(path, 'r')
  try {
    return utf8.decode(readBounded(file, TEXT_BYTES_MAX))
  } finally {
    if (file !== 0) closeSync(file)
  }
}

/** Of a terminal, pipe or socket, which may never end: listeners could not run meanwhile, so signals end the process. */
function readStream(path: string): string {
  // As a socket, for example over SSH, standard input cannot be opened by its path.
  const isSocket = path === STANDARD_INPUT && statSync(path).isSocket()
  SIGNALS.forEach((signal) => process.off(signal, onSignal))
  try {
    return readUtf8(isSocket ? 0 : path)
  } finally {
    listen()
  }
}

/** Without line editing, so that Ctrl-C stays a signal. The end of the input is an empty answer. */
function answerTo(question: string): Promise<string> {
  const lines = createInterface({ input: process.stdin, terminal: false })
  process.stderr.write(question)
  return new Promise((resolve) => {
    lines.once('line', (line) => {
      resolve(line)
      lines.close()
    })
    lines.once('close', () => resolve(''))
  })
}

process.exitCode = await run(process.argv.slice(2), {
  stdout: process.stdout,
  stderr: process.stderr,
  env: process.env,
  now: () => Date.now(),
  readText: (path, allowed) => {
    if (allowed === 'FILES') return utf8.decode(readSmallFile(path))
    return statSync(path).isFile() ? readUtf8(path) : readStream(path)
  },
  ask: (question) => (process.stdin.isTTY && process.stderr.isTTY ? answerTo(question) : null),
  stop: () => (stop ??= new AbortController()).signal,
  onHangup: (listener) => {
    hangup = listener
  },
})
