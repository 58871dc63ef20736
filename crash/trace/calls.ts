/** Reads a log of strace as a sequence of moments: starts and ends of system calls of several threads. */
import { createReadStream } from 'node:fs'

export interface SystemCall {
  readonly thread: number
  /** Question marks: the thread was killed at its start, before strace read what it calls; it is not carried out. */
  readonly name: string
  /** As shown by strace; complete when the call has ended. */
  args: string
  readonly line: number
}

export type Moment =
  | { readonly kind: 'begin'; readonly call: SystemCall }
  /** `result` negative: failed. Null: the process ended before it returned. */
  | { readonly kind: 'end'; readonly call: SystemCall; readonly result: number | null; readonly line: number }

const HEAD = /^(\d+) +(?:([a-z_0-9]+|\?+)\(|<\.\.\. ([a-z_0-9]+|\?+) resumed>)/
const UNFINISHED = ' <unfinished ...>'

/** @throws Error for a line not written by strace */
export async function* moments(file: string): AsyncGenerator<Moment> {
  const open = new Map<number, SystemCall>()
  let line = 0
  for await (const text of lines(file)) {
    line += 1
    const head = HEAD.exec(text)
    if (head === null) {
      if (text === '' || /^\d+ +(\+\+\+|---)/.test(text)) continue
      throw new Error(`line ${line} of the trace is not understood: ${text.slice(0, 200)}`)
    }
    const thread = Number(head[1])
    const rest = text.slice(head[0].length)
    let call: SystemCall | undefined
    if (head[2] !== undefined) {
      call = { thread, name: head[2], args: '', line }
      if (rest.endsWith(UNFINISHED)) {
        call.args = rest.slice(0, -UNFINISHED.length)
        open.set(thread, call)
        yield { kind: 'begin', call }
        continue
      }
    } else {
      call = open.get(thread)
      open.delete(thread)
      if (call === undefined || call.name !== head[3])
        throw new Error(`line ${line} of the trace ends a call that has not begun`)
    }
    const end = rest.lastIndexOf(') = ')
    if (end < 0) throw new Error(`line ${line} of the trace has no result: ${rest.slice(-200)}`)
    const isWhole = call.args === '' && head[2] !== undefined
    call.args += rest.slice(0, end)
    if (isWhole) yield { kind: 'begin', call }
    const result = rest.slice(end + ') = '.length)
    yield { kind: 'end', call, result: result.startsWith('?') ? null : Number.parseInt(result, 10), line }
  }
}

async function* lines(file: string): AsyncGenerator<string> {
  let held: Buffer[] = []
  for await (const chunk of createReadStream(file, { highWaterMark: 1024 * 1024 }) as AsyncIterable<Buffer>) {
    let from = 0
    for (;;) {
      const end = chunk.indexOf(0x0a, from)
      if (end < 0) break
      const last = chunk.subarray(from, end)
      yield (held.length === 0 ? last : Buffer.concat([...held, last])).toString('latin1')
      held = []
      from = end + 1
    }
    if (from < chunk.length) held.push(chunk.subarray(from))
  }
  if (held.length > 0) yield Buffer.concat(held).toString('latin1')
}

const DESCRIPTOR = /^(\d+)(?:<(.*?)>)?(?:, |$)/

/** The file or socket of the first argument, as strace names it. */
export function targetOf({ args }: SystemCall): string {
  return DESCRIPTOR.exec(args)?.[2] ?? ''
}

const ESCAPES: Readonly<Record<string, number>> = { n: 10, r: 13, t: 9, v: 11, f: 12, '"': 34, '\\': 92 }

/** The bytes of the quoted text in `args` from `from`, and its end. @throws Error if it was cut off */
export function quotedBytes(args: string, from = args.indexOf('"')): { readonly bytes: Buffer; readonly end: number } {
  if (args[from] !== '"') throw new Error(`no text in the trace at ${from}: ${args.slice(0, 200)}`)
  const bytes = Buffer.allocUnsafe(args.length - from)
  let length = 0
  let at = from + 1
  for (;;) {
    const code = args.charCodeAt(at)
    if (code === 34) break
    if (Number.isNaN(code)) throw new Error('a text in the trace has no end')
    if (code !== 92) {
      bytes[length++] = code
      at += 1
      continue
    }
    const next = args.charCodeAt(at + 1)
    if (next >= 48 && next <= 55) {
      let value = 0
      at += 1
      for (let digits = 0; digits < 3; digits += 1) {
        const digit = args.charCodeAt(at) - 48
        if (digit < 0 || digit > 7) break
        value = value * 8 + digit
        at += 1
      }
      bytes[length++] = value
    } else {
      bytes[length++] = ESCAPES[String.fromCharCode(next)] ?? fail(args, at)
      at += 2
    }
  }
  if (args.startsWith('...', at + 1)) throw new Error('a text in the trace was cut off')
  return { bytes: bytes.subarray(0, length), end: at + 1 }
}

function fail(args: string, at: number): never {
  throw new Error(`an escape in the trace is not understood: ${args.slice(at, at + 10)}`)
}
