/** A client of the cloud requests access once, as the product's operation serves it. */
import { accessRequestOperations } from '../../src/cloud/http/service/access-request.ts'
import type { Principal } from '../../src/cloud/service-api/principal.ts'
import type { Body } from '../request-body.ts'
import type { TwinProcess } from './twin-process.ts'

const CLIENT: Principal = {
  kind: 'CLIENT',
  keyId: 'client',
  name: null,
  issuer: null,
  scope: null,
  instances: new Set(),
  deviceId: null,
}

/** @param key for idempotency; null: none. @throws CodedError */
export async function requestAccess(
  twin: TwinProcess,
  instanceId: string,
  body: Body,
  key: string | null,
): Promise<{ readonly text: string }> {
  const [operation] = accessRequestOperations(twin)
  if (operation === undefined) throw new Error('the cloud serves access requests')
  const answer = await operation.handle({
    version: 'v1.1',
    params: { instanceId },
    query: {},
    body,
    principal: CLIENT,
    instanceHeader: null,
    idempotencyKey: key,
    headers: {},
    now: twin.now(),
    log: { warn: () => undefined },
  })
  return { text: answer.text ?? JSON.stringify(answer.body) }
}
