// What a device takes from the answer to a segment, beyond its grant.
import { expect, test } from 'vitest'
import { changeAnswers } from './changed-answers.ts'
import { INSTANCE, OTHER_INSTANCE } from './fake-cloud.ts'
import { policyWith } from './policies.ts'
import { restoreAndSpend } from './restore.ts'
import { TestDevice } from './test-device.ts'

const MINUTE = 60_000

test('rules of the cloud that are older than those in force are named until they are current again', async () => {
  const device = await TestDevice.running()
  await device.cloud.publish(policyWith(5))
  await device.sync()
  const says = async (revision: number): Promise<readonly string[]> => {
    const others = { instanceId: OTHER_INSTANCE, revision: 9 }
    changeAnswers(device, (answer) => ({ ...answer, policies: [others, { instanceId: INSTANCE, revision }] }))
    await device.sync()
    return device.conditions
  }
  expect(await says(3)).toEqual(['policy: POLICY_REVISION_OLDER'])
  expect(device.link.status().policies).toMatchObject([{ applied: 5, newest: 3 }])
  await says(3)
  // It may have been restored: the device shows what it has signed, once.
  const shown = device.cloud.proofs.flatMap(({ proofs }) => proofs)
  expect(shown).toEqual(device.disk.read().policies.map(({ document }) => document))
  expect(await says(5)).toEqual([])
  expect(device.link.status().policies).toMatchObject([{ applied: 5, newest: 5 }])
})

test('an answer that the cloud stored a minute ago says nothing of the newest rules', async () => {
  const device = await TestDevice.running()
  await device.cloud.publish(policyWith(5))
  await device.sync()
  const isOld = { ms: MINUTE }
  changeAnswers(device, (answer) => ({
    ...answer,
    time: Number(answer['time']) - isOld.ms,
    policies: [{ instanceId: INSTANCE, revision: 3 }],
  }))
  await device.sync()
  expect(device.conditions).toEqual([])
  expect(device.link.status().policies).toMatchObject([{ applied: 5, newest: 5 }])
  isOld.ms = MINUTE - 10_000
  await device.sync()
  expect(device.conditions).toEqual(['policy: POLICY_REVISION_OLDER'])
})

test('a response without a grant acknowledges the segment, and leaves the balances unchanged', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  const before = device.left
  changeAnswers(device, (answer) => ({ ...answer, grant: null }))
  await device.sync()
  expect([device.conditions, device.fatal]).toEqual([[], []])
  expect(device.link.status()).toMatchObject({ connected: true, backlog: 0, unacknowledgedSeq: null })
  expect(device.left).toBe(before)
})

test('the backlog falls with each part of an undelivered range', async () => {
  const device = await TestDevice.running()
  await restoreAndSpend(device)
  const backlogs: number[] = []
  changeAnswers(device, (answer) => {
    backlogs.push(device.link.status().backlog)
    return answer
  })
  await device.sync()
  await device.sync()
  expect(device.link.status()).toMatchObject({ epoch: 2, backlog: 0 })
  expect(backlogs).toEqual([7, 5, 3, 1, 0])
})
