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

it('begin when they are first seen, and keep their beginning over a short absence', () => {
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
  expect(since()).toEqual([['TOKENS_USED_UP', 300]])
})

it('are logged when they begin and, after a minute without them, when they have ended', () => {
  const state = { found: [] as readonly HealthCondition[] }
  const { derived, logged, tick } = conditionsOf(state)
  derived.watch()
  const look = (...founds: readonly (readonly HealthCondition[])[]) => {
    for (const found of founds) {
      state.found = found
      tick()
    }
  }
  const begun = [
    ['TOKENS_LOW', 1, 'few'],
    ['TOKENS_USED_UP', 4, 'none'],
  ]
  look([], [low(1)], [], [], [], [], [], [low(2)], [low(3)], [usedUp(4)], [], [], [], [])
  expect(logged).toEqual(begun)
  look([], [])
  expect(logged).toEqual([
    ...begun,
    ['TOKENS_LOW', 1, 'a problem has ended'],
    ['TOKENS_USED_UP', 4, 'a problem has ended'],
  ])
  look([low(5)])
  expect(logged.at(-1)).toEqual(['TOKENS_LOW', 5, 'few'])
})
