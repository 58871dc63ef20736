import { expect, test } from 'vitest'
import { judgeAnswer, newerGrant, type SentSegment } from '../../../src/agent/sync/judge-answer.ts'
import type { SyncAnswer } from '../../../src/protocol/edge/sync.ts'

const HASH = 'a'.repeat(64)
const OTHER = 'b'.repeat(64)
const SENT: SentSegment = { deviceId: 'd', epoch: 2, seq: 5, hash: HASH }

const about = { deviceId: 'd', epoch: 2 }
const merged: SyncAnswer = {
  outcome: 'MERGED',
  ...about,
  seq: 5,
  hash: HASH,
  receipt: { epoch: 2, seq: 5, hash: HASH, entries: { from: 1, to: 0, head: HASH }, retainUntil: 1 },
  grant: null,
  policies: [],
  directives: [],
  releases: [],
  sessions: [],
  nextSyncMs: 1,
  time: 1,
}
const fenced: SyncAnswer = {
  outcome: 'FENCED',
  ...about,
  seq: 5,
  hash: HASH,
  forked: false,
  closed: false,
  receipt: null,
}
const known = (seq: number): SyncAnswer => ({ outcome: 'KNOWN', ...about, seq, hash: HASH })
const rejected = (hash: string): SyncAnswer => ({ outcome: 'REJECTED', ...about, hash, problem: 'p' })
const behind = (seq: number): SyncAnswer => ({ outcome: 'BEHIND', ...about, seq })

test.each<[string, SyncAnswer, object]>([
  ['merged', merged, { kind: 'MERGED' }],
  ['merged, of another device', { ...merged, deviceId: 'e' }, { kind: 'FOREIGN' }],
  ['merged, of another epoch', { ...merged, epoch: 1 }, { kind: 'FOREIGN' }],
  ['merged, another seq', { ...merged, seq: 4 }, { kind: 'FOREIGN' }],
  ['merged, another hash', { ...merged, hash: OTHER }, { kind: 'FOREIGN' }],
  ['known, as sent', known(5), { kind: 'KNOWN', seq: 5 }],
  ['known, and more that was sealed here', known(7), { kind: 'KNOWN', seq: 7 }],
  ['known, and more than was sealed here', known(8), { kind: 'RESTORED' }],
  ['known, but less than was sent', known(4), { kind: 'FOREIGN' }],
  ['behind', behind(3), { kind: 'BEHIND', resendFrom: 4 }],
  ['behind, with nothing before it', behind(0), { kind: 'BEHIND', resendFrom: 1 }],
  ['behind, though it is the next one', behind(4), { kind: 'FOREIGN' }],
  ['fenced', fenced, { kind: 'FENCED', acknowledged: true, closed: false, forked: false }],
  [
    'fenced and closed',
    { ...fenced, closed: true },
    { kind: 'FENCED', acknowledged: true, closed: true, forked: false },
  ],
  [
    'fenced, about another segment',
    { ...fenced, seq: 4, hash: OTHER },
    { kind: 'FENCED', acknowledged: false, closed: false, forked: false },
  ],
  [
    'fenced, about another segment with this number',
    { ...fenced, hash: OTHER },
    { kind: 'FENCED', acknowledged: false, closed: false, forked: false },
  ],
  [
    'forked, kept as evidence',
    { ...fenced, seq: 9, hash: OTHER, forked: true },
    { kind: 'FENCED', acknowledged: true, closed: false, forked: true },
  ],
  ['rejected', rejected(HASH), { kind: 'REJECTED', problem: 'p' }],
  ['rejected, another segment', rejected(OTHER), { kind: 'FOREIGN' }],
  ['fenced, of another epoch', { ...fenced, epoch: 3 }, { kind: 'FOREIGN' }],
])('%s', (_name, answer, expected) => {
  expect(judgeAnswer(answer, SENT, 7)).toMatchObject(expected)
})

test('a grant counts only with a higher term', () => {
  const grant = { term: 4, lifetimeMs: 1, expiresAt: 1, accounts: [] }
  expect(newerGrant(grant, 3)).toBe(grant)
  expect(newerGrant(grant, 4)).toBeNull()
  expect(newerGrant(grant, 5)).toBeNull()
  expect(newerGrant(null, 0)).toBeNull()
})
