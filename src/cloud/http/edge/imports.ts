/** Import of instances that another service keeps. */
import { actingAs } from '../../storage/audit.ts'
import { IMPORT_BODY_BYTES_MAX, importBody, importForm, importResult } from '../../../protocol/edge/import.ts'
import { type ImportDeps, importInstance } from '../../service-api/import-instance.ts'
import { type Operation, ADMINISTRATORS, edgeOperation, inInstance } from '../operation.ts'

export function importOperations({ store, newId }: ImportDeps): readonly Operation[] {
  return [
    edgeOperation({
      method: 'PUT',
      path: '/instances/:instanceId/import',
      principals: ADMINISTRATORS,
      params: inInstance,
      body: importBody,
      bodyForm: importForm,
      account: { part: 'body', path: ['instance', 'accountId'] },
      bodyMax: IMPORT_BODY_BYTES_MAX,
      id: 'importInstance',
      role: 'rules',
      tag: 'Administration',
      summary: 'Compare an instance of another service with this one, or take it over',
      description:
        'Takes over instance, conditions, line items, actions and use, in one transaction. Rules and terms follow the source. Imported use is counted beside the use of this service: a repeated import adds the difference. With `apply: false`, or with conflicts, nothing changes.',
      example: {
        source: 'the service of plant 7',
        apply: false,
        addUsed: false,
        lowerUsed: false,
        instance: { shortName: 'Plant 7', accountId: 'customer-4711', defaultInstance: true },
        conditions: [],
        lineItems: [
          {
            lineItem: {
              activationId: 'ACT-1',
              state: 'DEPLOYED',
              quantity: 200,
              start: 0,
              end: 253_402_300_799_999,
              attributes: { elastic: true },
            },
            used: '44000000',
            actions: [],
          },
        ],
      },
      answers: { 200: { description: 'The differences, and whether they were removed.', body: importResult } },
      handle: async ({ principal, params, body, now }) => {
        const deps = { store: actingAs(store, principal), newId }
        return { status: 200, body: await importInstance(deps, params.instanceId, body, now) }
      },
    }),
  ]
}
