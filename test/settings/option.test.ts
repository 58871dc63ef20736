import { expect, test } from 'vitest'
import { z } from 'zod'
import { nearest } from '../../src/settings/nearest.ts'
import {
  duration,
  integer,
  namedOptions,
  secret,
  structure,
  text,
  toggle,
  url,
  words,
} from '../../src/settings/option.ts'
import { BYTES, DURATION } from '../../src/settings/quantity.ts'

test('the names of an option follow from its place in the table', () => {
  const [plain, hidden] = namedOptions({
    envPrefix: 'TALLYGATE_CLOUD',
    options: {
      http: { bodyMax: integer({ default: 1, min: 0, max: 9, help: '' }) },
      store: { password: secret({ help: '' }) },
    },
  })
  expect(plain).toMatchObject({
    key: 'http.body_max',
    env: 'TALLYGATE_CLOUD_HTTP_BODY_MAX',
    flag: 'http-body-max',
    path: ['http', 'bodyMax'],
  })
  expect(hidden).toMatchObject({
    key: 'store.password_file',
    env: 'TALLYGATE_CLOUD_STORE_PASSWORD_FILE',
    flag: 'store-password-file',
  })
})

test('a default that the option itself would refuse is a mistake in the table', () => {
  expect(() => integer({ default: 10, min: 1, max: 9, help: '' })).toThrow(RangeError)
  expect(() => duration({ default: '2d', min: '1s', max: '24h', help: '' })).toThrow(RangeError)
  expect(() => duration({ default: '30', min: '1s', max: '24h', help: '' })).toThrow(RangeError)
  expect(() => text({ default: 'a\nb', help: '' })).toThrow(RangeError)
})

test('a list of words is an array in the file, and separated by commas elsewhere', () => {
  const option = words(['a', 'b', 'c'], { default: ['a', 'c'], help: '' })
  expect(option.defaultText).toBe('a,c')
  expect(option.fromText('c,a', '')).toEqual(['a', 'c'])
  expect(option.fromToml(['b'])).toEqual(['b'])
  for (const wrong of ['', 'a,', 'a,d', 'a,a', 'a b']) expect(option.fromText(wrong, '')).toBeUndefined()
  for (const wrong of ['a', [], ['a', 'a'], [1], null]) expect(option.fromToml(wrong)).toBeUndefined()
})

test('a structure is TOML in the file and JSON elsewhere, and fits its schema in both', () => {
  const option = structure(z.array(z.strictObject({ a: z.int() })), { help: '', takes: 'a list' })
  expect(option.default).toBeNull()
  expect(option.fromText('[{"a":1}]', '')).toEqual([{ a: 1 }])
  expect(option.fromToml([{ a: 1 }])).toEqual([{ a: 1 }])
  for (const wrong of ['', '{', '{}', '[{"a":"1"}]', '[{"a":1,"b":2}]'])
    expect(option.fromText(wrong, '')).toBeUndefined()
  expect(option.fromToml({})).toBeUndefined()
  expect(option.wrongPart([{ a: '1' }], 'file: key')).toBe('file: key[0].a: must be a number')
  expect(option.wrongPart('[{}]', '--key')).toBe('--key[0].a: is missing')
  for (const whole of [{}, '{}', '{']) expect(option.wrongPart(whole, '--key')).toBeNull()
})

test('a URL names several hosts only where it may', () => {
  const [one, several] = [{}, { hosts: 'several' } as const].map((more) =>
    url({ default: null, schemes: ['postgres'], help: '', ...more }),
  )
  const addresses = ['postgres://u:a%2Cb@h:1/x', 'postgres:///x?host=/run', 'postgres://u@[::1]:1,b:2/x?y=1,2']
  expect(addresses.map((address) => one?.fromText(address, ''))).toEqual([addresses[0], addresses[1], undefined])
  expect(addresses.map((address) => several?.fromText(address, ''))).toEqual(addresses)
  for (const wrong of ['postgres://a:x,b/x', 'nats://a:1,b:2', 'postgres'])
    expect(several?.fromText(wrong, '')).toBeUndefined()
})

test('defaults are shown as an operator writes them', () => {
  expect(duration({ default: '90000ms', min: '1s', max: '24h', help: '' }).defaultText).toBe('90s')
  expect(toggle({ default: false, help: '' }).defaultText).toBe('false')
  expect(text({ default: null, help: '' }).defaultText).toBeNull()
})

test.each([
  ['250ms', 250],
  ['30s', 30_000],
  ['5m', 300_000],
  ['24h', 86_400_000],
  ['7 d', 604_800_000],
  ['0', 0],
  ['30', undefined],
  ['1.5h', undefined],
  ['-1s', undefined],
  ['1 week', undefined],
  ['1constructor', undefined],
  ['999999999999999d', undefined],
])('the duration %s is %s ms', (written, ms) => {
  expect(DURATION.parse(written)).toBe(ms)
  if (ms !== undefined) expect(DURATION.parse(DURATION.format(ms))).toBe(ms)
})

test.each([
  ['512B', 512],
  ['64KiB', 65_536],
  ['1MiB', 1_048_576],
  ['1MB', undefined],
  ['12', undefined],
])('the size %s is %s bytes', (written, size) => {
  expect(BYTES.parse(written)).toBe(size)
  if (size !== undefined) expect(BYTES.parse(BYTES.format(size))).toBe(size)
})

test('the nearest word is found for a typing error and for nothing else', () => {
  expect(nearest('agnet', ['cloud', 'agent'])).toBe('agent')
  expect(nearest('STATUS', ['status'])).toBe('status')
  expect(nearest('xyz', ['cloud', 'agent'])).toBeUndefined()
})
