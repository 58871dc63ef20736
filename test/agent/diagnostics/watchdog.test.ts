// The supervisor hears that the agent is well after each look that succeeds, and of nothing else.
import { setImmediate as turn } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { startWatchdog } from '../../../src/agent/diagnostics/watchdog.ts'
import { FakeTime } from '../sync/fake-time.ts'

function fixture() {
  const time = new FakeTime()
  const heard = { well: 0, ill: [] as unknown[] }
  const world = { look: async (): Promise<boolean> => true }
  const stop = startWatchdog({
    everyMs: 10_000,
    look: () => world.look(),
    onWell: () => void (heard.well += 1),
    onIll: (error) => heard.ill.push(error),
    timers: time,
  })
  const pass = async (looks: number): Promise<void> => {
    for (let n = 0; n < looks; n += 1) {
      await turn()
      time.advance(10_000)
    }
    await turn()
  }
  return { heard, world, stop, pass, time }
}

describe('the watchdog', () => {
  it('is fed at once and at each interval', async () => {
    const { heard, pass } = fixture()
    await pass(3)
    expect(heard).toEqual({ well: 4, ill: [] })
  })

  it('is not fed after a look that fails or throws, which is reported once, and is fed again when one succeeds', async () => {
    const { heard, world, pass } = fixture()
    await pass(0)
    world.look = async () => false
    await pass(2)
    world.look = async () => Promise.reject(new Error('broken'))
    await pass(1)
    expect(heard).toEqual({ well: 1, ill: [null] })
    world.look = async () => true
    await pass(1)
    expect(heard.well).toBe(2)
  })

  it('is not fed while a check hangs, and starts no second check', async () => {
    const { heard, world, pass } = fixture()
    await pass(0)
    let looks = 0
    world.look = () => {
      looks += 1
      return new Promise(() => undefined)
    }
    await pass(5)
    expect(heard.well).toBe(1)
    expect(looks).toBe(1)
  })

  it('is not fed after a stop', async () => {
    const { heard, stop, pass, time } = fixture()
    await pass(1)
    stop()
    await pass(3)
    expect(heard.well).toBe(2)
    expect(time.untilNext).toBe(Infinity)
  })
})
