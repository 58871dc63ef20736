/**
 * Ledger entries in compressed blocks. Reads and writes one block at a time, so that memory does not grow with the ledger. A
 * damaged block loses only its own entries.
 */
import { constants, zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import type Database from 'better-sqlite3'
import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { EntryBodyWire } from '../../../protocol/edge/sync.ts'

export interface Entry {
  readonly id: bigint
  readonly n: bigint
  readonly body: string
  /** Null: none kept. */
  readonly inputs: string | null
}

/** Entries without gaps. */
export interface EntryRun {
  readonly firstId: bigint
  readonly firstN: bigint
  readonly bodies: readonly string[]
  readonly inputs: readonly (string | null)[]
}

interface BlockRow {
  readonly first_id: bigint
  readonly first_n: bigint
  readonly entries: bigint
  readonly data: Buffer
}

/** Entries of a block: more compress hardly better, and a damaged block loses all of its entries. */
export const BLOCK_ENTRIES = 256

/** Limit for the text of a block, unless one entry is longer. */
const BLOCK_CHARACTERS_MAX = 512 * 1024

/** Bounds the memory that a malicious file can take. */
const DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024

const COMPRESSION = {
  params: { [constants.ZSTD_c_compressionLevel]: 1, [constants.ZSTD_c_checksumFlag]: 1 },
}

export function compress(text: string): Buffer {
  return zstdCompressSync(text, COMPRESSION)
}

export function decompress(data: Buffer): string {
  return zstdDecompressSync(data, { maxOutputLength: DECOMPRESSED_BYTES_MAX }).toString('utf8')
}

/** JSON texts contain neither separator. */
export function textOf({ bodies, inputs }: Pick<EntryRun, 'bodies' | 'inputs'>): string {
  let text = ''
  for (const [index, body] of bodies.entries()) {
    const about = inputs[index] ?? null
    if (/[\t\n]/.test(body) || (about !== null && /[\t\n]/.test(about))) {
      throw new Error('invariant: the texts of an entry have no tab or line break')
    }
    text += about === null ? `${body}\n` : `${body}\t${about}\n`
  }
  return text
}

/** @throws Error if the text has another number of entries */
export function textsIn(text: string, count: number): Pick<EntryRun, 'bodies' | 'inputs'> {
  const lines = text.split('\n')
  if (lines.pop() !== '' || lines.length !== count) throw new Error(`damaged: a block has not ${count} entries`)
  const bodies: string[] = []
  const inputs: (string | null)[] = []
  for (const line of lines) {
    const tab = line.indexOf('\t')
    bodies.push(tab < 0 ? line : line.slice(0, tab))
    inputs.push(tab < 0 ? null : line.slice(tab + 1))
  }
  return { bodies, inputs }
}

interface Statements {
  readonly insert: Database.Statement
  readonly from: Database.Statement
  readonly before: Database.Statement
}

/** Prepared statements by connection. */
const prepared = new WeakMap<Database.Database, Statements>()

function statementsOf(database: Database.Database): Statements {
  const known = prepared.get(database)
  if (known !== undefined) return known
  const statements = {
    insert: database.prepare('INSERT INTO block (first_id, first_n, entries, data) VALUES (?, ?, ?, ?)'),
    from: database
      .prepare(
        `SELECT * FROM block
           WHERE first_id >= coalesce((SELECT max(first_id) FROM block WHERE first_id <= :next), :next) AND first_id <= :upTo
           ORDER BY first_id LIMIT 1`,
      )
      .safeIntegers(true),
    before: database
      .prepare('SELECT * FROM block WHERE first_id < ? ORDER BY first_id DESC LIMIT 1')
      .safeIntegers(true),
  }
  prepared.set(database, statements)
  return statements
}

/** Stores entries in as many blocks as needed. */
export function insertEntries(database: Database.Database, { firstId, firstN, bodies, inputs }: EntryRun): void {
  const { insert } = statementsOf(database)
  for (let start = 0; start < bodies.length;) {
    let end = start
    let length = 0
    while (end < bodies.length && end - start < BLOCK_ENTRIES) {
      length += (bodies[end]?.length ?? 0) + (inputs[end]?.length ?? 0)
      if (end > start && length > BLOCK_CHARACTERS_MAX) break
      end += 1
    }
    const data = compress(textOf({ bodies: bodies.slice(start, end), inputs: inputs.slice(start, end) }))
    insert.run(firstId + BigInt(start), firstN + BigInt(start), end - start, data)
    start = end
  }
}

/**
 * Entries with ids after `after`, up to `upTo`, in order. Entries that do not exist are skipped.
 *
 * @throws Error at a damaged block
 */
export function* entriesBetween(database: Database.Database, after: bigint, upTo: bigint): Generator<Entry> {
  const { from } = statementsOf(database)
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
  const sql = 'SELECT min(first_id) FROM block WHERE first_id > ?'
  return database.prepare(sql).safeIntegers(true).pluck().get(id) as bigint | null
}

/** Entries with ids below `before`, newest first. @throws Error at a damaged block */
export function* entriesBefore(database: Database.Database, before: bigint): Generator<Entry> {
  const statement = statementsOf(database).before
  for (let below = before; ;) {
    const row = statement.get(below) as BlockRow | undefined
    if (row === undefined) return
    for (const entry of [...entriesOf(row, row.first_id, before - 1n)].toReversed()) yield entry
    below = row.first_id
  }
}

function* entriesOf(row: BlockRow, from: bigint, upTo: bigint): Generator<Entry> {
  const { bodies, inputs } = textsIn(decompress(row.data), Number(row.entries))
  for (const [index, body] of bodies.entries()) {
    const id = row.first_id + BigInt(index)
    if (id >= from && id <= upTo) yield { id, n: row.first_n + BigInt(index), body, inputs: inputs[index] ?? null }
  }
}

/** What entries used and refunded, by account. */
export function sumsOf(entries: Iterable<Pick<Entry, 'body'>>): Map<AccountId, { used: Micro; refunded: Micro }> {
  const sums = new Map<AccountId, { used: Micro; refunded: Micro }>()
  for (const { body } of entries) {
    const { kind, postings } = JSON.parse(body) as EntryBodyWire
    for (const { account, amount } of postings) {
      const sum = sums.get(account) ?? { used: 0n, refunded: 0n }
      sum[kind === 'refund' ? 'refunded' : 'used'] += BigInt(amount)
      sums.set(account, sum)
    }
  }
  return sums
}
