import { describe, expect, it } from 'vitest'
import { Batcher } from '../../../src/cloud/runtime/batcher.ts'

/** A desk whose batches are finished by the test. */
function openBatcher(weightMax = 3, weightOf: (order: string) => number = () => 1) {
  const batches: { readonly orders: readonly string[]; readonly finish: PromiseWithResolvers<undefined> }[] = []
  const waiting: PromiseWithResolvers<undefined>[] = []
  const batcher = new Batcher<string, string>({
    defer: setImmediate,
    weightMax,
    weightOf,
    async serve(orders) {
      const finish = Promise.withResolvers<undefined>()
      batches.push({ orders, finish })
      for (const each of waiting.splice(0)) each.resolve(undefined)
      await finish.promise
      return orders.map((order) =>
        order === 'bad' ? { status: 'rejected', reason: order } : { status: 'fulfilled', value: order.toUpperCase() },
      )
    },
  })
  /** The batch of this number, as soon as it is under way. */
  const batch = async (index: number) => {
    while (batches[index] === undefined) {
      const arrival = Promise.withResolvers<undefined>()
      waiting.push(arrival)
      await arrival.promise
    }
    return batches[index]
  }
  return { batcher, batch, batches }
}

describe('a desk', () => {
  it('serves those who come while a batch is under way together in the next one, in the order of arrival', async () => {
    const { batcher, batch, batches } = openBatcher()
    const first = batcher.ask('a')
    const { finish } = await batch(0)
    const others = ['b', 'c'].map((order) => batcher.ask(order))
    expect(batches).toHaveLength(1)
    finish.resolve(undefined)
    expect(await first).toBe('A')
    const next = await batch(1)
    expect(next.orders).toEqual(['b', 'c'])
    next.finish.resolve(undefined)
    expect(await Promise.all(others)).toEqual(['B', 'C'])
  })

  it('bounds a batch by weight, and serves what is heavier alone', async () => {
    const { batcher, batch } = openBatcher(3, (order) => order.length)
    const all = ['a', 'bb', 'c', 'dddd', 'e'].map((order) => batcher.ask(order))
    for (const [index, orders] of [['a', 'bb'], ['c'], ['dddd'], ['e']].entries()) {
      const { orders: taken, finish } = await batch(index)
      expect(taken).toEqual(orders)
      finish.resolve(undefined)
    }
    expect(await Promise.all(all)).toHaveLength(5)
    await new Promise((resolve) => setImmediate(resolve))
    expect(batcher.idle).toBe(true)
  })

  it('tells each its own outcome', async () => {
    const { batcher, batch } = openBatcher()
    const asked = ['good', 'bad'].map((order) => batcher.ask(order))
    const heard = Promise.allSettled(asked)
    const { finish } = await batch(0)
    finish.resolve(undefined)
    expect(await heard).toEqual([
      { status: 'fulfilled', value: 'GOOD' },
      { status: 'rejected', reason: 'bad' },
    ])
  })

  it('fails each order of a batch that fails, and continues with the next batch', async () => {
    const { batcher, batch } = openBatcher(2)
    const asked = ['a', 'b', 'c'].map((order) => batcher.ask(order))
    const heard = Promise.allSettled(asked)
    ;(await batch(0)).finish.reject('broken')
    ;(await batch(1)).finish.resolve(undefined)
    expect((await heard).map(({ status }) => status)).toEqual(['rejected', 'rejected', 'fulfilled'])
  })
})
