/** The loader reads strictly: a case that could be misread stops the whole corpus. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { accountOf, availableOfCase } from './case-domain.ts'
import { loadCorpus } from './load-corpus.ts'

let directory: string
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'corpus-'))
})
afterEach(() => {
  rmSync(directory, { recursive: true })
})

const plain = {
  name: 'A case with nothing in it but what must be',
  facts: { lineItems: [], rateTables: [] },
  clock: { now: '2026-06-01T12:00:00.000Z' },
  request: { requester: { type: 'user', value: 'LisaBarry' }, items: [{ item: 'Scan', count: '1' }] },
  mode: 'BEST_EFFORT',
  want: { items: [{ status: 'ITEM_NOT_RATED' }], postings: [] },
}

const write = (file: string, content: unknown) => {
  writeFileSync(join(directory, file), typeof content === 'string' ? content : JSON.stringify(content))
}

test('cases come in the order of their file names, with the defaults filled in', () => {
  write('b.json', plain)
  write('a.json', plain)
  write('notes.txt', 'not a case')
  const corpus = loadCorpus(directory)
  expect(corpus.map((each) => each.file)).toEqual(['a', 'b'])
  expect(corpus[0]?.facts).toMatchObject({ timezoneTolerant: false, undecidedClock: 'refuse', conditions: [] })
  expect(corpus[0]?.clock.now).toBe(Date.UTC(2026, 5, 1, 12))
})

test.each([
  ['an unknown field', { ...plain, clcok: {} }],
  ['an amount that is a number', { ...plain, want: { items: [], postings: [{ line: 'A', amount: 3 }] } }],
  ['an instant without its milliseconds', { ...plain, clock: { now: '2026-06-01T12:00:00Z' } }],
  ['a status that does not exist', { ...plain, want: { items: [{ status: 'DENIED' }], postings: [] } }],
  ['a grant without its parts', { ...plain, want: { items: [{ status: 'GRANTED' }], postings: [] } }],
])('a case with %s is refused by the name of its file', (_what, content) => {
  write('odd.json', content)
  expect(() => loadCorpus(directory)).toThrow(/odd\.json/)
})

test('a dictionary keeps a key called __proto__ as its own', () => {
  const text = JSON.stringify(plain).replace('"LisaBarry"', '"LisaBarry","dictionary":{"__proto__":"x"}')
  write('proto.json', text)
  expect(Object.keys(loadCorpus(directory)[0]?.request.requester.dictionary ?? {})).toEqual(['__proto__'])
})

test('the rooms of a case are its caps less what is used, and no more than a grant', () => {
  const requester = { type: 'user', value: 'LisaBarry' }
  const end = { start: '2026-01-01T00:00:00.000Z', end: '2026-12-31T00:00:00.000Z' }
  const facts = {
    rateTables: [],
    lineItems: [
      { id: 'plain', ...end, quantity: 10, overdraft: 5, used: '2.5' },
      { id: 'unlimited', ...end, quantity: 10, overdraft: 'Unlimited' },
      { id: 'capped', ...end, quantity: 10, actions: [{ name: 'all', action: 'ALLOW', allocation: '4', used: '1' }] },
      { id: 'granted', ...end, quantity: 10 },
      {
        id: 'limited',
        ...end,
        quantity: 10,
        consumptionLimit: {
          limit: '6',
          frequency: 'DAILY',
          periods: [{ index: 0, from: null, until: null }],
          used: [{ requester, period: 0, used: '2' }],
        },
      },
    ],
    grants: [{ line: 'granted', left: '1', shortage: 'GRANT' }],
  }
  write('rooms.json', { ...plain, facts })
  const [rooms] = loadCorpus(directory)
  if (rooms === undefined) throw new Error('one case was written')
  const left = (name: Parameters<typeof accountOf>[1]) => availableOfCase(rooms)(accountOf(rooms, name))
  expect(left({ line: 'plain' })).toEqual({ left: 12_500_000n, shortage: 'POOL' })
  expect(left({ line: 'unlimited' }).left).toBe('UNLIMITED')
  expect(left({ action: 'capped: all' }).left).toBe(3_000_000n)
  expect(left({ line: 'granted' })).toEqual({ left: 1_000_000n, shortage: 'GRANT' })
  expect(left({ limit: 'limited', requester }).left).toBe(4_000_000n)
  expect(left({ limit: 'limited', requester: { type: 'user', value: 'JohnDoe' } }).left).toBe(6_000_000n)
  expect(() => left({ line: 'nowhere' })).toThrow(/no account/)
})
