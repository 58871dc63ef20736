/** Texts of consecutive entries as bytes, which cost no garbage collection: each text is encoded once. */
import { hash } from 'node:crypto'
import type { PendingEntry } from '../../ledger/journal.ts'
import { reusedMemory } from './reused-memory.ts'

/** Valid until the next texts are encoded: they use the same memory. */
export interface EntryTexts {
  readonly count: number
  readonly withInputs: number
  /** UTF-8: a line for each entry with its body and, after a tab, its decision inputs. JSON texts contain neither separator. */
  readonly bytes: Buffer
}

const LINE_END = 10
const TAB = 9

/** Bytes of the separators of an entry, at most. */
const SEPARATORS = 2

/** UTF-8 bytes of a UTF-16 unit, at most. */
const UNIT_BYTES_MAX = 3

/** Above this estimate, the exact length is measured: ASCII takes a third of the estimate. */
const ESTIMATED_BYTES_MAX = 1024 * 1024

const encoded = reusedMemory()
const hashed = reusedMemory()

type Texts = readonly Pick<PendingEntry, 'body' | 'inputs'>[]

function memoryFor(entries: Texts): Buffer {
  const most = sumOf(entries, (text) => text.length * UNIT_BYTES_MAX)
  return encoded(most <= ESTIMATED_BYTES_MAX ? most : sumOf(entries, (text) => Buffer.byteLength(text)))
}

function sumOf(entries: Texts, lengthOf: (text: string) => number): number {
  let sum = 0
  for (const { body, inputs } of entries) sum += lengthOf(body) + lengthOf(inputs ?? '') + SEPARATORS
  return sum
}

/** One piece of memory for all: a text of all of them would be large garbage. */
export function encodeTexts(entries: Texts): EntryTexts {
  const bytes = memoryFor(entries)
  let withInputs = 0
  let at = 0
  for (const { body, inputs = null } of entries) {
    at += bytes.write(body, at)
    if (inputs !== null) {
      bytes[at] = TAB
      at += 1
      at += bytes.write(inputs, at)
      withInputs += 1
    }
    bytes[at] = LINE_END
    at += 1
  }
  return { count: entries.length, withInputs, bytes: bytes.subarray(0, at) }
}

export interface DecodedTexts {
  readonly bodies: readonly string[]
  readonly inputs: readonly (string | null)[]
}

/** @throws Error if there are not `count` entries */
export function decodeTexts(bytes: Buffer, count: number): DecodedTexts {
  const lines = bytes.toString('utf8').split('\n')
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

/** Bytes of the first lines, at most `linesMax`, and at most `bytesMax` unless the first is longer. */
export function firstLines(
  bytes: Buffer,
  linesMax: number,
  bytesMax: number,
): { readonly lines: number; readonly length: number } {
  let lines = 0
  let length = 0
  while (lines < linesMax && length < bytes.length) {
    const end = bytes.indexOf(LINE_END, length) + 1
    if (lines > 0 && end > bytesMax) break
    length = end
    lines += 1
  }
  return { lines, length }
}

/** The hash chain over the bodies, as `entryHash` makes it. @throws Error if a text contains a separator */
export function headAfter(head: string, { count, withInputs, bytes }: EntryTexts): string {
  let last = head
  let lines = 0
  let tabs = 0
  let tab = bytes.indexOf(TAB)
  for (let start = 0; start < bytes.length;) {
    const end = bytes.indexOf(LINE_END, start)
    const hasInputs = tab >= 0 && tab < end
    last = bytesHash(last, bytes, start, hasInputs ? tab : end)
    while (tab >= 0 && tab < end) {
      tabs += 1
      tab = bytes.indexOf(TAB, tab + 1)
    }
    lines += 1
    start = end + 1
  }
  if (lines !== count || tabs !== withInputs) {
    throw new Error('invariant: the texts of an entry have no tab or line break')
  }
  return last
}

/** Bytes of a hash in hexadecimal and a line break. */
const HEAD_BYTES = 65

/** Hashes `bytes` from `start` to `end`. */
function bytesHash(previousHash: string, bytes: Buffer, start: number, end: number): string {
  const hashedBytes = hashed(HEAD_BYTES + end - start)
  hashedBytes.write(previousHash, 0, 'latin1')
  hashedBytes[HEAD_BYTES - 1] = LINE_END
  bytes.copy(hashedBytes, HEAD_BYTES, start, end)
  return hash('sha256', hashedBytes, 'hex')
}
