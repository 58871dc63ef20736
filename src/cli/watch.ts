import { setTimeout as sleep } from 'node:timers/promises'
import { Option } from 'commander'
import { durationBetween } from './arguments.ts'
import type { Io } from './io.ts'
import { linesText, writeLines } from './lines.ts'

const CLEAR = '\u001B[H\u001B[2J'

export interface Seen {
  readonly page: readonly string[]
  readonly lines: readonly string[]
}

/** @param byDefault such as `2s` */
export function everyOption(byDefault: string): Option {
  const parse = durationBetween('1ms', '24h')
  return new Option('--every <time>', 'interval of --watch, which it implies')
    .argParser(parse)
    .default(parse(byDefault), byDefault)
    .implies({ watch: true })
}

/** Repeats until interrupted: redraws the page on a terminal, and writes lines that are new elsewhere. */
export async function watch(look: () => Promise<Seen>, everyMs: number, io: Io): Promise<void> {
  const signal = io.stop()
  const stopped = new Promise<null>((resolve) => signal.addEventListener('abort', () => resolve(null)))
  let last: ReadonlySet<string> = new Set()
  while (!signal.aborted) {
    // Do not wait for a service that hangs.
    const seen = await Promise.race([look(), stopped])
    if (seen === null) return
    const at = new Date(io.now()).toISOString()
    const fresh = seen.lines.filter((line) => !last.has(cellsOf(line)))
    if (io.stdout.isTTY === true) io.stdout.write(CLEAR + linesText([`${at}  (Ctrl-C to stop)`, '', ...seen.page]))
    else
      writeLines(
        io.stdout,
        fresh.map((line) => `${at}  ${line}`),
      )
    last = new Set(seen.lines.map(cellsOf))
    await sleep(everyMs, undefined, { signal }).catch(() => undefined)
  }
}

/** Without the width of the columns, which depends on other rows. */
function cellsOf(line: string): string {
  return line.replaceAll(/\s+/g, ' ')
}
