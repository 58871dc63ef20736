import { z } from 'zod'
import type { HttpClient } from '../client/http.ts'
import { enrollmentTokenResponse } from '../protocol/edge/enrollment.ts'
import { uuid } from '../protocol/wire.ts'
import { CONDITIONS, LINE_ITEMS, RATE_TABLES } from './site.ts'

const DAY_MS = 86_400_000

export async function provision(twin: HttpClient, now: number): Promise<string> {
  const inDays = (days: number): number => now + days * DAY_MS
  const { id: instanceId } = await twin.json(
    {
      method: 'POST',
      path: '/provisioning/api/v1.1/instances',
      body: { shortName: 'Lindenworks', accountId: 'lindenworks' },
    },
    z.object({ id: uuid }),
  )
  for (const { series, version, effectiveIn, items } of RATE_TABLES) {
    const body = { series, version, effectiveFrom: inDays(effectiveIn), items }
    await twin.text({ method: 'POST', path: '/provisioning/api/v1.1/rate-tables', body })
  }
  const conditions = await twin.json(
    {
      method: 'POST',
      path: `/api/v1.1/instances/${instanceId}/conditions`,
      body: Object.entries(CONDITIONS).map(([name, condition]) => ({ name, ...condition })),
    },
    z.array(z.object({ id: uuid, name: z.string() })),
  )
  const idOf = new Map(conditions.map(({ id, name }) => [name, id]))
  for (const { activationId, series, quantity, overdraft, startsIn, endsIn, rules, monthlyLimit } of LINE_ITEMS) {
    await twin.text({
      method: 'PUT',
      path: `/provisioning/api/v1.1/instances/${instanceId}/line-items`,
      body: {
        activationId,
        state: 'DEPLOYED',
        quantity,
        start: inDays(startsIn),
        end: inDays(endsIn),
        attributes: {
          elastic: true,
          rateTableSeries: series,
          ...(overdraft === undefined ? {} : { overdraftType: 'Number', overdraftLimit: overdraft }),
        },
      },
    })
    if (monthlyLimit !== undefined) {
      await twin.text({
        method: 'PUT',
        path: `/api/v1.1/instances/${instanceId}/line-items/${encodeURIComponent(activationId)}/consumption-limit`,
        body: { limit: monthlyLimit, frequency: 'MONTHLY', nextReset: inDays(30) },
      })
    }
    if (rules.length === 0) continue
    await twin.text({
      method: 'PUT',
      path: `/api/v1.1/instances/${instanceId}/line-items/${encodeURIComponent(activationId)}/actions`,
      body: rules.map(({ name, action, condition, allocation }) => ({
        name,
        action,
        ...(condition === undefined ? {} : { conditionId: idOf.get(condition) }),
        ...(allocation === undefined ? {} : { allocation }),
      })),
    })
  }
  return instanceId
}

export async function enrollmentToken(twin: HttpClient, instanceId: string): Promise<string> {
  const body = { instanceIds: [instanceId], name: 'hall gateway' }
  const call = { method: 'POST', path: '/edge/api/v1/enrollment-tokens', body } as const
  return (await twin.json(call, enrollmentTokenResponse)).token
}
