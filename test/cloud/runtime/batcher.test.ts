import { describe, expect, it } from 'vitest'
import { type Batch, Batcher } from '../../../src/cloud/runtime/batcher.ts'

/** A batcher whose batches are finished by the test. */
function openBatcher(weightMax = 3, weightOf: (request: string) => number = () => 1) {
  const batches: {
    readonly requests: readonly string[]
    readonly next: Batch<string>['next']
    readonly join: Batch<string>['join']
    readonly finish: PromiseWithResolvers<undefined>
  }[] = []
  const waiting: PromiseWithResolvers<undefined>[] = []
  const batcher = new Batcher<string, string>({
    defer: setImmediate,
    weightMax,
    weightOf,
    async serve(requests, { next, join }) {
      const finish = Promise.withResolvers<undefined>()
      const all = [...requests]
      const joined: typeof join = (fits) => {
        const taken = join(fits)
        all.push(...taken)
        return taken
      }
      batches.push({ requests, next, join: joined, finish })
      for (const each of waiting.splice(0)) each.resolve(undefined)
      await finish.promise
      return all.map((request) =>
        request === 'bad'
          ? { status: 'rejected', reason: request }
          : { status: 'fulfilled', value: request.toUpperCase() },
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

describe('a batcher', () => {
  it('serves requests that arrive during a batch together in the next one, in the order of arrival', async () => {
    const { batcher, batch, batches } = openBatcher()
    const first = batcher.submit('a')
    const { finish } = await batch(0)
    const others = ['b', 'c'].map((request) => batcher.submit(request))
    expect(batches).toHaveLength(1)
    finish.resolve(undefined)
    expect(await first).toBe('A')
    const next = await batch(1)
    expect(next.requests).toEqual(['b', 'c'])
    next.finish.resolve(undefined)
    expect(await Promise.all(others)).toEqual(['B', 'C'])
  })

  it('begins the next batch before one has ended, if that one permits it', async () => {
    const { batcher, batch, batches } = openBatcher()
    const first = batcher.submit('a')
    const { next, finish } = await batch(0)
    const second = batcher.submit('b')
    next()
    const { requests, finish: finishSecond } = await batch(1)
    expect(requests).toEqual(['b'])
    const third = batcher.submit('c')
    next()
    finish.resolve(undefined)
    expect(await first).toBe('A')
    await new Promise((resolve) => setImmediate(resolve))
    expect(batches).toHaveLength(2)
    finishSecond.resolve(undefined)
    expect(await second).toBe('B')
    expect(batcher.idle).toBe(false)
    ;(await batch(2)).finish.resolve(undefined)
    expect(await third).toBe('C')
    await new Promise((resolve) => setImmediate(resolve))
    expect(batcher.idle).toBe(true)
  })

  it('lets the next batch begin before one has ended, once so many wait', async () => {
    const { batcher, batch, batches } = openBatcher()
    const asked = [batcher.submit('a')]
    const first = await batch(0)
    asked.push(batcher.submit('b'))
    first.next(3)
    asked.push(batcher.submit('c'))
    await new Promise((resolve) => setImmediate(resolve))
    expect(batches).toHaveLength(1)
    asked.push(batcher.submit('d'))
    const second = await batch(1)
    expect(second.requests).toEqual(['b', 'c', 'd'])
    second.next(2)
    asked.push(batcher.submit('e'))
    await new Promise((resolve) => setImmediate(resolve))
    expect(batches).toHaveLength(2)
    first.finish.resolve(undefined)
    second.finish.resolve(undefined)
    // The end of a batch begins the next one, however few wait.
    const third = await batch(2)
    expect(third.requests).toEqual(['e'])
    third.finish.resolve(undefined)
    expect(await Promise.all(asked)).toEqual(['A', 'B', 'C', 'D', 'E'])
  })

  it('adds requests that have arrived since to a batch in progress, in order, up to the first that does not fit', async () => {
    const { batcher, batch } = openBatcher(4)
    const asked = ['a', 'b', 'c', 'd', 'e', 'f'].map((request) => batcher.submit(request))
    const { requests, join, finish } = await batch(0)
    expect(requests).toEqual(['a', 'b', 'c', 'd'])
    expect(join(() => true)).toEqual([])
    finish.resolve(undefined)
    const second = await batch(1)
    expect(second.requests).toEqual(['e', 'f'])
    const later = ['g', 'h', 'i'].map((request) => batcher.submit(request))
    expect(second.join((request) => request !== 'g')).toEqual([])
    expect(second.join((request) => request !== 'h')).toEqual(['g'])
    expect(second.join(() => true)).toEqual(['h'])
    second.finish.resolve(undefined)
    expect((await batch(2)).requests).toEqual(['i'])
    ;(await batch(2)).finish.resolve(undefined)
    expect(await Promise.all([...asked, ...later])).toEqual('ABCDEFGHI'.split(''))
  })

  it('bounds a batch by weight, and serves a heavier request alone', async () => {
    const { batcher, batch } = openBatcher(3, (request) => request.length)
    const all = ['a', 'bb', 'c', 'dddd', 'e'].map((request) => batcher.submit(request))
    for (const [index, requests] of [['a', 'bb'], ['c'], ['dddd'], ['e']].entries()) {
      const { requests: taken, finish } = await batch(index)
      expect(taken).toEqual(requests)
      finish.resolve(undefined)
    }
    expect(await Promise.all(all)).toHaveLength(5)
    await new Promise((resolve) => setImmediate(resolve))
    expect(batcher.idle).toBe(true)
  })

  it('returns to each request its own outcome', async () => {
    const { batcher, batch } = openBatcher()
    const asked = ['good', 'bad'].map((request) => batcher.submit(request))
    const heard = Promise.allSettled(asked)
    const { finish } = await batch(0)
    finish.resolve(undefined)
    expect(await heard).toEqual([
      { status: 'fulfilled', value: 'GOOD' },
      { status: 'rejected', reason: 'bad' },
    ])
  })

  it('fails each request of a batch that fails, and continues with the next batch', async () => {
    const { batcher, batch } = openBatcher(2)
    const asked = ['a', 'b', 'c'].map((request) => batcher.submit(request))
    const heard = Promise.allSettled(asked)
    ;(await batch(0)).finish.reject('broken')
    ;(await batch(1)).finish.resolve(undefined)
    expect((await heard).map(({ status }) => status)).toEqual(['rejected', 'rejected', 'fulfilled'])
  })
})
