/**
 * Proves from a trace that each answer left after the flush of its entry: after an fsync of the log that began after
 * the last frame of the entry's transaction.
 */
import { recordsIn, SLOT_BYTES } from '../../src/agent/platform/sqlite/slots.ts'
import { type Moment, quotedBytes, type SystemCall, targetOf } from './calls.ts'

export interface ReplyReport {
  answers: number
  /** Correlation ids of answers after their flush. */
  readonly proven: Set<string>
  /** Answers too early, or without a written entry. */
  readonly early: string[]
  commits: number
  flushes: number
}

/** A ledger entry. Answers in the idempotency cache have no `kind` before the id. */
const ENTRY = /\{"n":\d+,"kind":"[a-z-]+".{0,2000}?"correlationId":"([0-9a-f-]{36})"/gs
/** A response that waited for its entry: a denial does not. */
export const ANSWER = /^(?!.*x-tallygate-durability: later).*?\\r\\n\\r\\n\{\\"correlationId\\":\\"([0-9a-f-]{36})\\"/s

const FRAME_HEADER_BYTES = 24

/** A leaf page of a table in SQLite's format. */
const LEAF = 0x0d

export class ReplyProof {
  readonly report: ReplyReport = { answers: 0, proven: new Set(), early: [], commits: 0, flushes: 0 }
  readonly #wal: string
  readonly #socket: string
  /** Pages of the transaction being written. */
  #pages: Buffer[] = []
  #isLast = false
  readonly #slotReader = new SlotReader()
  /** Entries of completely written transactions. */
  readonly #written = new Set<string>()
  readonly #covered = new Map<SystemCall, readonly string[]>()
  readonly #durable = new Set<string>()

  /**
   * @param wal path of the journal's write-ahead log
   * @param socket path of the agent's socket
   */
  constructor(wal: string, socket: string) {
    this.#wal = wal
    this.#socket = socket
  }

  take(moment: Moment): void {
    const { call } = moment
    switch (call.name) {
      case 'pwrite64':
        if (moment.kind === 'end' && targetOf(call) === this.#wal) this.#frame(call, moment.result)
        break
      case 'write':
      case 'writev':
      case 'sendto':
      case 'sendmsg':
        if (moment.kind === 'begin') this.#answer(call)
        break
      case 'fsync':
      case 'fdatasync':
        if (targetOf(call) === this.#wal) this.#flush(moment)
        break
      case 'io_uring_setup':
        if (moment.kind === 'end' && (moment.result ?? -1) >= 0)
          throw new Error('the program uses io_uring, which no trace shows')
        break
      case 'mmap':
        if (call.args.includes(`<${this.#wal}`) && call.args.includes('PROT_WRITE'))
          throw new Error('the log is mapped')
    }
  }

  #frame(call: SystemCall, result: number | null): void {
    const { bytes } = quotedBytes(call.args)
    if (result !== bytes.length) throw new Error(`line ${call.line}: a short write to the log`)
    if (bytes.length < FRAME_HEADER_BYTES || call.args.endsWith(', 0')) return
    if (bytes.length === FRAME_HEADER_BYTES) {
      // Size of the database after the commit; 0 in all frames but the last.
      this.#isLast = bytes.readUInt32BE(4) !== 0
      return
    }
    this.#pages.push(Buffer.from(bytes))
    if (!this.#isLast) return
    this.#isLast = false
    const ids = this.#slotReader.entriesIn(this.#pages).filter((id) => !this.#durable.has(id) && !this.#written.has(id))
    this.#pages = []
    if (ids.length > 0) this.report.commits += 1
    for (const id of ids) this.#written.add(id)
  }

  #flush(moment: Moment): void {
    const { call } = moment
    if (moment.kind === 'begin') {
      this.#covered.set(call, [...this.#written])
      return
    }
    this.report.flushes += 1
    if (moment.result === 0) {
      for (const id of this.#covered.get(call) ?? []) {
        this.#written.delete(id)
        this.#durable.add(id)
      }
    }
    this.#covered.delete(call)
  }

  #answer(call: SystemCall): void {
    if (!targetOf(call).includes(this.#socket)) return
    const id = ANSWER.exec(call.args)?.[1]
    if (id === undefined) return
    this.report.answers += 1
    if (this.#durable.has(id)) this.report.proven.add(id)
    else this.report.early.push(`line ${call.line}: the answer ${id} leaves before its entry is flushed`)
  }
}

class SlotReader {
  #generation = 0
  /** Last record of this generation: its end is the prefix of the next one. */
  #last: Buffer | undefined

  /** Correlation ids of the entries that a transaction writes, as text or compressed in slots. */
  entriesIn(pages: readonly Buffer[]): readonly string[] {
    const slots = pages.flatMap((page) => slotIn(page) ?? []).toSorted((a, b) => a.n - b.n)
    const [first] = slots
    const records =
      first === undefined
        ? []
        : this.#recordsIn(
            slots.map(({ data }) => data),
            first.data.readUInt32BE(4),
          )
    const texts = [...pages, ...records].map((bytes) => bytes.toString('latin1'))
    return texts.flatMap((text) => Array.from(text.matchAll(ENTRY), ([, id = '']) => id))
  }

  #recordsIn(slots: readonly Buffer[], generation: number): readonly Buffer[] {
    if (generation !== this.#generation) this.#last = undefined
    this.#generation = generation
    const { records } = recordsIn(slots, generation, this.#last)
    this.#last = records.at(-1) ?? this.#last
    return records
  }
}

/** A slot fills its page: one cell, whose payload ends with the slot. */
function slotIn(page: Buffer): { readonly n: number; readonly data: Buffer } | null {
  if (page.length < SLOT_BYTES || page[0] !== LEAF || page.readUInt16BE(3) !== 1) return null
  const cell = page.readUInt16BE(8)
  const payloadBytes = ((page.readUInt8(cell) & 0x7f) << 7) | page.readUInt8(cell + 1)
  const end = cell + 3 + payloadBytes
  if (payloadBytes < SLOT_BYTES || end > page.length) return null
  return { n: page.readUInt8(cell + 2), data: page.subarray(end - SLOT_BYTES, end) }
}
