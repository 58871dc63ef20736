/** Instance operations. Source: interface, Instances. */
import { actingAs } from '../../storage/audit.ts'
import {
  type InstanceWire,
  PAGE_SIZE_DEFAULT,
  instance,
  instanceBody,
  instancePage,
  instanceQuery,
} from '../../../protocol/service/instances.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'
import { createInstance } from '../../service-api/create-instance.ts'
import { claimOf } from '../../service-api/idempotency-key.ts'
import type { Instance } from '../../storage/records.ts'
import { requireInstance } from '../../storage/require-record.ts'
import type { Store } from '../../storage/store.ts'
import { type Area, type Operation, inInstance, serviceOperation, ADMINISTRATORS } from '../operation.ts'
import { pagesOf } from '../merge-cells.ts'
import { pageOf } from './page.ts'

/** v1.1 has instances below `api` as well, and so below its second address. */
const place = {
  areas: (version: ApiVersion): readonly Area[] =>
    version === 'v1.0' ? ['provisioning/api'] : ['provisioning/api', 'api', 'floating/api'],
  principals: ADMINISTRATORS,
  tag: 'Instances',
} as const

interface InstanceOperationDeps {
  readonly store: Store
  readonly newId: () => string
  /** {@link Moment.present} */
  readonly present: () => number
}

export function instanceOperations({ store, newId, present }: InstanceOperationDeps): readonly Operation[] {
  return [
    serviceOperation({
      id: 'listinstances',
      summary: 'List instances, or find the default instance of an account',
      answers: { 200: { description: 'One page.', body: instancePage } },
      ...place,
      method: 'GET',
      path: '/instances',
      query: instanceQuery,
      account: { part: 'query', path: ['accountId'] },
      cells: pagesOf('content'),
      handle: async ({ query: { next = 0, size = PAGE_SIZE_DEFAULT, accountId } }) =>
        store.read(async (reader) => {
          if (accountId !== undefined) {
            const found = await reader.instances.defaultOf(accountId)
            return { status: 200, body: { content: found === undefined ? [] : [instanceToWire(found)], next: 0 } }
          }
          const page = await pageOf(next, size, (offset, limit) => reader.instances.list(offset, limit))
          return { status: 200, body: { content: page.shown.map(instanceToWire), next: page.next } }
        }),
    }),
    serviceOperation({
      id: 'createinstance',
      role: 'rules',
      summary: 'Create an instance',
      example: { shortName: 'Plant 7', accountId: 'customer-4711' },
      answers: { 201: { description: 'The instance.', body: instance } },
      errors: ['IDEMPOTENCY_CONFLICT'],
      idempotent:
        'Creates one instance: for 24 hours, administrators get the same instance again for the same request under the same key, also if another of them sent it first. A different request under the key is refused.',
      ...place,
      method: 'POST',
      path: '/instances',
      body: instanceBody,
      account: { part: 'body', path: ['accountId'] },
      handle: async ({ principal, body: { shortName, accountId }, idempotencyKey, now }) => {
        const fresh = { id: newId(), shortName, accountId }
        const request = [shortName, accountId]
        const once =
          idempotencyKey === null
            ? null
            : // Two administrators can apply one file at the same time, and an instance cannot be deleted.
              claimOf(
                { ...principal, issuer: null, keyId: '' },
                { concerned: 'instances', key: idempotencyKey, request, created: present() },
              )
        return { status: 201, body: instanceToWire(await createInstance(actingAs(store, principal), fresh, now, once)) }
      },
    }),
    serviceOperation({
      id: 'getinstance',
      summary: 'Show an instance',
      answers: { 200: { description: 'The instance.', body: instance } },
      errors: ['NOT_FOUND'],
      ...place,
      method: 'GET',
      path: '/instances/:instanceId',
      params: inInstance,
      handle: async ({ params }) => {
        const found = await store.read((reader) => requireInstance(reader, params.instanceId))
        return { status: 200, body: instanceToWire(found) }
      },
    }),
  ]
}

function instanceToWire({ id, shortName, accountId, defaultInstance, created, modified }: Instance): InstanceWire {
  return { id, shortName, accountId, defaultInstance, created, modified }
}
