// What one device may make the cloud do with segments that are not merged, with the clock of the test.
import { EventEmitter } from 'node:events'
import type { ServerResponse } from 'node:http'
import { beforeEach, expect, it } from 'vitest'
import { SyncGate, UNMERGED_BYTES_MAX } from '../../../../src/cloud/http/edge/sync-gate.ts'

const TOO_OFTEN = expect.objectContaining({ code: 'SYNC_TOO_OFTEN' }) as Error
const MIB = 1024 * 1024
const MANY_ACCOUNTS = 20_000
const HOUR = 60 * 60_000

let now = 0
let gate = new SyncGate(() => now)
beforeEach(() => {
  now = 1_000_000
  gate = new SyncGate(() => now)
})

/** A sync from its start to its response. */
function sync(outcome: Parameters<SyncGate['count']>[1], bytes: number, deviceId = 'device', opened = 0): void {
  const response = new EventEmitter() as ServerResponse
  gate.enter(deviceId, response)
  gate.count(deviceId, outcome, { bytes, opened })
  response.emit('close')
}

/** Syncs until one is refused. */
function syncs(outcome: Parameters<SyncGate['count']>[1], bytes: number): number {
  for (let done = 0; ; done += 1) {
    try {
      sync(outcome, bytes)
    } catch (error) {
      expect(error).toEqual(TOO_OFTEN)
      return done
    }
  }
}

it.each([
  ['FORK', 8 * MIB, 8],
  ['REJECTED', 8 * MIB, 8],
  ['FORK', 1, 128],
  ['UNREADABLE', 8 * MIB, 128],
] as const)('refuses a device whose segments end as %s, of %d bytes, after %d', (outcome, bytes, most) => {
  expect(syncs(outcome, bytes)).toBe(most)
  expect(() => sync('MERGE', MIB, 'another device')).not.toThrow()
})

it('never refuses a device whose segments are merged or known', () => {
  for (let n = 0; n < 1_000; n += 1) {
    for (const outcome of ['MERGE', 'REPEAT', 'KNOWN', 'BEHIND'] as const) {
      expect(() => sync(outcome, 8 * MIB)).not.toThrow()
    }
  }
})

it('refuses a device that names too many new requesters, and not one with many', () => {
  sync('MERGE', 1, 'device', MANY_ACCOUNTS)
  for (let n = 0; n < 1_000; n += 1) sync('MERGE', MIB)
  sync('MERGE', 1, 'device', MANY_ACCOUNTS)
  expect(syncs('MERGE', 1)).toBe(0)
  now += 4 * HOUR
  sync('MERGE', 1)
})

it('refuses a device as well whose segments open accounts and are rejected', () => {
  sync('REJECTED', 1, 'device', MANY_ACCOUNTS)
  sync('REJECTED', 1, 'device', MANY_ACCOUNTS)
  expect(syncs('REJECTED', 1)).toBe(0)
})

it('refuses no device for longer because the clock steps back', () => {
  sync('FORK', MIB)
  now -= 77 * 24 * HOUR
  sync('MERGE', MIB)
  expect(syncs('FORK', 8 * MIB)).toBe(8)
  now += HOUR
  sync('MERGE', MIB)
})

it('says when the device may try again, and admits it then', () => {
  expect(syncs('FORK', 8 * MIB)).toBe(8)
  const refused = (): number => {
    try {
      gate.enter('device', new EventEmitter() as ServerResponse)
      return 0
    } catch (error) {
      return (error as { details: { retryAfterMs: number } }).details.retryAfterMs
    }
  }
  const retryAfterMs = refused()
  expect(retryAfterMs).toBeGreaterThan(0)
  expect(retryAfterMs).toBeLessThan(3 * 60_000)
  now += retryAfterMs - 2_000
  expect(refused()).toBeGreaterThan(0)
  now += 2_000
  sync('MERGE', MIB)
  now += (UNMERGED_BYTES_MAX / (16 * MIB)) * HOUR
  expect(syncs('FORK', 8 * MIB)).toBe(8)
})

it('takes two syncs of a device at a time', () => {
  const responses = [new EventEmitter(), new EventEmitter()] as ServerResponse[]
  for (const response of responses) gate.enter('device', response)
  const busy = expect.objectContaining({ code: 'KEY_BUSY', details: { retryAfterMs: 1_000 } }) as Error
  expect(() => gate.enter('device', new EventEmitter() as ServerResponse)).toThrow(busy)
  gate.enter('another device', new EventEmitter() as ServerResponse)
  responses[0]?.emit('close')
  gate.enter('device', new EventEmitter() as ServerResponse)
})
