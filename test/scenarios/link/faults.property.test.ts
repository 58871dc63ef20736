// Whatever the network, the power and the disk do, in whatever order: once they stop, the cloud has billed exactly what the
// device has recorded. A failing run prints its seed and path.
import fc from '../../support/fast-check.ts'
import { expect, test } from 'vitest'
import { audit, calmDown } from '../../agent/sync/audit.ts'
import { FAULTS } from './faulty-network.ts'
import { policyWith } from '../../agent/sync/policies.ts'
import { TestDevice } from '../../agent/sync/test-device.ts'

const RUNS = Number(process.env['TALLYGATE_TEST_RUNS'] ?? 40)

type Move =
  | { readonly kind: 'charge' | 'refund'; readonly amount: bigint }
  | { readonly kind: 'fault'; readonly fault: (typeof FAULTS)[number] }
  | { readonly kind: 'crash'; readonly commits: number }
  | { readonly kind: 'pass'; readonly ms: number }
  | { readonly kind: 'request'; readonly amount: bigint }
  | { readonly kind: 'restart' | 'reboot' | 'sync' | 'fence' | 'release' | 'publish' | 'disk-full' | 'down' | 'up' }

const amount = fc.bigInt({ min: 1n, max: 3_000_000n })

const move: fc.Arbitrary<Move> = fc.oneof(
  { weight: 12, arbitrary: fc.record({ kind: fc.constantFrom('charge' as const), amount }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constantFrom('refund' as const), amount }) },
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('fault' as const), fault: fc.constantFrom(...FAULTS) }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('crash' as const), commits: fc.nat({ max: 4 }) }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('pass' as const), ms: fc.integer({ min: 1, max: 400_000 }) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('request' as const), amount }) },
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constantFrom(
        'restart' as const,
        'reboot' as const,
        'sync' as const,
        'sync' as const,
        'sync' as const,
        'fence' as const,
        'release' as const,
        'publish' as const,
        'disk-full' as const,
        'down' as const,
        'up' as const,
      ),
    }),
  },
)

async function make(device: TestDevice, move: Move): Promise<void> {
  switch (move.kind) {
    case 'charge':
      await device.charge(move.amount)
      return
    case 'refund':
      await device.refund(move.amount)
      return
    case 'fault':
      device.network.faults.push(move.fault)
      return
    case 'crash':
      device.disk.commitsUntilCrash = move.commits + 1
      return
    case 'pass':
      return device.pass(move.ms)
    case 'request': {
      const account = 'line/64d2028c-ae87-4069-a624-66089d957ef9/line-1/0'
      const request = { needs: [[{ account, amount: move.amount }]], accounts: [account] }
      const answered = device.link.requestGrant(request, 2_000)
      await device.pass(2_000)
      if (device.fatal.length === 0) await answered
      return
    }
    case 'restart':
      return device.restart()
    case 'reboot':
      return device.restart({ reboot: true })
    case 'sync':
      return device.sync()
    case 'fence':
      if (device.cloud.epochs.size > 0) device.cloud.fence()
      return
    case 'release':
      device.cloud.directives = ['release']
      return
    case 'publish':
      return device.cloud.publish(policyWith((device.cloud.policies.values().next().value?.revision ?? 0) + 1))
    case 'disk-full':
      device.disk.refusals = 3
      return
    case 'down':
      device.network.down = true
      return
    case 'up':
      device.network.down = false
  }
}

test(
  'once faults stop, the cloud has billed exactly what the device has recorded',
  { timeout: 60_000 + RUNS * 1_000 },
  async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(move, { minLength: 20, maxLength: 60, size: 'max' }),
        fc.integer({ min: 1, max: 5 }),
        async (moves, entries) => {
          const device = await TestDevice.make()
          device.disk.segmentEntriesMax = entries
          await device.start()
          for (const one of moves) {
            if (device.fatal.length > 0) await device.restart()
            await make(device, one)
            await device.settle()
          }
          await calmDown(device)
          audit(device)
          expect(device.conditions.filter((condition) => !condition.startsWith('session'))).toEqual([])
          device.kill()
        },
      ),
      { numRuns: RUNS },
    )
  },
)

test('a device whose identity found no room on the disk enrolls with the same token when there is room', async () => {
  const device = await TestDevice.make()
  device.network.tamper = (request, answer) => {
    if (request.url.includes('/enroll')) device.disk.refusals = 1
    return answer
  }
  await device.start()
  await device.settle()
  expect(device.link.status().deviceId).toBeNull()
  await calmDown(device)
  expect(device.link.status().deviceId).not.toBeNull()
  device.kill()
})
