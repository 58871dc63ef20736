// The files of the volatile log: what an earlier process left is read whole, or not believed at all.
import { appendFileSync, readFileSync, readdirSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { FrameWriter, readFrames } from '../../../../src/agent/platform/tmpfs/frame.ts'
import { TmpfsLog } from '../../../../src/agent/platform/tmpfs/volatile-log.ts'
import type { PendingEntry } from '../../../../src/agent/ledger/journal.ts'
import { missingFrom } from '../../../../src/agent/ledger/volatile-log.ts'
import { CHAIN_START, entryHash } from '../../../../src/protocol/signing.ts'
import { IDENTITY, entry, temporaryDirectory } from '../../harness.ts'

const A = 'line/i/a/0'
const START = { n: 0, head: CHAIN_START }
const OWNER = { deviceId: IDENTITY.deviceId, epoch: 4 }
const answer = { session: 'app', n: 1, requestHash: 'h', answer: '{"ä":"\\n"}', policyRevision: 3 }
const session = { id: 's', ended: false, since: 5, document: '{}', snapshot: '{"a":1}' }
const one = { ...entry(1, [{ account: A, amount: 5n }], { idempotencyRecord: answer }), session }
const two = entry(2, [{ account: A, amount: 7n }], { allowances: new Map([[A, 100n]]) })
const three = entry(3, [])
const headOf = (...entries: PendingEntry[]): string =>
  entries.reduce((head, { body }) => entryHash(head, body), CHAIN_START)

function logIn(directory: string, bootId = 'boot-1'): TmpfsLog {
  return new TmpfsLog({ directory, name: 'ledger', bootId })
}

function written(directory: string): TmpfsLog {
  const log = logIn(directory)
  log.begin(OWNER, START)
  log.write([one])
  log.write([two])
  return log
}

describe('the volatile log', () => {
  it('returns an entry as it was written, with its response for retries and its permitted overspend', () => {
    const directory = temporaryDirectory()
    written(directory)
    expect(logIn(directory).left()).toEqual({ bootId: 'boot-1', ...OWNER, anchors: [START], entries: [one, two] })
  })

  it('deletes each file once its entries are moved', () => {
    const directory = temporaryDirectory()
    const log = written(directory)
    log.turn()
    log.write([three])
    expect(readdirSync(directory)).toHaveLength(2)
    log.forget({ n: 2, head: headOf(one, two) })
    expect(readdirSync(directory)).toHaveLength(1)
    const left = logIn(directory).left()
    expect(left?.entries).toEqual([three])
    log.remove()
    expect(readdirSync(directory)).toEqual([])
    expect(logIn(directory).left()).toBeUndefined()
  })

  it('returns no entries that were not written', () => {
    const directory = temporaryDirectory()
    const log = written(directory)
    log.retract(2)
    log.write([{ ...two, body: `${two.body} ` }])
    expect(
      logIn(directory)
        .left()
        ?.entries.map(({ n, body }) => [n, body]),
    ).toEqual([
      [1, one.body],
      [2, `${two.body} `],
    ])
  })

  it('reverts entries on a full file system, and only those of the last write', () => {
    const directory = temporaryDirectory()
    const log = written(directory)
    const size = statSync(join(directory, readdirSync(directory)[0]!)).size
    expect(() => log.retract(1)).toThrow('invariant')
    log.retract(2)
    expect(statSync(join(directory, readdirSync(directory)[0]!)).size).toBeLessThan(size)
    expect(logIn(directory).left()?.entries).toEqual([one])
  })

  it('returns the entries before a cut, wherever its end was cut off', () => {
    const directory = temporaryDirectory()
    written(directory)
    const path = join(directory, readdirSync(directory)[0]!)
    const bytes = readFileSync(path)
    const found = new Set<number>()
    for (let length = bytes.length; length >= 0; length -= 1) {
      truncateSync(path, length)
      const entries = logIn(directory).left()?.entries ?? []
      expect(entries).toEqual([one, two].slice(0, entries.length))
      found.add(entries.length)
    }
    expect([...found]).toEqual([2, 1, 0])
  })

  it('is not trusted when any byte of it was altered', () => {
    const directory = temporaryDirectory()
    written(directory)
    const path = join(directory, readdirSync(directory)[0]!)
    const bytes = readFileSync(path)
    for (let at = 0; at < bytes.length; at += 7) {
      const altered = Buffer.from(bytes)
      altered[at] = (altered[at] ?? 0) ^ 0x20
      writeFileSync(path, altered)
      expect(logIn(directory).left()).toBeUndefined()
    }
    writeFileSync(path, bytes)
    expect(logIn(directory).left()?.entries).toHaveLength(2)
  })

  it('is not trusted when a file before the last one is cut off', () => {
    const directory = temporaryDirectory()
    const log = written(directory)
    log.turn()
    const first = join(directory, readdirSync(directory).sort()[0]!)
    truncateSync(first, readFileSync(first).length - 3)
    expect(logIn(directory).left()).toBeUndefined()
  })

  it('leaves files of others alone', () => {
    const directory = temporaryDirectory()
    writeFileSync(join(directory, 'ledger.x'), 'theirs')
    writeFileSync(join(directory, 'other.1'), 'theirs')
    written(directory).remove()
    expect(readdirSync(directory).sort()).toEqual(['ledger.x', 'other.1'])
  })
})

describe('a log that was left', () => {
  const left = { bootId: 'b', ...OWNER, anchors: [START], entries: [one, two, three] }
  const journal = (n: number, head: string, epoch = 4) => ({ identity: IDENTITY, lastEntry: n, entryHead: head, epoch })

  it('returns exactly the entries that the journal lacks', () => {
    expect(missingFrom(left, journal(0, CHAIN_START), 'b')).toEqual([one, two, three])
    expect(missingFrom(left, journal(2, headOf(one, two)), 'b')).toEqual([three])
    expect(missingFrom(left, journal(3, headOf(one, two, three)), 'b')).toEqual([])
  })

  it.each([
    ['of another boot', left, journal(2, headOf(one, two)), 'c'],
    ['of another device', { ...left, deviceId: 'other' }, journal(2, headOf(one, two)), 'b'],
    ['of another epoch', left, journal(2, headOf(one, two), 5), 'b'],
    ['of another history', left, journal(2, headOf(two, one)), 'b'],
    ['that ends before the journal does', left, journal(4, headOf(one, two, three, one)), 'b'],
    ['that begins after the journal ends', { ...left, anchors: [{ n: 2, head: 'x' }] }, journal(1, headOf(one)), 'b'],
    ['with a gap', { ...left, entries: [one, three] }, journal(0, CHAIN_START), 'b'],
    ['without a beginning', { ...left, anchors: [] }, journal(0, CHAIN_START), 'b'],
    ['that is not there', undefined, journal(0, CHAIN_START), 'b'],
  ])('%s tells nothing', (_what, found, snapshot, bootId) => {
    expect(missingFrom(found, snapshot, bootId)).toBeUndefined()
  })
})

describe('a frame', () => {
  it('contains texts of any length and language, one call after another', () => {
    const writer = new FrameWriter()
    const directory = temporaryDirectory()
    const path = join(directory, 'frames')
    const texts = ['', 'a', 'ü'.repeat(70_000), '日本\n']
    for (const text of texts) appendFileSync(path, writer.frame([text]))
    expect(readFrames(readFileSync(path))).toEqual({ texts, torn: false })
  })
})
