// The site of the README: a workshop with one line item that pays for laser cuts.
import { z } from 'zod'
import type { Site } from '../../crash/site/site.ts'

/** Creates the instance, its price list and its tokens, and a token with which the device of the site enrolls. */
export async function provisionWorkshop(site: Site): Promise<void> {
  using cloud = site.administrator()
  const area = '/provisioning/api/v1.1'
  const { id } = await cloud.json(
    { method: 'POST', path: `${area}/instances`, body: { shortName: 'Workshop', accountId: 'me' } },
    z.object({ id: z.string() }),
  )
  site.instanceId = id
  const items = [{ name: 'LaserCut', version: '1.0', rate: 0.85 }]
  await cloud.text({ method: 'POST', path: `${area}/rate-tables`, body: { version: '1', effectiveFrom: 0, items } })
  const window = { start: 0, end: 253_402_300_799_999 }
  const attributes = { elastic: true, rateTableSeries: '' }
  const body = { activationId: 'FIRST-1000', state: 'DEPLOYED', quantity: 1_000_000, ...window, attributes }
  await cloud.text({ method: 'PUT', path: `${area}/instances/${id}/line-items`, body })
  await site.newDevice()
}
