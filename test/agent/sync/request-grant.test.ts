import { expect, test } from 'vitest'
import { MICRO_MAX } from '../../../src/core/pricing/amount.ts'
import { NEW_REQUESTERS_MAX } from '../../../src/agent/ledger/new-requesters.ts'
import { limitAccount } from '../../../src/core/accounts/account.ts'
import { NEED_ACCOUNTS_MAX, SEGMENT_NEEDS_BYTES_MAX, SEGMENT_NEEDS_MAX } from '../../../src/protocol/edge/sync.ts'
import { audit, calmDown } from './audit.ts'
import { INSTANCE } from './fake-cloud.ts'
import { ACCOUNT, TestDevice } from './test-device.ts'

const need = (amount: bigint) => ({ needs: [[{ account: ACCOUNT, amount }]], accounts: [ACCOUNT] })

test('a request that needs more than there is gets it from a cloud that answers', async () => {
  const device = await TestDevice.running()
  const asked = device.link.requestGrant(need(50_000_000n), 2_000)
  await device.pass(100)
  await asked
  expect(await device.charge(50_000_000n)).toBe('GRANTED')
  await calmDown(device)
  audit(device)
})

test('requests that wait together get what they need together', async () => {
  const device = await TestDevice.running()
  const asked = [30_000_000n, 40_000_000n].map((amount) => device.link.requestGrant(need(amount), 2_000))
  await device.pass(100)
  await Promise.all(asked)
  expect(device.left >= 70_000_000n).toBe(true)
})

test('requests for more than the pool has move nothing, and leave the tokens to those behind them', async () => {
  const device = await TestDevice.running()
  const asked = [MICRO_MAX, MICRO_MAX, 70_000_000n].map((amount) => device.link.requestGrant(need(amount), 2_000))
  await device.pass(100)
  const cap = device.cloud.caps.get(ACCOUNT) ?? 0n
  expect(await Promise.all(asked)).toEqual(
    asked.map(() => new Map([[ACCOUNT, { available: cap - 70_000_000n, returnable: 0n }]])),
  )
  expect(device.conditions).toEqual([])
  expect(device.link.status().unacknowledgedSeq).toBeNull()
  expect(device.left).toBe(70_000_000n)
  await calmDown(device)
  audit(device)
})

test('a request that comes during a round is carried by it or by the one after', async () => {
  const device = await TestDevice.running()
  let late: Promise<unknown> | undefined
  device.network.intercept = (request) => {
    late ??= device.link.requestGrant(need(60_000_000n), 2_000)
    return device.cloud.exchange(request)
  }
  await device.sync()
  await device.pass(200)
  await late
  expect(device.left >= 60_000_000n).toBe(true)
})

test('requests whose needs did not all fit in the segment are not answered by its response, and wait no longer', async () => {
  const device = await TestDevice.running()
  const { seal } = device.journal
  device.journal.seal = (order) => seal.call(device.journal, { ...order, needs: order.needs.slice(1) })
  const asked = [30_000_000n, 40_000_000n].map((amount) => device.link.requestGrant(need(amount), 600_000))
  await device.pass(100)
  expect(await Promise.all(asked)).toEqual([null, null])
})

test('a request does not wait beyond its patience', async () => {
  const device = await TestDevice.running()
  device.network.intercept = () => new Promise(() => undefined)
  let done = false
  void device.link.requestGrant(need(50_000_000n), 2_000).then(() => (done = true))
  await device.settle()
  device.time.advance(1_999)
  await new Promise((resolve) => setImmediate(resolve))
  expect(done).toBe(false)
  device.time.advance(1)
  await new Promise((resolve) => setImmediate(resolve))
  expect(done).toBe(true)
})

test('a request does not wait for a cloud that is known to be unreachable', async () => {
  const device = await TestDevice.running()
  device.network.down = true
  await device.sync()
  await device.link.requestGrant(need(50_000_000n), 2_000)
  expect(device.time.untilNext).toBeGreaterThan(0)
})

test('while requests lack tokens, attempts to reach the cloud follow each other within seconds', async () => {
  const device = await TestDevice.running()
  const retryInMs = (): number => device.link.status().retryInMs ?? 0
  device.network.down = true
  await device.sync()
  while (retryInMs() < 100_000) await device.pass(1_000)
  const { failed } = device.link.status().rounds
  for (let seconds = 0; seconds < 60; seconds += 1) {
    expect(await device.link.requestGrant(need(50_000_000n), 2_000)).toBeNull()
    expect(retryInMs()).toBeLessThanOrEqual(10_000)
    await device.pass(1_000)
  }
  expect(device.link.status().rounds.failed - failed).toBeGreaterThanOrEqual(6)
  expect(device.link.status().rounds.failed - failed).toBeLessThanOrEqual(12)
  device.network.down = false
  await device.link.requestGrant(need(50_000_000n), 2_000)
  await device.pass(10_000)
  expect(device.link.status()).toMatchObject({ connected: true, retryInMs: null })
})

test('a request does not shorten a wait that the cloud requested', async () => {
  const device = await TestDevice.running()
  device.network.faults = ['UNAVAILABLE']
  device.network.retryAfter = '100'
  await device.sync()
  expect(device.conditions).toEqual(['cloud: CLOUD_UNREACHABLE'])
  expect(await device.link.requestGrant(need(50_000_000n), 2_000)).toBeNull()
  expect(device.link.status().retryInMs).toBeGreaterThanOrEqual(100_000)
})

test('a round that fails releases every request', async () => {
  const device = await TestDevice.running()
  device.network.faults = ['LOSE_REQUEST']
  const asked = device.link.requestGrant(need(50_000_000n), 600_000)
  await device.pass(100)
  await asked
  expect(device.left < 50_000_000n).toBe(true)
})

test('an account of an empty pool names the pool as the reason', async () => {
  const device = await TestDevice.running()
  device.cloud.caps.set(ACCOUNT, 10_000_000n)
  await device.charge(10_000_000n)
  const asked = device.link.requestGrant(need(1n), 2_000)
  await device.pass(100)
  await asked
  expect(device.ledger.availableAt(device.clock.reading())(ACCOUNT)).toEqual({ left: 0n, shortage: 'POOL' })
})

test('a hundred requests for an empty pool do not make a hundred rounds', async () => {
  const device = await TestDevice.running()
  device.cloud.caps.set(ACCOUNT, 10_000_000n)
  await device.charge(10_000_000n)
  const before = device.cloud.received.length
  for (let i = 0; i < 100; i += 1) {
    const asked = device.link.requestGrant(need(1n), 2_000)
    await device.pass(5)
    void asked
  }
  expect(device.cloud.received.length - before).toBeLessThanOrEqual(12)
})

const requester = (value: string) => limitAccount(INSTANCE, 'line-1', { type: 'user', value }, 0)
const some = (count: number, account = (n: number) => requester(String(n))) =>
  Array.from({ length: count }, (_, n) => ({ account: account(n), amount: 1n }))
const long = (n: number) => requester(`${'x'.repeat(1_000)}${n}`)

test.each([
  ['accounts in one need', [some(NEED_ACCOUNTS_MAX + 1)], [some(NEED_ACCOUNTS_MAX)]],
  ['needs', some(SEGMENT_NEEDS_MAX + 1).map((need) => [need]), some(SEGMENT_NEEDS_MAX).map((need) => [need])],
  ['bytes', [some(SEGMENT_NEEDS_BYTES_MAX / 1_000, long)], [some(SEGMENT_NEEDS_BYTES_MAX / 1_000 / 2, long)]],
])(
  'a request of more %s than a segment takes says so while the cloud can be asked, and is not sent',
  async (_what, tooMany, most) => {
    const device = await TestDevice.running()
    await expect(device.link.requestGrant({ needs: tooMany, accounts: [ACCOUNT] }, 2_000)).rejects.toMatchObject({
      code: 'REQUEST_TOO_LARGE',
    })
    const asked = device.link.requestGrant({ needs: most, accounts: [ACCOUNT] }, 2_000)
    await device.pass(100)
    expect(await asked).toBeInstanceOf(Map)
    device.network.down = true
    await device.sync()
    expect(await device.link.requestGrant({ needs: tooMany, accounts: [ACCOUNT] }, 2_000)).toBeNull()
  },
)

test('requesters that an application invents are refused above a limit, and the others get tokens', async () => {
  const device = await TestDevice.running()
  device.cloud.caps.set(requester('known'), 10n)
  const known = { needs: [[{ account: requester('known'), amount: 1n }]], accounts: [requester('known')] }
  const first = device.link.requestGrant(known, 2_000)
  await device.pass(100)
  await first
  const invented = (from: number, count: number) =>
    Array.from({ length: count }, (_, n) => requester(`invented ${from + n}`))
  expect(device.ledger.newRequesters.refusalOf(invented(0, NEW_REQUESTERS_MAX - 2))).toBeNull()
  const accounts = invented(NEW_REQUESTERS_MAX, 2)
  const [admitted, refused] = accounts.map(async (account) =>
    device.link
      .requestGrant({ needs: [[{ account, amount: 1n }]], accounts: [account] }, 2_000)
      .catch((error: unknown) => error),
  )
  const served = device.link.requestGrant(known, 2_000)
  await device.pass(100)
  expect(await admitted).toBeInstanceOf(Map)
  expect(await refused).toMatchObject({
    code: 'REQUESTERS_LIMITED',
    details: { retryAfterMs: expect.any(Number) as number },
  })
  expect(await served).toBeInstanceOf(Map)
})
