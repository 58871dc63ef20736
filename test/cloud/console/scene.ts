// A cloud with something to see on each page of the console, for its tests and pictures. Some names are hostile.
import { topUpRequest, newDeviceKeys } from '../sync/test-device.ts'
import { EDGE, EdgeClient } from '../devices/edge-client.ts'
import { DAY, HOUR, MINUTE, START, type Twin, text } from '../harness.ts'

export const HOSTILE = `<img src=x onerror=alert(1)>"'&`

export interface Scene {
  readonly instanceId: string
  /** It has tokens, sessions and a backlog. */
  readonly device: EdgeClient
  /** Of the cloud. */
  readonly sessionId: string
}

/** @param hostile whether names contain markup */
export async function furnish(twin: Twin, hostile: boolean): Promise<Scene> {
  const shortName = hostile ? HOSTILE : 'Plant 7'
  const created = await twin.call('POST', '/provisioning/api/v1.1/instances', {
    body: { shortName, accountId: hostile ? HOSTILE : 'Example AG' },
  })
  const instanceId = text(created.body, 'id')
  await twin.rates({ Print: 1, Scan: 0.5 })
  await twin.rates({ 'Laser cut': 12.5, Engrave: 4 }, 'laser')
  await twin.lineItem(instanceId, {
    activationId: 'PRINT-2026',
    quantity: 5_000,
    attributes: { resetFrequency: 'MONTHLY' },
  })
  const laser = { elastic: true, rateTableSeries: 'laser', overdraftType: 'Unlimited' }
  await twin.lineItem(instanceId, { activationId: 'LASER-2026', quantity: 20_000, attributes: laser })
  await twin.call('PUT', `/api/v1.1/instances/${instanceId}/line-items/LASER-2026/consumption-limit`, {
    body: { limit: 500, frequency: 'WEEKLY', nextReset: START + 7 * DAY },
  })
  await twin.lineItem(instanceId, {
    activationId: 'SCAN-2025',
    quantity: 100,
    start: START - DAY,
    end: START + 3 * DAY,
  })
  const department = { name: hostile ? HOSTILE : 'Sales', operator: 'IN', property: 'department', values: ['sales'] }
  const rules = `/api/v1.1/instances/${instanceId}`
  const condition = text((await twin.call('POST', `${rules}/conditions`, { body: [department] })).body, 0, 'id')
  const actions = [
    { name: 'Sales may print', conditionId: condition, action: 'ALLOW', allocation: 400 },
    { name: 'Everyone else', action: 'ALLOW' },
  ]
  const saved = await twin.call('POST', `${rules}/line-items/PRINT-2026/actions`, { body: actions })
  if (saved.status >= 300) throw new Error(saved.text)

  const tokenFor = async (name: string): Promise<string> => {
    const body = {
      instanceIds: [instanceId],
      name,
      labels: { site: 'berlin', line: name.startsWith('Press') ? '2' : '3' },
    }
    return text((await twin.call('POST', `${EDGE}/enrollment-tokens`, { body })).body, 'token')
  }
  const device = await EdgeClient.join(twin, instanceId, 'ES256', await tokenFor('Printer'))
  device.device.clock = { now: twin.now, earliest: twin.now, latest: twin.now }
  for (const name of ['Press 1', 'Press 2', hostile ? HOSTILE : 'Laser cutter']) {
    const token = await tokenFor(name)
    const { jwk } = await newDeviceKeys()
    await twin.call('POST', `${EDGE}/enrollments`, { token, body: { publicKey: jwk } })
  }
  const line = device.line('PRINT-2026')
  await device.device.sync([topUpRequest(line, 300_000_000n)])
  for (const amount of [40_000_000n, 25_000_000n, 18_500_000n]) {
    device.device.charge({ lineItemId: 'PRINT-2026', accounts: [line], amount })
  }
  await device.device.sync()
  for (const [at, prints] of [40, 65, 20, 5, 80, 120, 90, 35].entries()) {
    twin.now = START + at * HOUR
    await twin.access(instanceId, { Print: prints, Scan: at }, hostile ? HOSTILE : 'LisaBarry')
  }
  const opened = await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId } })
  await twin.access(instanceId, { 'Laser cut': 8 }, 'KimLee')
  await twin.access(instanceId, { Weld: 1 }, 'KimLee')
  twin.now += 10 * MINUTE
  return { instanceId, device, sessionId: text(opened.body, 'sessionId') }
}
