import { describe, expect, it } from 'vitest'
import { GROWTH_MIN, IDLE_MS_MAX, releaseWhenIdle } from '../../../../src/agent/platform/system/idle-memory.ts'

function process() {
  const state = { busyMs: 0, heap: 3 * GROWTH_MIN, released: 0, pending: null as (() => void) | null }
  const stop = releaseWhenIdle({
    timers: {
      after: (_ms, call) => {
        state.pending = call
        return () => (state.pending = null)
      },
    },
    processorMs: () => state.busyMs,
    heapBytes: () => state.heap,
    release: () => {
      state.released += 1
      state.heap = GROWTH_MIN
    },
  })
  const look = (busyMs: number): void => {
    state.busyMs += busyMs
    state.pending?.()
  }
  return { state, look, stop }
}

describe('memory of an idle process', () => {
  it('is released once after the start, as soon as the process is idle', () => {
    const { state, look } = process()
    look(IDLE_MS_MAX)
    expect(state.released).toBe(0)
    look(IDLE_MS_MAX - 1)
    look(0)
    look(0)
    expect(state.released).toBe(1)
  })

  it('is released again after a burst has grown the heap, and not while it lasts', () => {
    const { state, look } = process()
    look(0)
    state.heap += GROWTH_MIN
    look(IDLE_MS_MAX)
    expect(state.released).toBe(1)
    look(0)
    expect(state.released).toBe(2)
    state.heap += GROWTH_MIN - 1
    look(0)
    expect(state.released).toBe(2)
  })

  it('is not looked at after the stop', () => {
    const { state, stop } = process()
    stop()
    expect(state.pending).toBeNull()
  })
})
