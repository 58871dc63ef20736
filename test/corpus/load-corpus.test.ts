/** The loader is strict: an ambiguous case fails the whole corpus. */
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
  name: 'A case that gives only what is required',
  facts: { lineItems: [] },
  request: { items: [{ item: 'Scan', count: '1' }] },
  want: { items: [{ status: 'NO_USABLE_LINE_ITEM' }], postings: [] },
}

const write = (file: string, content: unknown) => {
  writeFileSync(join(directory, file), typeof content === 'string' ? content : JSON.stringify(content))
}

test('cases come in the order of their file names, with the defaults filled in', () => {
  write('b.json', plain)
  write('a.json', { ...plain, facts: { lineItems: [{ id: 'A', quantity: 1 }] } })
  write('notes.txt', 'not a case')
  const corpus = loadCorpus(directory)
  expect(corpus.map((each) => each.file)).toEqual(['a', 'b'])
  expect(corpus[0]).toMatchObject({
    facts: {
      timezoneTolerant: false,
      undecidedClock: 'refuse',
      conditions: [],
      lineItems: [{ start: Date.UTC(2026, 0, 1), end: Date.UTC(2027, 0, 1) - 1 }],
      rateTables: [{ effectiveFrom: Date.UTC(2026, 0, 1), items: [{ name: 'Scan', rate: '1' }] }],
    },
    clock: { now: Date.UTC(2026, 5, 1, 12) },
    request: { requester: { type: 'user', value: 'LisaBarry' } },
    mode: 'BEST_EFFORT',
  })
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
  const text = JSON.stringify(plain).replace('"request":{', '"request":{"requester":{"dictionary":{"__proto__":"x"}},')
  write('proto.json', text)
  expect(Object.keys(loadCorpus(directory)[0]?.request.requester.dictionary ?? {})).toEqual(['__proto__'])
})

test('the balances of a case are its caps minus the use, and at most the grants', () => {
  const requester = { type: 'user', value: 'LisaBarry' }
  const facts = {
    lineItems: [
      { id: 'plain', quantity: 10, overdraft: 5, used: '2.5' },
      { id: 'unlimited', quantity: 10, overdraft: 'Unlimited' },
      { id: 'capped', quantity: 10, actions: [{ name: 'all', action: 'ALLOW', allocation: '4', used: '1' }] },
      { id: 'granted', quantity: 10 },
      {
        id: 'limited',

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
  write('balances.json', { ...plain, facts })
  const [loaded] = loadCorpus(directory)
  if (loaded === undefined) throw new Error('one case was written')
  const left = (name: Parameters<typeof accountOf>[1]) => availableOfCase(loaded)(accountOf(loaded, name))
  expect(left({ line: 'plain' })).toEqual({ left: 12_500_000n, shortage: 'POOL' })
  expect(left({ line: 'unlimited' }).left).toBe('UNLIMITED')
  expect(left({ action: 'capped: all' }).left).toBe(3_000_000n)
  expect(left({ line: 'granted' })).toEqual({ left: 1_000_000n, shortage: 'GRANT' })
  expect(left({ limit: 'limited', requester }).left).toBe(4_000_000n)
  expect(left({ limit: 'limited', requester: { type: 'user', value: 'JohnDoe' } }).left).toBe(6_000_000n)
  expect(() => left({ line: 'nowhere' })).toThrow(/no account/)
})
