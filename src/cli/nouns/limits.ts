/** Consumption limits: the service shows them one by one. */
import { CodedError } from '../../protocol/errors.ts'
import type { Scope } from './noun.ts'
import type { Row, Service } from './service.ts'
import { textOf } from './noun.ts'

export async function listLimits(service: Service, { instanceId }: Scope): Promise<readonly Row[]> {
  const lineItems = await service.rows(`/provisioning/api/v1.1/instances/${instanceId}/line-items`)
  const limits: Row[] = []
  for (const { activationId } of lineItems) {
    const id = textOf(activationId)
    const path = `/api/v1.1/instances/${instanceId}/line-items/${encodeURIComponent(id)}/consumption-limit`
    try {
      limits.push({ lineItemId: id, ...((await service.get(path)) as Row) })
    } catch (error) {
      if (!(error instanceof CodedError && error.code === 'NOT_FOUND')) throw error
    }
  }
  return limits
}
