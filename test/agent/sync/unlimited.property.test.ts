// Whenever the overdraft of a line item becomes unlimited or limited, whatever the network and the power do meanwhile: once all
// devices have heard of a limit, nothing is used above the cap in force, and the bill is what was used.
import fc from '../../support/fast-check.ts'
import { expect, test } from 'vitest'
import { MeteredSite, UNLIMITED, request } from '../../scenarios/link/metered-site.ts'
import { FAULTS } from '../../scenarios/link/faulty-network.ts'
import type { TestDevice } from './test-device.ts'

const RUNS = Number(process.env['TALLYGATE_TEST_RUNS'] ?? 8)
const TOKEN = 1_000_000n
const DEVICES = 2

type Move = { readonly device: number } & (
  | { readonly kind: 'request' | 'refund'; readonly tokens: number }
  | { readonly kind: 'fault'; readonly fault: (typeof FAULTS)[number] }
  | { readonly kind: 'crash'; readonly commits: number }
  | { readonly kind: 'sync' | 'down' | 'up' | 'restart' }
  | { readonly kind: 'unlimited' }
  | { readonly kind: 'limited'; readonly quantity: number }
  | { readonly kind: 'all-hear' }
)

const device = fc.nat({ max: DEVICES - 1 })
const tokens = fc.integer({ min: 1, max: 400 })

const move: fc.Arbitrary<Move> = fc.oneof(
  { weight: 10, arbitrary: fc.record({ kind: fc.constant('request' as const), device, tokens }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('refund' as const), device, tokens }) },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant('fault' as const), device, fault: fc.constantFrom(...FAULTS) }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('crash' as const), device, commits: fc.nat({ max: 6 }) }) },
  {
    weight: 3,
    arbitrary: fc.record({ kind: fc.constantFrom('down' as const, 'up' as const, 'restart' as const), device }),
  },
  { weight: 5, arbitrary: fc.record({ kind: fc.constant('sync' as const), device }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('unlimited' as const), device }) },
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant('limited' as const),
      device,
      quantity: fc.integer({ min: 1, max: 1_000 }),
    }),
  },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('all-hear' as const), device }) },
)

const usedBy = (devices: readonly TestDevice[]): bigint =>
  devices.reduce((sum, { durable }) => sum + durable.charged - durable.refunded, 0n)

/** Ends what is in the way of the devices, and lets each of them say and hear everything. */
async function hear(site: MeteredSite, devices: readonly TestDevice[]): Promise<void> {
  for (let round = 0; round < 2; round += 1) {
    for (const one of devices) {
      one.network.down = false
      one.network.faults = []
      one.disk.commitsUntilCrash = Infinity
      if (one.fatal.length > 0) await one.restart()
      await one.pass(60_000)
      site.twin.now += 60_000
      await one.sync()
      await one.sync()
      expect([one.fatal, one.link.status().backlog, one.link.status().unacknowledgedSeq]).toEqual([[], 0, null])
    }
  }
}

async function make(site: MeteredSite, one: TestDevice, move: Move): Promise<void> {
  switch (move.kind) {
    case 'request':
      await request(one, BigInt(move.tokens) * TOKEN)
      return
    case 'refund':
      await one.refund(BigInt(move.tokens) * TOKEN)
      return
    case 'fault':
      one.network.faults.push(move.fault)
      return
    case 'crash':
      one.disk.commitsUntilCrash = move.commits + 1
      return
    case 'sync':
      return one.sync()
    case 'down':
      one.network.down = true
      return
    case 'up':
      one.network.down = false
      return
    case 'restart':
      return one.restart()
    case 'unlimited':
      return site.change(UNLIMITED)
    case 'limited':
      return site.change({ quantity: move.quantity })
    case 'all-hear':
      return
  }
}

test(
  'what is used stays within the cap in force from when all devices have heard of it',
  { timeout: 60_000 + RUNS * 5_000 },
  async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(move, { minLength: 10, maxLength: 25, size: 'max' }), async (moves) => {
        const site = await MeteredSite.open({})
        const devices: TestDevice[] = []
        for (let n = 0; n < DEVICES; n += 1) devices.push(await site.device())
        // Null: not all devices have heard of the newest rules, or they have no limit.
        let most: bigint | null = null
        for (const each of moves) {
          const one = devices[each.device]!
          if (one.fatal.length > 0) await one.restart()
          await make(site, one, each)
          await one.settle()
          if (each.kind === 'unlimited' || each.kind === 'limited') most = null
          if (each.kind === 'all-hear') {
            await hear(site, devices)
            const { capInForce } = await site.pool()
            if (capInForce !== null && (most === null || capInForce < most)) most = capInForce
          }
          if (most !== null) expect(usedBy(devices)).toBeLessThanOrEqual(most)
        }
        await hear(site, devices)
        expect(await site.used()).toBe(usedBy(devices))
        const { capTarget } = await site.pool()
        for (const one of devices) {
          const record = await site.record(one)
          const { deviceId: _id, ...held } = record ?? { deviceId: '' }
          expect(held).toMatchObject({ unlimited: capTarget === null, metered: capTarget === null })
          expect(new Map(one.ledger.accounts()).get(site.account)?.granted).toBe(record?.granted)
          expect([one.link.status().epoch, one.conditions]).toEqual([1, []])
        }
      }),
      { numRuns: RUNS },
    )
  },
)
