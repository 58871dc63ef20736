// A device that owes the cloud entries, and damage to its journal of the kind that leaves the entries readable.
import { randomBytes } from 'node:crypto'
import { closeSync, openSync, readSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import type { Journal, PendingEntry } from '../../../../src/agent/ledger/journal.ts'
import { PAGE_BYTES } from '../../../../src/agent/platform/sqlite/open-database.ts'
import type { SegmentWire } from '../../../../src/protocol/edge/sync.ts'
import { IDENTITY, SEAL, STAMP, attach, entry, journalIn, payloadOf, temporaryDirectory } from '../../harness.ts'

export const A = 'line/i/a/0'

export const entries = (from: number, count: number): PendingEntry[] =>
  Array.from({ length: count }, (_, index) => entry(from + index, [{ account: A, amount: 3n }]))

/** Entries 1 to 20 are delivered, 21 to 60 are not. */
export async function deviceWithBacklog(): Promise<{ directory: string; journal: Journal; path: string }> {
  const directory = temporaryDirectory()
  const journal = await journalIn(directory)
  await attach(journal, { [A]: 1_000_000n })
  await journal.append(entries(1, 20), STAMP)
  const { seq } = await journal.seal(SEAL)
  await journal.acknowledge(seq, null, null)
  await journal.append(entries(21, 40), STAMP)
  return { directory, journal, path: join(directory, 'journal.db') }
}

/** The bodies of the undelivered ranges, by a device that attaches again. */
export async function deliveredBy(journal: Journal): Promise<readonly string[]> {
  return (await undeliveredBy(journal)).flatMap(({ entries: { bodies } }) => bodies)
}

/** What the segments of a device that attaches again contain of the undelivered ranges. */
export async function rangesOf(journal: Journal) {
  const ranges = await undeliveredBy(journal)
  return ranges.map(({ entries: { first, bodies }, final }) => ({ first, count: bodies.length, final }))
}

async function undeliveredBy(journal: Journal): Promise<readonly NonNullable<SegmentWire['undeliveredRange']>[]> {
  if ((await journal.read()).identity === null) await journal.saveIdentity(IDENTITY)
  await journal.attach(10)
  const ranges: NonNullable<SegmentWire['undeliveredRange']>[] = []
  for (;;) {
    const { document, seq } = await journal.seal(SEAL)
    const { undeliveredRange } = payloadOf(document) as SegmentWire
    await journal.acknowledge(seq, null, null)
    if (undeliveredRange === null) return ranges
    ranges.push(undeliveredRange)
  }
}

/** With undelivered entries 21 up to this one, each with a body of that many bytes. The journal is closed. */
export async function deviceWithEntries(last: number, bytes: number): Promise<{ directory: string; path: string }> {
  const { directory, journal, path } = await deviceWithBacklog()
  const { lastEntry } = await journal.read()
  const posting = { account: A, amount: '1' }
  for (let n = lastEntry + 1; n <= last; n += 1_000) {
    const more = Array.from({ length: Math.min(1_000, last - n + 1) }, (_, index) => {
      const body = { n: n + index, kind: 'access', postings: [posting], fill: 'x'.repeat(bytes) }
      return { ...entry(n + index, [{ account: A, amount: 1n }]), body: JSON.stringify(body) }
    })
    await journal.append(more, STAMP)
  }
  await journal.close()
  return { directory, path }
}

/** Path of a closed journal with 1.5 MB. Entries 21 to 360 are not delivered. */
export async function largeBacklog(): Promise<string> {
  const { journal, path } = await deviceWithBacklog()
  // Hardly compressible.
  const fill = () => randomBytes(4_000).toString('base64')
  for (let n = 61; n <= 360; n += 50) {
    const more = Array.from({ length: 50 }, (_, index) => entry(n + index, []))
    const added = more.map((each) => ({ ...each, body: each.body.replace('}', `,"fill":"${fill()}"}`) }))
    await journal.append(added, STAMP)
  }
  await journal.close()
  return path
}

/** Changes one bit of the file's header. The journal must be closed. */
export function flipBit(path: string, at: number, bit: number): void {
  const file = openSync(path, 'r+')
  const byte = Buffer.alloc(1)
  readSync(file, byte, 0, 1, at)
  writeSync(file, Buffer.from([byte.readUInt8() ^ (1 << bit)]), 0, 1, at)
  closeSync(file)
}

/** Overwrites the root of a table, by default of one that the salvage does not need. The journal must be closed. */
export function damage(path: string, table = 'answer'): void {
  const database = new Database(path, { readonly: true })
  const page = database.prepare('SELECT rootpage FROM sqlite_schema WHERE name = ?').pluck().get(table) as number
  database.close()
  const file = openSync(path, 'r+')
  writeSync(file, Buffer.alloc(PAGE_BYTES, 7), 0, PAGE_BYTES, (page - 1) * PAGE_BYTES)
  closeSync(file)
}
