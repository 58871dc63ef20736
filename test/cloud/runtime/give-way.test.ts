import { expect, it } from 'vitest'
import { giveWayTo } from '../../../src/cloud/runtime/give-way.ts'

it('lets other events run once work has run for a while, and not before', async () => {
  let now = 0
  const others: number[] = []
  const giveWay = giveWayTo(
    () => now,
    (call) => {
      others.push(now)
      setImmediate(call)
    },
  )
  for (; now < 100; now += 1) await giveWay()
  expect(others).toEqual([0, 15, 30, 45, 60, 75, 90])
})

it('resumes in the sequence of the calls', async () => {
  const giveWay = giveWayTo(() => 0, setImmediate)
  const resumed: number[] = []
  await Promise.all([1, 2, 3].map(async (n) => giveWay().then(() => resumed.push(n))))
  expect(resumed).toEqual([1, 2, 3])
})
