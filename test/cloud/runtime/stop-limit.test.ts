import { describe, expect, it } from 'vitest'
import { StopLimit } from '../../../src/cloud/runtime/stop-limit.ts'

function limitWithTimers() {
  const pending = new Map<() => unknown, number>()
  const timers = {
    every: (ms: number, call: () => unknown) => {
      pending.set(call, ms)
      return () => void pending.delete(call)
    },
  }
  const stop = new AbortController()
  const cuts: string[] = []
  const limit = new StopLimit({ timers, limitMs: () => 5_000, stop: stop.signal })
  limit.onOver(() => cuts.push('database'))
  limit.onOver(() => cuts.push('connections'))
  return { limit, stop, cuts, pending }
}

describe('the limit of a stop', () => {
  it('cuts everything when its time is over', () => {
    const { limit, cuts, pending } = limitWithTimers()
    limit.begin()
    expect([...pending.values()]).toEqual([5_000])
    expect(cuts).toEqual([])
    for (const call of pending.keys()) call()
    expect(cuts).toEqual(['database', 'connections'])
  })

  it('begins with the signal, and counts once', () => {
    const { limit, stop, pending } = limitWithTimers()
    stop.abort()
    limit.begin()
    expect(pending.size).toBe(1)
  })

  it('ends with the stop', () => {
    const { limit, stop, pending } = limitWithTimers()
    limit.begin()
    limit[Symbol.dispose]()
    stop.abort()
    expect(pending.size).toBe(0)
  })
})
