import { describe, expect, it } from 'vitest'
import {
  LABELS_MAX,
  changedLabels,
  labelChange,
  labels,
  labelsIn,
  labelsQuery,
  labelsText,
  parseLabel,
} from '../../../src/protocol/edge/labels.ts'

const codeOf = (run: () => unknown): unknown => {
  try {
    return run()
  } catch (error) {
    return (error as { readonly code: string }).code
  }
}

describe('a label', () => {
  it.each([
    ['site=berlin', 'site', 'berlin'],
    ['line=3', 'line', '3'],
    ['owner=ops@example.com', 'owner', 'ops@example.com'],
    ['Werk=München', 'Werk', 'München'],
    ['site=Mu\u0308nchen', 'site', 'München'],
  ])('%s has a key and a value', (text, key, value) => {
    expect(parseLabel(text)).toEqual({ key, value })
  })

  it.each(['site', '=berlin', 'site=', 'a=b=c', 'site=two words', 'a=b,c', '-a=b', `a=${'x'.repeat(64)}`, 'a=\u0000'])(
    '%j is refused',
    (text) => {
      expect(codeOf(() => parseLabel(text))).toBe('LABEL_INVALID')
    },
  )
})

it('the labels of a query are separated by commas or spaces', () => {
  expect(labelsQuery.parse('site=berlin, line=3')).toEqual([
    { key: 'site', value: 'berlin' },
    { key: 'line', value: '3' },
  ])
  expect(labelsQuery.safeParse('site').success).toBe(false)
})

it('labels read back as they are written', () => {
  const written = { line: '3', site: 'berlin' }
  expect(labelsIn(labelsText(written))).toEqual(written)
})

it('a label with several values is refused', () => {
  expect(() => labelsIn('site=berlin line=3 site=paris')).toThrow('The label site has several values.')
})

describe('a change', () => {
  it('keeps labels that it does not name', () => {
    const before = { a: '1', b: '2', c: '3' }
    expect(changedLabels(before, { set: { b: '9', d: '4' }, remove: ['c', 'x'] })).toEqual({ a: '1', b: '9', d: '4' })
  })

  it.each(['b', 'x'])('sets no label that it also removes: %s', (key) => {
    expect(() => changedLabels({ a: '1', b: '2' }, { set: { [key]: '9' }, remove: ['a', key] })).toThrow(
      `The label ${key} cannot be set and removed at once.`,
    )
  })

  it.each(['constructor', 'toString', 'hasOwnProperty'])('sets and removes a label with the key %s', (key) => {
    const labeled = changedLabels({ a: '1' }, { set: { [key]: 'x' } })
    expect(labeled).toEqual({ a: '1', [key]: 'x' })
    expect(changedLabels(labeled, { set: { b: '2' }, remove: [key] })).toEqual({ a: '1', b: '2' })
  })

  it('leads to a limited number of labels', () => {
    const many = Object.fromEntries(Array.from({ length: LABELS_MAX }, (_, n) => [`k${n}`, 'v']))
    expect(labels.safeParse(many).success).toBe(true)
    expect(labels.safeParse({ ...many, more: 'v' }).success).toBe(false)
    expect(codeOf(() => changedLabels(many, { set: { more: 'v' } }))).toBe('LABEL_INVALID')
    expect(Object.keys(changedLabels(many, { set: { more: 'v' }, remove: ['k0'] }))).toHaveLength(LABELS_MAX)
  })

  it('names only valid keys and values', () => {
    expect(labelChange.safeParse({ set: { 'two words': 'v' } }).success).toBe(false)
    expect(labelChange.safeParse({ set: { key: '' } }).success).toBe(false)
  })
})
