import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { openDatabase } from '../../../../src/agent/platform/sqlite/open-database.ts'
import { SLOT_BYTES, Slots, readSlots } from '../../../../src/agent/platform/sqlite/slots.ts'
import { temporaryDirectory } from '../../harness.ts'

const GENERATION = 1

function slotsIn() {
  const database = openDatabase(join(temporaryDirectory(), 'journal.db'))
  const slots = new Slots(database)
  return {
    slots,
    /** @returns how many slots it takes */
    write(record: string, generation = GENERATION): number {
      const placed = slots.fit(Buffer.from(record))!
      slots.write(placed, generation)
      slots.written(placed)
      return placed.slots
    },
    read(generation = GENERATION) {
      const { records, damage } = readSlots(database, generation)
      return { records: records.map(String), damage }
    },
    change: (n: number, data: Buffer) => database.prepare('UPDATE slot SET data = ? WHERE n = ?').run(data, n),
    slot: (n: number) => database.prepare('SELECT data FROM slot WHERE n = ?').pluck().get(n) as Buffer,
  }
}

/** Nothing compresses such ids to less than half. */
const IDS = Array.from({ length: 54 }, () => randomUUID()).join()
const long = (n: number): string => `{"n":${n},"ids":"${IDS}"}\n`
const short = (n: number): string => `{"n":${n}}\n`

describe('a long record', () => {
  it('takes fewer slots when the record before it has the same ids', () => {
    const { write, read } = slotsIn()
    expect(write(long(1))).toBe(2)
    expect(write(long(2))).toBe(1)
    expect(write(short(3))).toBe(1)
    expect(write(long(4))).toBe(2)
    expect(write(long(5))).toBe(1)
    expect(read()).toEqual({ records: [long(1), long(2), short(3), long(4), long(5)], damage: null })
  })

  it('is compressed alone if it is the first of its generation', () => {
    const { slots, write, read } = slotsIn()
    write(long(1))
    slots.clear()
    expect(write(long(2), GENERATION + 1)).toBe(2)
    expect(read(GENERATION + 1).records).toEqual([long(2)])
  })

  it('is compressed with the last record that was written, not with one that was rolled back', () => {
    const { slots, write, read } = slotsIn()
    write(long(1))
    const other = Buffer.from(randomUUID().repeat(60))
    expect(slots.fit(other)).not.toBeNull()
    expect(write(long(2))).toBe(1)
    expect(read().records).toEqual([long(1), long(2)])
  })

  it('cannot be read after a damaged record', () => {
    const { write, read, slot, change } = slotsIn()
    for (const n of [1, 2, 3]) write(long(n))
    const damaged = Buffer.from(slot(2))
    damaged.writeUInt8(damaged.readUInt8(SLOT_BYTES / 2) ^ 1, SLOT_BYTES / 2)
    change(2, damaged)
    expect(read()).toEqual({ records: [long(1)], damage: 'slot 2 is damaged' })
  })
})
