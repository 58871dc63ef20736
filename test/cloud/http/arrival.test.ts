// Bodies that arrive slowly, with the clock of the test.
import { EventEmitter } from 'node:events'
import type { FastifyRequest } from 'fastify'
import { beforeEach, expect, it, vi } from 'vitest'
import { watchArrival } from '../../../src/cloud/http/arrival.ts'

beforeEach(() => {
  vi.useFakeTimers()
  return () => vi.useRealTimers()
})

const TOO_SLOW = expect.objectContaining({ code: 'REQUEST_TOO_SLOW' }) as Error

/** A request of which bytes arrive when the test says so. */
function request() {
  const socket = { bytesRead: 500 }
  const raw = Object.assign(new EventEmitter(), { socket })
  const onError = vi.fn()
  raw.on('error', onError)
  return { socket, request: { raw } as unknown as FastifyRequest, onError }
}

it('refuses a body that stalls', () => {
  const { request: slow, onError } = request()
  watchArrival(slow, 'DEVICE', 120_000)
  vi.advanceTimersByTime(9_999)
  expect(onError).not.toHaveBeenCalled()
  vi.advanceTimersByTime(1)
  expect(onError.mock.calls).toEqual([[TOO_SLOW]])
  vi.advanceTimersByTime(120_000)
  expect(onError).toHaveBeenCalledOnce()
})

it('refuses a body that arrives a few bytes at a time', () => {
  const { socket, request: slow, onError } = request()
  watchArrival(slow, 'CLIENT', 120_000)
  for (let second = 0; second < 10; second += 1) {
    socket.bytesRead += 100
    vi.advanceTimersByTime(1_000)
  }
  expect(onError.mock.calls).toEqual([[TOO_SLOW]])
})

it.each([
  ['CLIENT', 30_000],
  ['ADMINISTRATOR', 30_000],
  ['DEVICE', 120_000],
] as const)('gives a body of a %s no more than %d ms', (kind, wholeMs) => {
  const { socket, request: slow, onError } = request()
  watchArrival(slow, kind, 120_000)
  for (let ms = 0; ms < wholeMs - 1_000; ms += 1_000) {
    socket.bytesRead += 1_000
    vi.advanceTimersByTime(1_000)
  }
  expect(onError).not.toHaveBeenCalled()
  socket.bytesRead += 20_000
  vi.advanceTimersByTime(1_000)
  expect(onError.mock.calls).toEqual([[TOO_SLOW]])
})

it('ends with the body', () => {
  const { request: slow, onError } = request()
  watchArrival(slow, 'DEVICE', 120_000)()
  vi.advanceTimersByTime(1_000_000)
  expect(onError).not.toHaveBeenCalled()
})

it('does not count the time in which the server is paused', () => {
  const { socket, request: slow, onError } = request()
  watchArrival(slow, 'CLIENT', 120_000)
  // After a pause, each timer fires once, however late it is.
  vi.runOnlyPendingTimers()
  vi.runOnlyPendingTimers()
  expect(onError).not.toHaveBeenCalled()
  socket.bytesRead += 20_000
  vi.advanceTimersByTime(8_000)
  expect(onError).not.toHaveBeenCalled()
})
