// The site of the README as a device with a cloud in memory: a laser cut costs 0.85 tokens a minute.
import { policyWith } from '../agent/sync/policies.ts'
import { Application, Site } from '../scenarios/agent/site.ts'

const DAY = 86_400_000

export async function openWorkshop(): Promise<{ readonly site: Site; readonly application: Application }> {
  const site = await Site.make(10n ** 12n)
  const [item] = policyWith(2).lineItems
  const window = { startsAt: Date.now() - DAY, endsAt: Date.now() + DAY }
  await site.cloud.publish(
    policyWith(2, {
      issuedAt: Date.now(),
      lineItems: [{ ...item!, ...window }],
      rateTables: [
        { series: '', version: '1', effectiveFrom: 1, items: [{ name: 'LaserCut', version: '1.0', rate: '0.85' }] },
      ],
    }),
  )
  const application = new Application(await site.start())
  await application.until(({ accounts }) => accounts.some(({ granted }) => granted > 0n))
  return { site, application }
}
