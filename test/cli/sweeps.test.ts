import { expect, test } from 'vitest'
import type { SweepStateWire } from '../../src/protocol/edge/administration.ts'
import { fakeService, readAdminKey } from './fake-service.ts'
import { tallygate } from './outside.ts'

const sweeps = (address: string, ...args: string[]) =>
  tallygate(['sweeps', ...args, '--url', address, '--admin-key', '/admin.pem'], { readText: readAdminKey })

const SWEEPS = '/dm/edge/api/v1/sweeps'
const calm: SweepStateWire = {
  now: Date.UTC(2026, 10, 1),
  clock: null,
  settlement: { paused: false, due: 0, settled: 1, allowed: 2 },
}
const paused: SweepStateWire = {
  now: Date.UTC(2026, 11, 1),
  clock: { code: 'CLOCK_JUMPED', aheadMs: -45 * 60_000 },
  settlement: { paused: true, due: 8, settled: 0, allowed: 2 },
}

test('shows a clock that is trusted, and how settlement stands', async () => {
  await using twin = await fakeService('tcp', { [`GET ${SWEEPS}`]: { body: calm } })
  expect((await sweeps(twin.address, 'show')).out).toBe(
    'clock       2026-11-01T00:00:00.000Z, trusted\n' +
      'settlement  devices due: 0, settled within 24 hours: 1 of 2 allowed\n',
  )
})

test('shows what pauses the sweeps, by how much the clock is off, and what to do', async () => {
  await using twin = await fakeService('tcp', { [`GET ${SWEEPS}`]: { body: paused } })
  const { out } = await sweeps(twin.address, 'show')
  expect(out).toContain('paused by CLOCK_JUMPED: 0.8 h before the expected time. Correct the clock')
  expect(out).toContain('paused by SETTLEMENT_TOO_LARGE: devices due: 8, settled within 24 hours: 0 of 2 allowed')
  expect(JSON.parse((await sweeps(twin.address, 'show', '--json')).out)).toEqual(paused)
})

test.each(['clock', 'settlement'])('confirms: %s', async (what) => {
  await using twin = await fakeService('tcp', { [`POST ${SWEEPS}/${what}/confirm`]: { body: calm } })
  expect(await sweeps(twin.address, 'confirm', what)).toMatchObject({ code: 0, err: '' })
  expect(twin.asked).toHaveLength(1)
})
