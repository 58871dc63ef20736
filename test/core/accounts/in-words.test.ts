import { describe, expect, it } from 'vitest'
import { actionAccount, limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import {
  accountInWords,
  counted,
  grouped,
  roughly,
  sizeInWords,
  tokensInWords,
} from '../../../src/core/accounts/in-words.ts'

const [SECOND, MINUTE, HOUR, DAY] = [1_000, 60_000, 3_600_000, 86_400_000]

describe('in words', () => {
  it('groups the digits of numbers', () => {
    expect([0, 999, 1_000, 12_345_678].map((count) => grouped(count))).toEqual(['0', '999', '1,000', '12,345,678'])
    expect(['1000.5', '-1234567.123456'].map((text) => grouped(text))).toEqual(['1,000.5', '-1,234,567.123456'])
    expect(counted(1_000, 'device', 'devices')).toBe('1,000 devices')
  })

  it.each([
    [0, '0 seconds'],
    [1_999, '1 second'],
    [2 * MINUTE - 1, '119 seconds'],
    [2 * MINUTE, '2 minutes'],
    [2 * HOUR - SECOND, '119 minutes'],
    [2 * HOUR, '2 hours'],
    [2 * DAY - 1, '47 hours'],
    [2 * DAY, '2 days'],
    [1_000.5 * DAY, '1000 days'],
  ])('%d ms are %s', (ms, expected) => {
    expect(roughly(ms)).toBe(expected)
  })

  it.each([
    [0, '0 B'],
    [0.5, '1 B'],
    [1, '1 B'],
    [1_023, '1023 B'],
    [1_024, '1.0 KiB'],
    [1_536, '1.5 KiB'],
    [99.9 * 1_024, '99.9 KiB'],
    [100 * 1_024, '100 KiB'],
    [3 * 1_024 ** 2, '3.0 MiB'],
    [5 * 1_024 ** 3, '5.0 GiB'],
    [2 * 1_024 ** 4, '2.0 TiB'],
    [5_000 * 1_024 ** 4, '5000 TiB'],
  ])('%d bytes are %s', (bytes, expected) => {
    expect(sizeInWords(bytes)).toBe(expected)
  })

  it.each([
    [0n, '0'],
    [1n, '0.000001'],
    [1_950_000n, '1.95'],
    [9_999_999n, '9.999999'],
    [10_000_000n, '10'],
    [10_049_999n, '10.04'],
    [999_999_999n, '999.99'],
    [99_436_949_999n, '99,436.9'],
    [1_234_567_000_000n, '1,234,567'],
    [-1_234_560_000n, '-1,234.5'],
  ])('%d micro-tokens are %s', (amount, expected) => {
    expect(tokensInWords(amount)).toBe(expected)
  })

  it.each([
    [lineAccount('i', 'ACT/1', 3), 'ACT/1'],
    [actionAccount('i', 'ACT/1', 'a 1'), 'ACT/1, action a 1'],
    [limitAccount('i', 'ACT/1', { type: 'user', value: 'ada' }, 3), 'ACT/1, user ada'],
    ['no account', 'no account'],
  ])('the account %s is %s', (account, expected) => {
    expect(accountInWords(account)).toBe(expected)
  })
})

it('a count has the singular for one only', () => {
  expect([0, 1, 2].map((count) => counted(count, 'entry', 'entries'))).toEqual(['0 entries', '1 entry', '2 entries'])
})
