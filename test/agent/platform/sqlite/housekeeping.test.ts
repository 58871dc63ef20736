import { describe, expect, it } from 'vitest'
import {
  Housekeeping,
  IDLE_MS,
  STEP_EVERY_MS,
  TRY_AGAIN_MS,
} from '../../../../src/agent/platform/sqlite/housekeeping.ts'
import { FakeTime } from '../../sync/fake-time.ts'

function house(todo: number) {
  const time = new FakeTime()
  const steps: number[] = []
  const left = { todo }
  const housekeeping = new Housekeeping({
    step: () => {
      steps.push(time.sinceBoot())
      if (left.todo > 0) left.todo -= 1
      return left.todo > 0
    },
    now: () => time.sinceBoot(),
    timers: time,
  })
  return { time, steps, left, housekeeping }
}

describe('housekeeping', () => {
  it('waits for a pause, then takes step after step until there is nothing more to do', () => {
    const { time, steps, housekeeping } = house(5)
    housekeeping.answered()
    time.advance(IDLE_MS - 1)
    housekeeping.answered()
    time.advance(IDLE_MS - 1)
    expect(steps).toHaveLength(0)
    time.advance(1)
    expect(steps).toHaveLength(5)
    time.advance(TRY_AGAIN_MS - 1)
    expect(steps).toHaveLength(5)
    time.advance(1)
    expect(steps).toHaveLength(6)
  })

  it('runs a call first that arrives between two steps', () => {
    const { time, steps, left, housekeeping } = house(5)
    const take = left.todo
    housekeeping.answered()
    time.advance(IDLE_MS)
    expect(steps).toHaveLength(take)
    left.todo = 2
    housekeeping.answered()
    time.advance(IDLE_MS - 1)
    expect(steps).toHaveLength(take)
    time.advance(1)
    expect(steps).toHaveLength(take + 2)
  })

  it('takes one step in ten seconds where calls never pause', () => {
    const { time, steps, housekeeping } = house(1_000)
    for (let ms = 0; ms < 60_000; ms += 50) {
      time.advance(50)
      housekeeping.answered()
    }
    expect(steps).toHaveLength(60_000 / STEP_EVERY_MS)
  })

  it('does nothing more when it is stopped', () => {
    const { time, steps, housekeeping } = house(5)
    housekeeping.answered()
    housekeeping.stop()
    time.advance(TRY_AGAIN_MS)
    expect(steps).toHaveLength(0)
  })
})
