// Sessions on an essential line item while the cloud cannot be asked: charges above the grant up to the cap, and what is
// refunded of them.
import { expect, it } from 'vitest'
import { NEW_REQUESTERS_PER_HOUR } from '../../../src/agent/ledger/new-requesters.ts'
import { limitAccount } from '../../../src/core/accounts/account.ts'
import { available } from '../../../src/core/accounts/grant.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { LINE, MINUTE, SessionDevice, essentialRules } from './device.ts'

const ALWAYS = { index: 0, from: null, until: null }
const limitOf = (value: string) => limitAccount(INSTANCE, 'line-1', { type: 'user', value }, 0)

/** Offline, with so many tokens granted and a cap above them. @param cap micro-tokens */
async function offline(tokens: number, cap = 50_000_000n): Promise<SessionDevice> {
  const device = await SessionDevice.make(tokens)
  device.activePolicies.put(await essentialRules(2, cap))
  device.connected = false
  return device
}

/** Tokens that are charged beyond the grant, as the disk has it. */
function owed({ disk }: SessionDevice): number {
  const held = disk.read().accounts.get(LINE)
  return held === undefined ? 0 : Number(-available(held)) / 1_000_000
}

/** What the entries say was above the grant, by event, in tokens. */
function above(device: SessionDevice): readonly (readonly [string, number])[] {
  return device.disk.history.flatMap(({ session, postings }) =>
    postings
      .filter(({ aboveGrant }) => aboveGrant !== undefined)
      .map(({ aboveGrant = 0n }) => [session?.event ?? 'one-off', Number(aboveGrant) / 1_000_000] as const),
  )
}

it('a session is charged and renewed above the grant up to the cap, and ends when the cap is reached', async () => {
  const device = await offline(30)
  const id = await device.open()
  expect(await device.request(id, 40)).toBe(200)
  expect(owed(device)).toBe(10)
  await device.pass(61 * MINUTE)
  expect(device.session(id).state).toBe('ACTIVE')
  expect(owed(device)).toBe(50)
  await device.heartbeat(id)
  await device.pass(60 * MINUTE)
  expect(device.session(id).state).toBe('TERMINATED')
  expect(device.billed()).toBe(80)
  expect(above(device)).toEqual([
    ['GRANTED', 10],
    ['RENEWED', 40],
  ])
})

it('a charge above the grant is refused if it would exceed the maximum of a counter', async () => {
  const device = await offline(4_000_000_000_000, 5_000_000_000_000_000_000n)
  const id = await device.open()
  expect(await device.request(id, 5_000_000_000_000)).toBe(200)
  expect(await device.request(id, 5_000_000_000_001)).toBe(403)
  expect([device.billed(), device.fatal]).toEqual([5_000_000_000_000, []])
})

it('a device that the cloud refuses gets nothing above the grant', async () => {
  const device = await offline(30)
  device.activePolicies.isDeviceRefused = true
  const id = await device.open()
  expect(await device.request(id, 31)).toBe(403)
  expect(above(device)).toEqual([])
})

it('the response to a session request above the grant has a warning', async () => {
  const device = await offline(30)
  const id = await device.open()
  const inGrant = await device.ask(id, 30)
  const aboveGrant = await device.ask(id, 31)
  expect([inGrant, aboveGrant].map((answer) => answer.operable && answer.warnings)).toEqual([[], ['ESSENTIAL_OFFLINE']])
})

it('a refund reduces the overspend first, and only the rest can be spent', async () => {
  const device = await offline(10)
  const id = await device.open()
  await device.request(id, 30)
  expect(owed(device)).toBe(20)
  const { from } = device.session(id).charge ?? { from: 0 }
  await device.pass(30 * MINUTE + from - device.clock.reading().earliest)
  // 15 come back: 5 are owed then, and 45 may be.
  expect(await device.request(id, 46)).toBe(403)
  expect(owed(device)).toBe(20)
  expect(await device.request(id, 45)).toBe(200)
  expect(owed(device)).toBeCloseTo(50, 1)
  expect(above(device).at(-1)).toEqual(['GRANTED', 45])
  expect(await device.request(id, 0)).toBe(200)
  expect(owed(device)).toBeCloseTo(5, 1)
  expect(device.billed()).toBeCloseTo(15, 1)
})

it('a connected session with overspend spends only the part of its refund above it', async () => {
  const device = await offline(10)
  const id = await device.open()
  await device.request(id, 30)
  device.connected = true
  // 30 come back of which 20 are owed.
  expect(await device.request(id, 11)).toBe(403)
  expect(await device.request(id, 10)).toBe(200)
  expect(owed(device)).toBe(0)
  expect(above(device)).toEqual([['GRANTED', 20]])
})

it('a restart does not raise the overspend cap', async () => {
  const device = await offline(10)
  const id = await device.open()
  await device.request(id, 30)
  await device.restart()
  expect(await device.oneOff(31)).toBe(0)
  expect(await device.oneOff(30)).toBe(30)
  expect(await device.oneOff(1)).toBe(0)
  expect(owed(device)).toBe(50)
  await device.restart(MINUTE)
  expect(await device.close(id)).toBe(204)
  expect(owed(device)).toBeLessThan(21)
})

it('sessions and one-off requests share one overspend cap', async () => {
  const device = await offline(10)
  const [one, other] = [await device.open(), await device.open()]
  expect(await device.request(one, 30)).toBe(200)
  expect(await device.oneOff(20)).toBe(20)
  expect(await device.request(other, 11)).toBe(403)
  expect(await device.request(other, 10)).toBe(200)
  expect(await device.oneOff(1)).toBe(0)
  expect(owed(device)).toBe(50)
  await device.close(one)
  expect(await device.oneOff(31)).toBe(0)
  expect(await device.oneOff(30)).toBe(30)
  expect(owed(device)).toBe(50)
})

it('charges above the grant only if the cloud does not respond in time', async () => {
  const device = await offline(10)
  device.connected = true
  const id = await device.open()
  expect(await device.request(id, 30)).toBe(403)
  device.cloud = async () => device.time.advance(2_000)
  expect(await device.request(id, 30)).toBe(200)
  expect(owed(device)).toBe(20)
  device.cloud = () => device.grant(100_000_000n)
  expect(await device.request(id, 40)).toBe(200)
  expect(above(device)).toEqual([['GRANTED', 20]])
})

it('a fence refunds the rest of the interval, and the next epoch continues to charge', async () => {
  const device = await offline(10)
  const id = await device.open()
  await device.request(id, 30)
  await device.pass(30 * MINUTE)
  await device.ledger.freeze()
  expect(device.billed()).toBeCloseTo(15, 1)
  expect(owed(device)).toBeCloseTo(5, 1)
  await device.beginEpoch()
  await device.pass(5_000)
  expect(device.session(id).state).toBe('ACTIVE')
  expect(device.billed()).toBe(30)
  expect(owed(device)).toBe(30)
  expect(await device.oneOff(20)).toBe(20)
  expect(await device.oneOff(1)).toBe(0)
})

it('a charge that cannot be recorded adds no overspend', async () => {
  const device = await offline(10)
  const id = await device.open()
  await device.request(id, 30)
  device.disk.refusals = 1
  await expect(device.request(id, 50)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
  expect(owed(device)).toBe(20)
  expect(await device.oneOff(31)).toBe(0)
  expect(await device.oneOff(30)).toBe(30)
})

it('a session that needs more accounts than a top-up request can name ends at its next charge, without overspend', async () => {
  const device = await offline(30)
  device.connected = true
  const id = await device.open()
  expect(await device.request(id, 20)).toBe(200)
  device.cloud = async () => {
    throw new CodedError('REQUEST_TOO_LARGE', 'too many accounts')
  }
  await device.pass(61 * MINUTE)
  expect([owed(device) <= 0, device.session(id).state, device.log().at(-1)]).toEqual([
    true,
    'TERMINATED',
    'session NOT_RENEWED',
  ])
})

it('a new requester is not charged above the grant once too many were named, and a known one is', async () => {
  const device = await offline(0)
  device.activePolicies.put(await essentialRules(3, 50_000_000n, { limit: '50000000', periods: [ALWAYS] }))
  expect(await device.oneOff(1, 'known')).toBe(1)
  const invented = Array.from({ length: NEW_REQUESTERS_PER_HOUR - 1 }, (_, n) => limitOf(`invented ${n}`))
  expect(device.ledger.newRequesters.refusalOf(invented)).toBeNull()
  await expect(device.oneOff(1, 'new')).rejects.toMatchObject({ code: 'REQUESTERS_LIMITED' })
  expect(await device.oneOff(1, 'known')).toBe(1)
  await device.pass(MINUTE)
  expect(await device.oneOff(1, 'new')).toBe(1)
})
