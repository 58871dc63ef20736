// Requests that wait for tokens: which segment carries them, what they hear, and when they stop to wait.
import { setImmediate as nextTurn } from 'node:timers/promises'
import { expect, it } from 'vitest'
import type { PoolBalances } from '../../../src/agent/access/local-decisions.ts'
import { WaitingRequests } from '../../../src/agent/sync/waiting-requests.ts'
import type { Need } from '../../../src/core/accounts/grant.ts'
import { MICRO_MAX } from '../../../src/core/pricing/amount.ts'
import {
  NEED_ACCOUNTS_MAX,
  SEGMENT_NEEDS_BYTES_MAX,
  SEGMENT_NEEDS_MAX,
  SEGMENT_NEED_POSTINGS_MAX,
} from '../../../src/protocol/edge/sync.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { FakeTime } from './fake-time.ts'

const POOLS: PoolBalances = new Map()
const NONE_NEW = { areAmong: () => false, refusalOf: () => null }

class Waiters {
  readonly time = new FakeTime()
  readonly requests = new WaitingRequests(this.time)
  /** What each request heard, by its name. */
  readonly heard: Record<string, PoolBalances | null> = {}

  wait(name: string, needs: readonly Need[] = [[{ account: name, amount: 1n }]], patienceMs = 1_000): void {
    const accounts = [...needs.flat().map(({ account }) => account), `limit of ${name}`]
    void this.requests.wait({ needs, accounts }, patienceMs).then((word) => (this.heard[name] = word))
  }
}

it('only requests that a segment carried get its response, and the first response counts', async () => {
  const waiters = new Waiters()
  waiters.wait('a')
  expect(waiters.requests.hasNew).toBe(true)
  expect(waiters.requests.carry(NONE_NEW)).toEqual({
    needs: [[{ account: 'a', amount: 1n }]],
    accounts: new Set(['a', 'limit of a']),
  })
  expect(waiters.requests.hasNew).toBe(false)
  expect(waiters.requests.carry(NONE_NEW)).toEqual({ needs: [], accounts: new Set() })
  waiters.wait('b')
  waiters.requests.receive(POOLS)
  waiters.requests.receive(new Map())
  waiters.requests.resolveCarried()
  await nextTurn()
  expect(waiters.heard).toEqual({ a: POOLS })
  expect(waiters.heard['a']).toBe(POOLS)
  waiters.requests.resolveAll()
  await nextTurn()
  expect(waiters.heard).toEqual({ a: POOLS, b: null })
  expect(waiters.time.untilNext).toBe(Infinity)
})

it('a request waits up to its deadline', async () => {
  const waiters = new Waiters()
  waiters.wait('a', undefined, 500)
  waiters.wait('b')
  waiters.time.advance(499)
  await nextTurn()
  expect(waiters.heard).toEqual({})
  waiters.time.advance(1)
  await nextTurn()
  expect(waiters.heard).toEqual({ a: null })
})

it('the tokens that requests need are summed by account, up to the largest count', () => {
  const waiters = new Waiters()
  waiters.wait('1', [[{ account: 'a', amount: 3n }], [{ account: 'b', amount: 4n }]])
  waiters.wait('2', [[{ account: 'a', amount: 2n }]])
  waiters.wait('3', [[{ account: 'b', amount: MICRO_MAX }]])
  expect(waiters.requests.needed()).toEqual(
    new Map([
      ['a', 5n],
      ['b', MICRO_MAX],
    ]),
  )
})

it('requests that do not fit in a segment are sent with the next one, behind earlier ones', () => {
  const needs = (count: number): readonly Need[] => Array.from({ length: count }, () => [{ account: 'a', amount: 1n }])
  const waiters = new Waiters()
  waiters.wait('1', needs(SEGMENT_NEEDS_MAX - 1))
  waiters.wait('2', needs(2))
  waiters.wait('3', needs(1))
  expect([waiters.requests.carry(NONE_NEW).needs.length, waiters.requests.carry(NONE_NEW).needs.length]).toEqual([
    SEGMENT_NEEDS_MAX - 1,
    3,
  ])

  const long = (name: string): readonly Need[] => [[{ account: name.padEnd(200_000, 'x'), amount: 1n }]]
  const bytes = new Waiters()
  for (const name of ['1', '2', '3']) bytes.wait(name, long(name))
  expect([bytes.requests.carry(NONE_NEW).needs, bytes.requests.carry(NONE_NEW).needs]).toEqual([
    [...long('1'), ...long('2')],
    long('3'),
  ])
})

it('requests of known requesters are sent before earlier ones of new requesters', () => {
  const waiters = new Waiters()
  const needs: readonly Need[] = Array.from({ length: SEGMENT_NEEDS_MAX / 2 }, () => [{ account: 'a', amount: 1n }])
  for (const name of ['new 1', 'new 2', 'new 3', 'known']) waiters.wait(name, needs)
  const areAmong = (accounts: readonly string[]) => accounts.some((account) => account.startsWith('limit of new'))
  const carried = () => [...waiters.requests.carry({ ...NONE_NEW, areAmong }).accounts]
  expect([carried(), carried()]).toEqual([
    ['a', 'limit of known', 'limit of new 1'],
    ['a', 'limit of new 2', 'limit of new 3'],
  ])
})

it('a request whose accounts are refused is not sent, and those behind it are', async () => {
  const waiters = new Waiters()
  const refusal = new CodedError('REQUESTERS_LIMITED', 'too many')
  const refused = waiters.requests.wait({ needs: [[{ account: 'a', amount: 1n }]], accounts: ['a', 'new'] }, 1_000)
  waiters.wait('b')
  const named: (readonly string[])[] = []
  const refusalOf = (accounts: Iterable<string>) => {
    const each = [...accounts]
    named.push(each)
    return each.includes('new') ? refusal : null
  }
  const { needs } = waiters.requests.carry({ ...NONE_NEW, refusalOf })
  expect(needs).toEqual([[{ account: 'b', amount: 1n }]])
  expect(named).toEqual([
    ['a', 'new'],
    ['b', 'limit of b'],
  ])
  await expect(refused).rejects.toBe(refusal)
  waiters.requests.resolveAll()
  expect(waiters.time.untilNext).toBe(Infinity)
})

it('requests that together need more amounts than fit a segment go to the cloud one after another', () => {
  const waiters = new Waiters()
  const need: Need = Array.from({ length: NEED_ACCOUNTS_MAX }, () => ({ account: 'a', amount: 1n }))
  for (const name of ['1', '2', '3']) waiters.wait(name, [need])
  const fitting = SEGMENT_NEED_POSTINGS_MAX / NEED_ACCOUNTS_MAX
  expect(waiters.requests.carry(NONE_NEW).needs).toHaveLength(fitting)
  expect(waiters.requests.carry(NONE_NEW).needs).toHaveLength(3 - fitting)
})

it('a request that fits no segment is refused', () => {
  const waiters = new Waiters()
  const need = (count: number): Need => Array.from({ length: count }, () => ({ account: 'a', amount: 1n }))
  const refused = (...needs: readonly Need[]): boolean => {
    try {
      waiters.wait('a', needs)
      return false
    } catch (error) {
      expect(error).toMatchObject({ code: 'REQUEST_TOO_LARGE' })
      return true
    }
  }
  expect(refused(...Array.from({ length: SEGMENT_NEEDS_MAX }, () => need(1)))).toBe(false)
  expect(refused(...Array.from({ length: SEGMENT_NEEDS_MAX + 1 }, () => need(1)))).toBe(true)
  expect(refused(need(NEED_ACCOUNTS_MAX))).toBe(false)
  expect(refused(need(1), need(NEED_ACCOUNTS_MAX + 1))).toBe(true)
  const full = SEGMENT_NEED_POSTINGS_MAX - NEED_ACCOUNTS_MAX
  expect(refused(need(NEED_ACCOUNTS_MAX), need(full))).toBe(false)
  expect(refused(need(NEED_ACCOUNTS_MAX), need(full), need(1))).toBe(true)
  expect(refused([{ account: 'x'.repeat(SEGMENT_NEEDS_BYTES_MAX), amount: 1n }])).toBe(true)
})
