// The proof that no answer leaves before its flush: on traces written by hand, in which it can fail in every way, and on
// the agent itself, sound and with defects.
import { randomBytes } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { traceReplies } from '../../crash/trace.ts'
import { type Moment, moments, quotedBytes, targetOf } from '../../crash/trace/calls.ts'
import { ReplyProof } from '../../crash/trace/replies.ts'
import { openDatabase, PAGE_BYTES } from '../../src/agent/platform/sqlite/open-database.ts'
import { Slots } from '../../src/agent/platform/sqlite/slots.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { needsStrace } from '../support/strace.ts'

const LIMIT_MS = 120_000
const ID = '8266ffd8-1ba1-4995-9eda-e9a2850ceec9'
const WAL = '7</s/journal.db-wal>'
/** Without an entry. */
const PAGE = 'x'.repeat(64)

async function momentsOf(log: string): Promise<readonly Moment[]> {
  const file = join(temporaryDirectory(), 'log')
  writeFileSync(file, log)
  const all: Moment[] = []
  for await (const moment of moments(file)) all.push(moment)
  return all
}

/** Each page of a database in the notation of C. */
function pagesOf(file: Buffer): readonly string[] {
  return Array.from({ length: file.length / PAGE_BYTES }, (_, page) => {
    const bytes = [...file.subarray(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)]
    return bytes.map((byte) => `\\${byte.toString(8).padStart(3, '0')}`).join('')
  })
}

describe('a trace', () => {
  it('is read as calls that begin and end, also of several threads at a time', async () => {
    const log = [
      '12 openat(AT_FDCWD</>, "/s/a", O_RDWR <unfinished ...>',
      '13 fsync(7</s/b>) = -1 EIO (Input/output error)',
      '12 <... openat resumed>) = 3</s/a>',
      '14 fsync(8</s/c> <unfinished ...>',
      '14 <... fsync resumed>) = ?',
      '15 ???( <unfinished ...>',
      '15 <... ??? resumed>) = ?',
      '12 +++ exited with 0 +++',
    ].join('\n')
    expect((await momentsOf(log)).map(({ kind, call, ...more }) => [kind, call.name, call.thread, more])).toEqual([
      ['begin', 'openat', 12, {}],
      ['begin', 'fsync', 13, {}],
      ['end', 'fsync', 13, { result: -1, line: 2 }],
      ['end', 'openat', 12, { result: 3, line: 3 }],
      ['begin', 'fsync', 14, {}],
      ['end', 'fsync', 14, { result: null, line: 5 }],
      ['begin', '???', 15, {}],
      ['end', '???', 15, { result: null, line: 7 }],
    ])
  })

  it('that is not one of strace is refused', async () => {
    await expect(momentsOf('hello')).rejects.toThrow('line 1')
    await expect(momentsOf('12 <... write resumed>) = 1')).rejects.toThrow('has not begun')
  })

  it('has texts in the notation of C, and targets with their kind', () => {
    const text = String.raw`5</x>, "a\0\1\0011\377\n\t\"\\b", 12`
    const { bytes, end } = quotedBytes(text)
    expect([...bytes]).toEqual([97, 0, 1, 1, 49, 255, 10, 9, 34, 92, 98])
    expect(text.slice(end)).toBe(', 12')
    expect(() => quotedBytes('"abc"...')).toThrow('cut off')
    const socket = '31<UNIX-STREAM:[12->11,"/tmp/a.sock~"]>, "x", 1'
    expect(targetOf({ thread: 1, name: 'write', args: socket, line: 1 })).toBe('UNIX-STREAM:[12->11,"/tmp/a.sock~"]')
  })
})

describe('the proof', () => {
  const frame = (isLast: boolean, text: string): string[] => [
    `9 pwrite64(${WAL}, "${String.raw`\0\0\0\7\0\0\0`}${isLast ? '\\5' : '\\0'}${'s'.repeat(16)}", 24, 32) = 24`,
    `9 pwrite64(${WAL}, "${text}", ${quotedBytes(`"${text}"`).bytes.length}, 56) = ${quotedBytes(`"${text}"`).bytes.length}`,
  ]
  const entry = (id = ID): string => String.raw`..{\"n\":1,\"kind\":\"access\",\"correlationId\":\"${id}\"}..`
  const flush = [`9 fsync(${WAL}) = 0`]
  const answer = (id = ID): string =>
    `8 write(31<UNIX-STREAM:[1->2,"/s/sock~"]>, "HTTP/1.1 200 OK${String.raw`\r\n\r\n{\"correlationId\":\"${id}\"`}", 99) = 99`
  const reportOf = async (...lines: (string | readonly string[])[]) => {
    const proof = new ReplyProof('/s/journal.db-wal', '/s/sock')
    for (const moment of await momentsOf(lines.flat().join('\n'))) proof.take(moment)
    return proof.report
  }

  it('holds for an answer after a flush after the last frame of the transaction', async () => {
    const report = await reportOf(frame(false, entry()), frame(true, PAGE), flush, answer())
    expect(report).toMatchObject({ answers: 1, early: [], commits: 1, flushes: 1 })
    expect([...report.proven]).toEqual([ID])
  })

  it('reads entries that are compressed, in several slots or with the record of an earlier transaction', async () => {
    const path = join(temporaryDirectory(), 'journal.db')
    const database = openDatabase(path)
    const slots = new Slots(database)
    const other = ID.replace('8', '9')
    const text = randomBytes(1_500).toString('base64')
    const lines: (string | readonly string[])[] = []
    const counts: number[] = []
    let before: readonly string[] = []
    for (const id of [other, ID]) {
      const placed = slots.fit(Buffer.from(`{}\n${text}{"n":1,"kind":"access","correlationId":"${id}"}\n`))!
      slots.write(placed, 1)
      slots.written(placed)
      counts.push(placed.slots)
      database.pragma('wal_checkpoint(TRUNCATE)')
      const pages = pagesOf(readFileSync(path))
      const changed = pages.filter((page, n) => page !== before[n])
      lines.push(...changed.map((page) => frame(false, page)), frame(true, PAGE), flush, answer(id))
      before = pages
    }
    database.close()
    expect(counts).toEqual([2, 1])
    const report = await reportOf(...lines)
    expect(report.early).toEqual([])
    expect([...report.proven]).toEqual([other, ID])
  })

  it.each([
    ['without any flush', [frame(true, entry()), answer()]],
    ['before the flush', [frame(true, entry()), answer(), flush]],
    ['while the flush is under way', [frame(true, entry()), `9 fsync(${WAL} <unfinished ...>`, answer()]],
    ['after a flush that failed', [frame(true, entry()), `9 fsync(${WAL}) = -1 EIO (Input/output error)`, answer()]],
    ['after a flush of another file', [frame(true, entry()), '9 fsync(6</s/journal.db>) = 0', answer()]],
    ['after a flush that was before the entry', [flush, frame(true, entry()), answer()]],
    ['after a flush in the middle of the transaction', [frame(false, entry()), flush, frame(true, PAGE), answer()]],
    [
      'after a flush that began before the last frame',
      [
        frame(false, entry()),
        `8 fsync(${WAL} <unfinished ...>`,
        frame(true, PAGE),
        '8 <... fsync resumed>) = 0',
        answer(),
      ],
    ],
    ['for an entry that was never written', [frame(true, entry(ID.replace('8', '9'))), flush, answer()]],
    [
      'for what stands in the answers kept for repetitions only',
      [frame(true, entry().replace(/.{7}kind.*?,/, '')), flush, answer()],
    ],
  ])('fails for an answer %s', async (_what, lines) => {
    const { early, proven } = await reportOf(...lines)
    expect(early).toHaveLength(1)
    expect(proven.size).toBe(0)
  })

  it('is refused where writes can pass it by', async () => {
    await expect(reportOf('9 io_uring_setup(256, {}) = 4')).rejects.toThrow('io_uring')
    await expect(reportOf(`9 mmap(NULL, 9, PROT_READ|PROT_WRITE, MAP_SHARED, ${WAL}, 0) = 0x7f`)).rejects.toThrow(
      'mapped',
    )
  })
})

describe('the agent under strace', () => {
  it(
    'answers after the flush, with one connection and with many',
    async (context) => {
      needsStrace(context)
      const directory = temporaryDirectory()
      for (const report of await traceReplies({ directory, decisions: 400, connections: [1, 32] })) {
        expect(report).toMatchObject({ early: [], unseen: 0 })
        expect(report.proven.size).toBeGreaterThanOrEqual(400)
      }
    },
    LIMIT_MS,
  )

  it.for(['unsynced-commits', 'early-answers'])(
    'is found out with the defect %s',
    { timeout: LIMIT_MS },
    async (defect, context) => {
      needsStrace(context)
      const preload = [new URL(`../../crash/defects/${defect}.ts`, import.meta.url)]
      const directory = temporaryDirectory()
      const [report] = await traceReplies({ directory, decisions: 50, connections: [8], preload })
      // No answer is sound with either of them: what the applications saw, and what was still on its way to them.
      expect(report?.early.length).toBeGreaterThanOrEqual(50)
      expect(report?.early).toHaveLength(report?.answers ?? 0)
      expect(report).toMatchObject({ unseen: 0, proven: new Set() })
    },
  )
})
