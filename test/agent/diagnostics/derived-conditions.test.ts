// Conditions that nothing raises: they follow from the clock, the tokens, the rules and the last backup.
import { expect, it } from 'vitest'
import { DerivedConditions } from '../../../src/agent/diagnostics/derived-conditions.ts'
import type { HealthCondition } from '../../../src/agent/runtime/health.ts'

const low = (since: number) => ({ subject: 'tokens of LW-1', code: 'TOKENS_LOW', message: 'few', since }) as const
const usedUp = (since: number) => ({ ...low(since), code: 'TOKENS_USED_UP', message: 'none' }) as const

function conditionsOf(state: { found: readonly HealthCondition[] }) {
  const logged: unknown[] = []
  let next: () => void = () => undefined
  const derived = new DerivedConditions({
    find: () => state.found,
    log: { warn: ({ code, since }, message) => void logged.push([code, since, message]) },
    timers: {
      after: (_ms, call) => {
        next = call
        return () => undefined
      },
    },
  })
  return { derived, logged, tick: () => next() }
}

it('begin when they are first seen', () => {
  const state = { found: [low(100)] as readonly HealthCondition[] }
  const { derived } = conditionsOf(state)
  const since = () => derived.list().map((each) => [each.code, each.since])
  expect(since()).toEqual([['TOKENS_LOW', 100]])
  state.found = [low(200)]
  expect(since()).toEqual([['TOKENS_LOW', 100]])
  state.found = [usedUp(300)]
  expect(since()).toEqual([['TOKENS_USED_UP', 300]])
  state.found = []
  expect(since()).toEqual([])
  state.found = [usedUp(400)]
  expect(since()).toEqual([['TOKENS_USED_UP', 400]])
})

it('are logged when they begin and end, also if no one looks at the status', () => {
  const state = { found: [] as readonly HealthCondition[] }
  const { derived, logged, tick } = conditionsOf(state)
  derived.watch()
  for (const found of [[], [low(1)], [low(2)], [usedUp(3)], []]) {
    state.found = found
    tick()
  }
  expect(logged).toEqual([
    ['TOKENS_LOW', 1, 'few'],
    ['TOKENS_USED_UP', 3, 'none'],
    ['TOKENS_LOW', 1, 'a problem has ended'],
    ['TOKENS_USED_UP', 3, 'a problem has ended'],
  ])
})
