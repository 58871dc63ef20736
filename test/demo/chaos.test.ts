import { expect, test } from 'vitest'
import { planChaos } from '../../src/demo/chaos.ts'
import { seeded } from '../../src/demo/random.ts'

const NETWORK = ['network slow', 'answers lost', 'network cut']

test('the same seed plans the same disturbances, another one others', () => {
  const plan = (seed: number) => planChaos(seeded(seed), 2_400, [800, 1_600])
  expect(plan(1)).toEqual(plan(1))
  expect(plan(1)).not.toEqual(plan(2))
})

test('plans disturbances in order within the day, and none of the network while it is cut off', () => {
  for (let seed = 1; seed <= 50; seed += 1) {
    const plan = planChaos(seeded(seed), 2_400, [800, 1_600])
    expect(plan.map(({ from }) => from)).toEqual(plan.map(({ from }) => from).sort((a, b) => a - b))
    for (const { kind, from, until } of plan) {
      expect(from).toBeGreaterThanOrEqual(1)
      expect(until).toBeLessThanOrEqual(2_400)
      if (!NETWORK.includes(kind)) continue
      expect(until).toBeGreaterThan(from)
      expect(until <= 800 || from >= 1_600).toBe(true)
    }
  }
})

test('the clock is set to another time each time, the right one included', () => {
  const errors = planChaos(seeded(1), 2_400, [800, 1_600])
    .filter(({ kind }) => kind === 'clock set')
    .map(({ clockErrorMs }) => clockErrorMs)
  expect(new Set(errors).size).toBe(errors.length)
  expect(errors).toContain(0)
})
