/** Shows progress: a bar on a terminal, plain lines elsewhere, nothing for programs. */
import { grouped } from '../core/accounts/in-words.ts'

export interface Presenter {
  step(text: string): void
  progress(done: number, total: number, note: string): void
  lines(lines: readonly string[]): void
}

interface Out {
  readonly isTTY?: boolean
  readonly columns?: number
  write(text: string): unknown
}

export function presenterFor(out: Out): Presenter {
  return out.isTTY === true ? onTerminal(out) : plain(out)
}

export const silent: Presenter = { step: () => undefined, progress: () => undefined, lines: () => undefined }

const BAR = 24
const ERASE_LINE = '\r\u001b[K'

function onTerminal(out: Out): Presenter {
  let shown = ''
  const show = (text: string): void => {
    const fitting = text.slice(0, (out.columns ?? 80) - 1)
    if (fitting !== shown) out.write(ERASE_LINE + fitting)
    shown = fitting
  }
  const above = (text: string): void => {
    const standing = shown
    show('')
    out.write(`${text}\n`)
    show(standing)
  }
  return {
    step: (text) => above(`✓ ${text}`),
    progress: (done, total, note) => {
      const filled = Math.floor((done / total) * BAR)
      const bar = '█'.repeat(filled) + '░'.repeat(BAR - filled)
      show(done === total ? '' : `${bar} ${grouped(done)} of ${grouped(total)}  ${note}`)
    },
    lines: (lines) => {
      show('')
      out.write(`${lines.join('\n')}\n`)
    },
  }
}

function plain(out: Out): Presenter {
  return {
    step: (text) => out.write(`${text}\n`),
    progress: () => undefined,
    lines: (lines) => out.write(`${lines.join('\n')}\n`),
  }
}
