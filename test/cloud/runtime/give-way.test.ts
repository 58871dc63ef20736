import { expect, it } from 'vitest'
import { giveWayTo } from '../../../src/cloud/runtime/give-way.ts'

let now = 0
const stopwatch = () => now
const turn = () => new Promise((resolve) => setImmediate(resolve))

it('lets other events run once a turn of the event loop has lasted for a while, and not before', async () => {
  const giveWay = giveWayTo(stopwatch, setImmediate)
  const paused: number[] = []
  for (now = 0; now < 64; now += 1) {
    const pause = giveWay()
    if (pause !== undefined) paused.push(now)
    await pause
  }
  expect(paused).toEqual([15, 31, 47, 63])
})

it('does not count the time between turns', async () => {
  const giveWay = giveWayTo(stopwatch, setImmediate)
  for (const pauses of [giveWay(), (await turn(), (now += 1_000), giveWay())]) expect(pauses).toBeUndefined()
})

it('resumes in the sequence of the calls', async () => {
  const giveWay = giveWayTo(stopwatch, setImmediate)
  expect(giveWay()).toBeUndefined()
  now += 15
  const resumed: number[] = []
  await Promise.all([1, 2, 3].map(async (n) => giveWay()?.then(() => resumed.push(n))))
  expect(resumed).toEqual([1, 2, 3])
})
