import { z } from 'zod'
import type { HttpClient } from '../client/http.ts'
import { enrollmentTokenResponse } from '../protocol/edge/enrollment.ts'
import { uuid } from '../protocol/wire.ts'
import { CONDITIONS, LINE_ITEMS, RATE_TABLES } from './site.ts'

const DAY_MS = 86_400_000

export async function provision(twin: HttpClient, now: number): Promise<string> {
  const inDays = (days: number): number => now + days * DAY_MS
  const instance = { shortName: 'Lindenworks', accountId: 'lindenworks' }
  const { id: instanceId } = await twin.json(
    { method: 'POST', path: '/provisioning/api/v1.1/instances', body: instance },
    z.object({ id: uuid }),
  )
  for (const { series, version, effectiveIn, items } of RATE_TABLES) {
    const body = { series, version, effectiveFrom: inDays(effectiveIn), items }
    await twin.text({ method: 'POST', path: '/provisioning/api/v1.1/rate-tables', body })
  }
  const named = Object.entries(CONDITIONS).map(([name, condition]) => ({ name, ...condition }))
  const conditions = await twin.json(
    { method: 'POST', path: `/api/v1.1/instances/${instanceId}/conditions`, body: named },
    z.array(z.object({ id: uuid, name: z.string() })),
  )
  const idOf = new Map(conditions.map(({ id, name }) => [name, id]))
  for (const { activationId, series, quantity, overdraft, startsIn, endsIn, rules, monthlyLimit } of LINE_ITEMS) {
    const limited = overdraft === undefined ? {} : { overdraftType: 'Number', overdraftLimit: overdraft }
    const attributes = { elastic: true, rateTableSeries: series, ...limited }
    const [start, end] = [inDays(startsIn), inDays(endsIn)]
    await twin.text({
      method: 'PUT',
      path: `/provisioning/api/v1.1/instances/${instanceId}/line-items`,
      body: { activationId, state: 'DEPLOYED', quantity, start, end, attributes },
    })
    const path = `/api/v1.1/instances/${instanceId}/line-items/${encodeURIComponent(activationId)}`
    if (monthlyLimit !== undefined) {
      const body = { limit: monthlyLimit, frequency: 'MONTHLY', nextReset: inDays(30) }
      await twin.text({ method: 'PUT', path: `${path}/consumption-limit`, body })
    }
    if (rules.length === 0) continue
    const actions = rules.map(({ name, action, condition, allocation }) => ({
      name,
      action,
      ...(condition === undefined ? {} : { conditionId: idOf.get(condition) }),
      ...(allocation === undefined ? {} : { allocation }),
    }))
    await twin.text({ method: 'PUT', path: `${path}/actions`, body: actions })
  }
  return instanceId
}

export async function enrollmentToken(twin: HttpClient, instanceId: string): Promise<string> {
  const body = { instanceIds: [instanceId], name: 'hall gateway' }
  const call = { method: 'POST', path: '/edge/api/v1/enrollment-tokens', body } as const
  return (await twin.json(call, enrollmentTokenResponse)).token
}
