// Agent and cloud with different engine versions. The version is stated; the code that decides is the same.
import { ENGINE } from '../../../src/core/engine.ts'
import { expect, test } from 'vitest'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { policyWith } from '../sync/policies.ts'
import { TestDevice } from '../sync/test-device.ts'

const inForce = (device: TestDevice): number | undefined => device.activePolicies.get(INSTANCE)?.document.revision

function usableUntil(device: TestDevice): number {
  const policy = device.activePolicies.get(INSTANCE)
  return policy === undefined ? 0 : device.activePolicies.usableUntil(policy)
}

/** An upgraded cloud issues all rules again. */
async function upgradeCloud(device: TestDevice, version: number, oldest: number): Promise<void> {
  device.cloud.engine = { version, oldest }
  const revision = (device.cloud.policies.get(INSTANCE)?.revision ?? 0) + 1
  await device.cloud.publish(policyWith(revision, { engine: version, oldestEngine: oldest }))
}

test('an agent uses rules of a newer cloud that still supports its engine', async () => {
  const device = await TestDevice.running()
  await upgradeCloud(device, 3, 1)
  await device.sync()
  expect([inForce(device), device.conditions]).toEqual([2, []])
  expect(device.link.status().policies).toEqual([
    {
      instanceId: INSTANCE,
      applied: 2,
      newest: 2,
      engine: 3,
      name: 'Workshop',
      remainingMs: expect.any(Number) as number,
    },
  ])
})

test('an agent that is too old for the cloud uses its rules until they expire, delivers, and names the side to upgrade', async () => {
  const device = await TestDevice.running()
  await upgradeCloud(device, 4, 3)
  await device.sync()
  const until = usableUntil(device)
  await device.charge(5n)
  await device.pass(3_600_000)
  expect([inForce(device), device.conditions]).toEqual([1, ['policy: AGENT_ENGINE_OLD']])
  const message = device.link.status().conditions[0]?.message ?? ''
  expect(message).toContain(`The agent decides with engine ${ENGINE.version}. `)
  expect(message).toMatch(/Upgrade the agent\.$/)
  expect(device.link.status()).toMatchObject({ connected: true, backlog: 0 })
  expect(usableUntil(device)).toBe(until)
  const remainingMs = (): number | undefined => device.link.status().policies[0]?.remainingMs
  const before = remainingMs() ?? 0
  expect(before).toBe(until - (device.clock.reading().latest ?? 0))
  device.time.advance(before + 1)
  expect(remainingMs()).toBe(0)

  device.engine = { version: 3, oldest: 1 }
  await device.restart()
  await device.sync()
  expect([inForce(device), device.conditions]).toEqual([2, []])
  expect(usableUntil(device)).toBeGreaterThan(until)
})

test('an upgraded agent decides by stored rules of an older engine that it can use, and logs it', async () => {
  const device = await TestDevice.running()
  device.network.down = true
  device.engine = { version: 2, oldest: 1 }
  await device.restart()
  expect(inForce(device)).toBe(1)
  expect(device.logged).toContainEqual({
    fields: { instanceId: INSTANCE, revision: 1, madeFor: 1, engine: 2 },
    message: 'the rules were made for engine 1; this agent decides by them with engine 2',
  })
})

test('an upgraded agent reports that it cannot use the rules of an older engine, and the older agent still can', async () => {
  const device = await TestDevice.running()
  device.engine = { version: 3, oldest: 2 }
  await device.restart()
  await device.sync()
  expect([inForce(device), device.conditions]).toEqual([undefined, ['policy: CLOUD_ENGINE_OLD']])
  expect(device.link.status().conditions[0]?.message).toMatch(/Upgrade the cloud\.$/)

  device.engine = { version: 1, oldest: 1 }
  await device.restart()
  await device.sync()
  expect([inForce(device), device.conditions]).toEqual([1, []])

  device.engine = { version: 3, oldest: 2 }
  await upgradeCloud(device, 2, 1)
  await device.restart()
  await device.sync()
  expect([inForce(device), device.conditions]).toEqual([2, []])
})

test('an agent that was downgraded does not take rules for later engines for malformed ones', async () => {
  const device = await TestDevice.running()
  device.engine = { version: 2, oldest: 1 }
  await device.restart()
  await upgradeCloud(device, 2, 2)
  const document = { ...policyWith(3, { engine: 2, oldestEngine: 2 }), moonPhase: 'full' }
  await device.sync()
  expect(inForce(device)).toBe(2)
  device.engine = { version: 1, oldest: 1 }
  // A cloud that does not look at the engine, as a proxy in between could be.
  device.cloud.engine = { version: 2, oldest: 1 }
  await device.cloud.publish(document)
  await device.restart()
  await device.sync()
  expect([inForce(device), device.conditions]).toEqual([undefined, ['policy: AGENT_ENGINE_OLD']])
})
