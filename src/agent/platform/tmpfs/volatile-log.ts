/** In files on tmpfs, never flushed. Each turn begins a new file, removed once the journal contains its entries. */
import { closeSync, ftruncateSync, openSync, readFileSync, readdirSync, rmSync, writeSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { orNull } from '../../../platform/or-null.ts'
import { makeDirectories } from '../../../platform/make-directories.ts'
import { accountId } from '../../../protocol/edge/sync.ts'
import { microText } from '../../../protocol/wire.ts'
import { sha256 } from '../../../protocol/signing.ts'
import { parseJson } from '../../../protocol/parse-json.ts'
import type { PendingEntry } from '../../ledger/journal.ts'
import type { Anchor, LeftLog, LogOwner, VolatileLog } from '../../ledger/volatile-log.ts'
import { FrameWriter, readFrames } from './frame.ts'

export interface TmpfsLogOptions {
  readonly directory: string
  readonly name: string
  readonly bootId: string
}

export function volatileLogOf(stateDirectory: string, directory: string, bootId: string): TmpfsLog {
  const name = `ledger-${sha256(resolve(stateDirectory)).slice(0, 16)}`
  return new TmpfsLog({ directory, name, bootId })
}

const header = z.object({
  kind: z.literal('header'),
  format: z.literal(4),
  bootId: z.string(),
  deviceId: z.string().nullable(),
  epoch: z.int(),
})
const anchorForm = z.object({ kind: z.literal('anchor'), n: z.int(), head: z.string() })
const idempotencyRecord = z.object({
  session: z.string(),
  n: z.int(),
  requestHash: z.string(),
  answer: z.string(),
  status: z.int().exactOptional(),
  policyRevision: z.int(),
})
const storedSession = z.object({
  id: z.string(),
  ended: z.boolean(),
  since: z.number(),
  document: z.string(),
  snapshot: z.string(),
})
const allowances = z.record(accountId, microText)
const postings = z.object({ postings: z.array(z.object({ account: accountId, amount: microText })) })

export class TmpfsLog implements VolatileLog {
  readonly #options: TmpfsLogOptions
  readonly #writer = new FrameWriter()
  #owner: LogOwner = { deviceId: null, epoch: 0 }
  #file: number | null = null
  /** Of the file, bytes. */
  #size = 0
  /** Of its header, bytes. */
  #start = 0
  /** Of the last write: its first entry, and where in the file it begins. */
  #last = { n: 0, at: 0 }
  #current = 0
  #oldest = 0

  constructor(options: TmpfsLogOptions) {
    this.#options = options
  }

  /** The log of an earlier process; undefined if there is none or it cannot be trusted. */
  left(): LeftLog | undefined {
    const numbers = this.#numbers()
    const anchors: Anchor[] = []
    const entries: PendingEntry[] = []
    let origin: Pick<LeftLog, 'bootId' | keyof LogOwner> | undefined
    for (const number of numbers) {
      const frames = orNull(() => readFrames(readFileSync(this.#path(number)))) ?? undefined
      // Only the newest file can be torn.
      if (frames === undefined || (frames.torn && number !== numbers.at(-1))) return undefined
      const [first, ...texts] = frames.texts
      // Torn in its first frame, so it has no entries.
      if (first === undefined) continue
      const begun = header.safeParse(parseJson(first))
      if (!begun.success) return undefined
      const { bootId, deviceId, epoch } = begun.data
      const found = { bootId, deviceId, epoch }
      if (!isDeepStrictEqual(origin ?? found, found)) return undefined
      origin = found
      for (const text of texts) {
        const taken = text.startsWith('{') ? takeAnchor(text, anchors) : takeEntries(text, entries)
        if (!taken) return undefined
      }
    }
    return origin === undefined ? undefined : { ...origin, anchors, entries }
  }

  begin(owner: LogOwner, from: Anchor): void {
    makeDirectories(this.#options.directory)
    this.remove()
    this.#owner = owner
    this.#oldest = 1
    this.#current = 0
    this.turn()
    this.#write([anchorText(from)])
  }

  write(entries: readonly PendingEntry[]): void {
    // One frame for the batch: dependent entries are read together or not at all.
    const at = this.#size
    this.#write([entries.map(entryLines).join('\n')])
    this.#last = { n: entries[0]?.n ?? 0, at }
  }

  retract(from: number): void {
    const { n, at } = this.#last
    if (this.#file === null || n !== from) throw new Error('invariant: the entries of the last write are retracted')
    // Needs no space.
    ftruncateSync(this.#file, at)
    this.#size = at
  }

  turn(): void {
    // After a retract. A file for each commit that the journal refuses would fill the file system.
    if (this.#file !== null && this.#size === this.#start) return
    const { bootId } = this.#options
    const file = openSync(this.#path(this.#current + 1), 'wx', 0o600)
    if (this.#file !== null) closeSync(this.#file)
    this.#file = file
    this.#current += 1
    this.#size = 0
    this.#last = { n: 0, at: 0 }
    const first: z.input<typeof header> = { kind: 'header', format: 4, bootId, ...this.#owner }
    this.#write([JSON.stringify(first)])
    this.#start = this.#size
  }

  forget(reached: Anchor): void {
    this.#write([anchorText(reached)])
    for (; this.#oldest < this.#current; this.#oldest += 1) rmSync(this.#path(this.#oldest), { force: true })
  }

  remove(): void {
    if (this.#file !== null) closeSync(this.#file)
    this.#file = null
    // Newest first: an interruption leaves the beginning of a log, which still fits or is rejected as a whole.
    for (const number of this.#numbers().toReversed()) rmSync(this.#path(number), { force: true })
  }

  /** Writes everything or truncates back: a full file system may have written a part. */
  #write(texts: readonly string[]): void {
    const file = this.#file
    if (file === null) throw new Error('invariant: the volatile log is open')
    const bytes = this.#writer.frame(texts)
    let written = 0
    try {
      while (written < bytes.length)
        written += writeSync(file, bytes, written, bytes.length - written, this.#size + written)
    } catch (error) {
      if (written > 0) ftruncateSync(file, this.#size)
      throw error
    }
    this.#size += bytes.length
  }

  #path(number: number): string {
    return join(this.#options.directory, `${this.#options.name}.${number}`)
  }

  #numbers(): readonly number[] {
    const { directory, name } = this.#options
    const names = orNull(() => readdirSync(directory)) ?? []
    return names
      .filter((each) => each.startsWith(`${name}.`) && /^\d{1,15}$/.test(each.slice(name.length + 1)))
      .map((each) => Number(each.slice(name.length + 1)))
      .sort((a, b) => a - b)
  }
}

function takeAnchor(text: string, anchors: Anchor[]): boolean {
  const parsed = anchorForm.safeParse(parseJson(text))
  if (!parsed.success) return false
  const { n, head } = parsed.data
  anchors.push({ n, head })
  return true
}

function takeEntries(text: string, entries: PendingEntry[]): boolean {
  const lines = text.split('\n')
  if (lines.length % ENTRY_LINES !== 0) return false
  for (let at = 0; at < lines.length; at += ENTRY_LINES) {
    const entry = entryOf(lines.slice(at, at + ENTRY_LINES))
    if (entry === undefined) return false
    entries.push(entry)
  }
  return true
}

/** Number, kind of move, response, session, decision details, allowances and body, one per line: JSON has no line breaks. */
const ENTRY_LINES = 7

function entryLines({
  n,
  body,
  moves,
  idempotencyRecord: answer,
  session,
  inputs = '',
  allowances: allowed,
}: PendingEntry): string {
  return `${n}\n${moves}\n${optional(answer)}\n${optional(session)}\n${inputs}\n${allowancesText(allowed)}\n${body}`
}

function allowancesText(allowed: PendingEntry['allowances']): string {
  if (allowed === undefined || allowed.size === 0) return ''
  return JSON.stringify(Object.fromEntries([...allowed].map(([account, amount]) => [account, String(amount)])))
}

function optional(value: object | null | undefined): string {
  return value === null || value === undefined ? '' : JSON.stringify(value)
}

function entryOf([n, moves, answer, session, inputs = '', allowed, body]: readonly string[]): PendingEntry | undefined {
  if (n === undefined || !/^[1-9]\d{0,15}$/.test(n) || body === undefined) return undefined
  if (moves !== 'used' && moves !== 'refunded' && moves !== 'burned') return undefined
  const posted = postings.safeParse(parseJson(body))
  const last = answer === '' ? null : idempotencyRecord.safeParse(parseJson(answer ?? ''))
  const kept = session === '' ? null : storedSession.safeParse(parseJson(session ?? ''))
  const above = allowed === '' ? null : allowances.safeParse(parseJson(allowed ?? ''))
  if (!posted.success || last?.success === false || kept?.success === false) return undefined
  if (above?.success === false) return undefined
  return {
    n: Number(n),
    body,
    moves,
    postings: posted.data.postings,
    idempotencyRecord: last?.data ?? null,
    ...(kept === null ? {} : { session: kept.data }),
    ...(inputs === '' ? {} : { inputs }),
    ...(above === null ? {} : { allowances: new Map(Object.entries(above.data)) }),
  }
}

function anchorText({ n, head }: Anchor): string {
  return JSON.stringify({ kind: 'anchor', n, head })
}
