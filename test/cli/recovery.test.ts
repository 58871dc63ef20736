// The recovery of a restored twin, as an administrator sees and ends it.
import { expect, test } from 'vitest'
import { lineAccount } from '../../src/core/accounts/account.ts'
import type { RecoveryStateWire } from '../../src/protocol/edge/administration.ts'
import { instanceId } from './agent-status.ts'
import { fakeService, readAdminKey } from './fake-service.ts'
import { tallygate } from './outside.ts'

const path = `/dm/edge/api/v1/instances/${instanceId}/recovery`
const deviceId = '0c1d8a1e-0000-4000-8000-000000000001'
const unnamedId = '0c1d8a1e-0000-4000-8000-000000000002'

async function run(what: 'show' | 'end', body: RecoveryStateWire, ...args: string[]): Promise<readonly string[]> {
  await using twin = await fakeService('tcp', {
    [`GET ${path}`]: { body },
    [`POST ${path}/end`]: { body },
    'GET /dm/edge/api/v1/devices?next=0': { body: { devices: [{ id: deviceId, name: 'press-7' }], next: 0 } },
  })
  const { code, out, err } = await tallygate(
    ['recovery', what, instanceId, ...args, '--url', twin.address, '--admin-key', '/admin.pem'],
    { readText: readAdminKey },
  )
  expect({ code, err }).toEqual({ code: 0, err: '' })
  return out.split('\n')
}

const none: RecoveryStateWire = { since: null, unproven: null, waitingFor: [], accounts: [] }
const underWay: RecoveryStateWire = {
  since: 1_800_000_000_000,
  unproven: null,
  waitingFor: [
    { deviceId, epoch: 1, status: 'FENCED' },
    { deviceId, epoch: 2, status: 'ACTIVE' },
    { deviceId: unnamedId, epoch: null, status: null },
  ],
  accounts: [{ account: lineAccount(instanceId, 'FIRST-1000', 0), atRisk: '550000000', free: '450000000' }],
}

test('is shown with what it waits for, what is withheld and what is sold meanwhile', async () => {
  expect(await run('show', underWay)).toEqual([
    'recovery     since 2027-01-15T08:00:00.000Z',
    'sold         only tokens that are certain to be unsold',
    'waiting for  2 devices',
    `  press-7 (${deviceId})  epoch 1, fenced`,
    `  press-7 (${deviceId})  epoch 2, active`,
    `  ${unnamedId}            never attached`,
    'A fenced epoch may never report: its device was restored or copied, and continues with another epoch. The cloud',
    `settles it after edge.settle_after. To end the recovery earlier: tallygate recovery end ${instanceId}`,
    'If a device that has never attached no longer exists: tallygate devices terminate DEVICE',
    '',
    'WITHHELD  FREE  ACCOUNT',
    '550       450   FIRST-1000',
    '',
  ])
  expect((await run('show', { ...underWay, unproven: 'MARK' })).join('\n')).toContain('nothing until you end')
  expect((await run('show', { ...underWay, unproven: 'NODE' })).join('\n')).toContain('every node of the cloud')
  const [, active] = underWay.waitingFor
  expect((await run('show', { ...underWay, waitingFor: [active!] })).join('\n')).not.toContain('never')
  const ending = { ...underWay, waitingFor: [] }
  expect(await run('show', ending)).toContain('waiting for  no device: the recovery ends within a minute')
  expect(await run('show', { ...ending, unproven: 'MARK' })).toContain('waiting for  no device')
  expect(await run('show', none)).toEqual(['No recovery.', ''])
  expect(JSON.parse((await run('show', underWay, '--json'))[0] ?? '')).toEqual(underWay)
})

test('is ended with what may have been sold before', async () => {
  expect(await run('end', { ...underWay, accounts: [] })).toEqual([
    'The recovery has ended. No tokens were withheld.',
    '',
  ])
  expect(await run('end', underWay)).toEqual([
    'The recovery has ended. These tokens may be sold a second time:',
    '',
    'AT RISK  FREE  ACCOUNT',
    '550      450   FIRST-1000',
    '',
  ])
  expect(await run('end', none)).toEqual(['No recovery was in progress.', ''])
})
