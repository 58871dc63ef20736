/** Ledger entries in compressed blocks, one in memory at a time. A damaged block loses only its own entries. */
import type Database from 'better-sqlite3'
import { CHAIN_START } from '../../../protocol/signing.ts'
import { compress, decompress } from '../../../protocol/zstd.ts'
import { prepared } from './prepared.ts'
import { decodeTexts, encodeTexts, type EntryTexts, firstLines, headAfter } from './entry-texts.ts'

export interface Entry {
  readonly id: bigint
  readonly n: bigint
  readonly body: string
  readonly inputs: string | null
}

interface BlockRow {
  readonly first_id: bigint
  readonly first_n: bigint
  readonly entries: bigint
  readonly data: Buffer
}

/** Above every entry id. */
export const ENTRY_ID_MAX = 2n ** 63n - 1n

/** Entries of a block. More would compress little better, and a damaged block loses all of its entries. */
export const BLOCK_ENTRIES = 256

/** Limit for the texts of a block, unless one entry is longer. */
const BLOCK_BYTES_MAX = 512 * 1024

/** Bounds the memory that a malicious file can take. */
const DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024

/** @param prefix that they were compressed with */
export function decompressEntries(data: Buffer, prefix?: Buffer): Buffer {
  return decompress(data, DECOMPRESSED_BYTES_MAX, prefix)
}

const INSERT = 'INSERT INTO block (first_id, first_n, entries, data) VALUES (?, ?, ?, ?)'
const FROM = `SELECT * FROM block
  WHERE first_id >= coalesce((SELECT max(first_id) FROM block WHERE first_id <= :next), :next) AND first_id <= :upTo
  ORDER BY first_id LIMIT 1`
const BEFORE = 'SELECT * FROM block WHERE first_id < ? ORDER BY first_id DESC LIMIT 1'
const NEXT = 'SELECT min(first_id) AS id FROM block WHERE first_id > ?'

interface Block {
  readonly entries: number
  readonly data: Buffer
}

/** Kept for the next entries, so that they need no new memory. */
const KEPT_BYTES_MAX = 1024 * 1024

/**
 * Entries that are not in blocks yet, in a buffer that is reused, because buffers hardly make the garbage collector run.
 * Those that fill a block can be compressed beforehand.
 */
export class UnstoredEntries {
  #blocks: Block[] = []
  #buffer = Buffer.alloc(0)
  #bytes = 0
  #entries = 0

  get count(): number {
    return this.#blocks.reduce((sum, { entries }) => sum + entries, this.#entries)
  }

  add({ count, bytes }: EntryTexts): void {
    const length = this.#bytes + bytes.length
    if (length > this.#buffer.length) {
      const larger = Buffer.alloc(2 * length)
      this.#buffer.copy(larger, 0, 0, this.#bytes)
      this.#buffer = larger
    }
    this.#buffer.set(bytes, this.#bytes)
    this.#bytes = length
    this.#entries += count
  }

  compressOne(): boolean {
    if (this.#entries < BLOCK_ENTRIES && this.#bytes < BLOCK_BYTES_MAX) return false
    const { block, length } = firstBlock(this.#buffer.subarray(0, this.#bytes))
    this.#blocks.push(block)
    this.#buffer.copyWithin(0, length, this.#bytes)
    this.#bytes -= length
    this.#entries -= block.entries
    return true
  }

  /** In the caller's transaction, numbered from the given ones; changes nothing here. */
  storeIn(database: Database.Database, { id, n }: Pick<Entry, 'id' | 'n'>, more: EntryTexts | null): void {
    const insert = prepared(database, INSERT)
    let stored = 0n
    const store = ({ entries, data }: Block): void => {
      insert.run(id + stored, n + stored, entries, data)
      stored += BigInt(entries)
    }
    for (const block of this.#blocks) store(block)
    const own = this.#buffer.subarray(0, this.#bytes)
    const added = more === null ? EMPTY : more.bytes
    let rest = own.length === 0 ? added : added.length === 0 ? own : Buffer.concat([own, added])
    while (rest.length > 0) {
      const { block, length } = firstBlock(rest)
      store(block)
      rest = rest.subarray(length)
    }
  }

  clear(): void {
    this.#blocks = []
    this.#bytes = 0
    this.#entries = 0
    if (this.#buffer.length > KEPT_BYTES_MAX) this.#buffer = Buffer.alloc(0)
  }
}

const EMPTY = Buffer.alloc(0)

function firstBlock(bytes: Buffer): { readonly block: Block; readonly length: number } {
  const { lines, length } = firstLines(bytes, BLOCK_ENTRIES, BLOCK_BYTES_MAX)
  return { block: { entries: lines, data: compress(bytes.subarray(0, length)) }, length }
}

export function insertEntries(
  database: Database.Database,
  first: Pick<Entry, 'id' | 'n'>,
  entries: Parameters<typeof encodeTexts>[0],
): void {
  const texts = encodeTexts(entries)
  // Finds a text with a separator, which a commit finds as well.
  headAfter(CHAIN_START, texts)
  new UnstoredEntries().storeIn(database, first, texts)
}

/** Entries with ids after `after`, up to `upTo`, in order, skipping missing ones. @throws Error at a damaged block */
export function* entriesBetween(database: Database.Database, after: bigint, upTo: bigint): Generator<Entry> {
  const from = prepared(database, FROM)
  for (let next = after + 1n; next <= upTo;) {
    const row = from.get({ next, upTo }) as BlockRow | undefined
    if (row === undefined) return
    const end = row.first_id + row.entries
    if (end > next) yield* entriesOf(row, next, upTo)
    if (end > next) next = end
    else next = nextBlock(database, row.first_id) ?? upTo + 1n
  }
}

function nextBlock(database: Database.Database, id: bigint): bigint | null {
  return (prepared(database, NEXT).get(id) as { readonly id: bigint | null }).id
}

/** Entries with ids below `before`, newest first. @throws Error at a damaged block */
export function* entriesBefore(database: Database.Database, before: bigint): Generator<Entry> {
  const statement = prepared(database, BEFORE)
  for (let below = before; ;) {
    const row = statement.get(below) as BlockRow | undefined
    if (row === undefined) return
    for (const entry of [...entriesOf(row, row.first_id, before - 1n)].toReversed()) yield entry
    below = row.first_id
  }
}

function* entriesOf(row: BlockRow, from: bigint, upTo: bigint): Generator<Entry> {
  const { bodies, inputs } = decodeTexts(decompressEntries(row.data), Number(row.entries))
  for (const [index, body] of bodies.entries()) {
    const id = row.first_id + BigInt(index)
    if (id >= from && id <= upTo) yield { id, n: row.first_n + BigInt(index), body, inputs: inputs[index] ?? null }
  }
}
