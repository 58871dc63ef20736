/**
 * Pending commits in slots: rows of a fixed size that are overwritten in place, so that a commit of a few entries writes one
 * page. A record fills one slot or several in sequence. Slots of another generation are free. A long record is compressed
 * with the end of the one before it, which has most of its texts, so records must be read in sequence.
 */
import { crc32 } from 'node:zlib'
import type Database from 'better-sqlite3'
import { compress } from '../../../protocol/zstd.ts'
import { decompressEntries } from './entry-blocks.ts'
import { prepared } from './prepared.ts'

/** Exactly fits a page of 1 KiB. */
export const SLOT_BYTES = 984

/** Checksum of the rest, generation, and the bytes of the record from here on with a mark if it is compressed. */
const HEADER_BYTES = 12
const CONTENT_BYTES = SLOT_BYTES - HEADER_BYTES
const COMPRESSED = 0x8000_0000
const LENGTH = 0x7fff_ffff

/** About two entries. A longer prefix takes more time and saves nothing. */
const PREFIX_BYTES = 2_048

const NO_PREFIX: Buffer = Buffer.alloc(0)

/** Above this fraction in use, the pending commits are written to the tables in a moment without a caller. */
const LOW_FRACTION = 0.75

export class Slots {
  readonly #update: Database.Statement
  readonly #count: number
  readonly #slot = Buffer.alloc(SLOT_BYTES)
  readonly #endOfLast = Buffer.alloc(PREFIX_BYTES)
  /** Of the next record. */
  #prefix: Buffer = NO_PREFIX
  #used = 0

  constructor(database: Database.Database) {
    this.#update = database.prepare('UPDATE slot SET data = ? WHERE n = ?')
    this.#count = Number(database.prepare('SELECT count(*) FROM slot').pluck().get())
  }

  /** The slots for a record; null if they are not free. */
  fit(record: Buffer): PlacedRecord | null {
    const isLong = record.length > CONTENT_BYTES
    const data = isLong ? compress(record, this.#prefix) : record
    const slots = Math.ceil(data.length / CONTENT_BYTES)
    return this.#used + slots > this.#count ? null : { record, data, mark: isLong ? COMPRESSED : 0, slots }
  }

  /** Call {@link Slots.written} once it is committed. */
  write({ data, mark }: PlacedRecord, generation: number): void {
    let n = this.#used
    for (let at = 0; at < data.length; at += CONTENT_BYTES) {
      const slot = this.#slot
      slot.writeUInt32BE(generation, 4)
      slot.writeUInt32BE(((data.length - at) | mark) >>> 0, 8)
      const copied = data.copy(slot, HEADER_BYTES, at, at + CONTENT_BYTES)
      slot.fill(0, HEADER_BYTES + copied)
      slot.writeUInt32BE(crc32(slot.subarray(4)), 0)
      if (this.#update.run(slot, n).changes !== 1) throw new Error(`invariant: slot ${n} exists`)
      n += 1
    }
  }

  written({ record, slots }: PlacedRecord): void {
    this.#used += slots
    const end = endOf(record)
    end.copy(this.#endOfLast)
    this.#prefix = this.#endOfLast.subarray(0, end.length)
  }

  get isLow(): boolean {
    return this.#used > this.#count * LOW_FRACTION
  }

  clear(): void {
    this.#used = 0
    this.#prefix = NO_PREFIX
  }
}

export interface PlacedRecord {
  readonly record: Buffer
  /** The bytes to store, compressed if the record is long. */
  readonly data: Buffer
  readonly mark: number
  readonly slots: number
}

function endOf(record: Buffer): Buffer {
  return record.subarray(Math.max(0, record.length - PREFIX_BYTES))
}

/** Pending records, as far as they can be read. */
export interface PendingRecords {
  readonly records: readonly Buffer[]
  /** Null: all were read. */
  readonly damage: string | null
}

export function readSlots(database: Database.Database, generation: number): PendingRecords {
  const slots = prepared(database, 'SELECT data FROM slot ORDER BY n').pluck().all() as Buffer[]
  return recordsIn(slots, generation)
}

/**
 * The records in slots, in the sequence of the slots.
 *
 * @param last the record before them in this generation, if there is one
 */
export function recordsIn(slots: readonly Buffer[], generation: number, last: Buffer = NO_PREFIX): PendingRecords {
  const records: Buffer[] = []
  let parts: Buffer[] = []
  let missing = 0
  let isOver = false
  for (const [n, slot] of slots.entries()) {
    const found = contentOf(slot)
    if (found === 'DAMAGED') return { records, damage: `slot ${n} is damaged` }
    if (found !== null && found.generation > generation) return { records, damage: `slot ${n} is newer than the state` }
    if (found?.generation !== generation) {
      if (missing > 0) return { records, damage: `slot ${n} does not continue its record` }
      isOver = true
      continue
    }
    if (isOver || (missing > 0 && found.length !== missing)) return { records, damage: `slot ${n} follows no other` }
    parts.push(found.content)
    missing = found.length - found.content.length
    if (missing > 0) continue
    const data = Buffer.concat(parts)
    parts = []
    try {
      const prefix = endOf(records.at(-1) ?? last)
      records.push(found.mark === COMPRESSED ? decompressEntries(data, prefix) : data)
    } catch {
      return { records, damage: `the record up to slot ${n} is damaged` }
    }
  }
  return { records, damage: missing > 0 ? 'the last record is incomplete' : null }
}

interface SlotContent {
  readonly generation: number
  /** From here to the end of the record. */
  readonly length: number
  readonly mark: number
  readonly content: Buffer
}

/** Null: never written. */
function contentOf(slot: unknown): SlotContent | 'DAMAGED' | null {
  if (!Buffer.isBuffer(slot) || slot.length !== SLOT_BYTES) return 'DAMAGED'
  const generation = slot.readUInt32BE(4)
  if (generation === 0 && slot.every((byte) => byte === 0)) return null
  if (crc32(slot.subarray(4)) !== slot.readUInt32BE(0)) return 'DAMAGED'
  const field = slot.readUInt32BE(8)
  const length = field & LENGTH
  const content = slot.subarray(HEADER_BYTES, HEADER_BYTES + Math.min(length, CONTENT_BYTES))
  return { generation, length, mark: (field & ~LENGTH) >>> 0, content }
}
