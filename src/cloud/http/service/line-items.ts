/** Line item operations. Source: interface, Line items and Errors. */
import { z } from 'zod'
import { rawNumber, tokensNumber } from '../../../protocol/wire.ts'
import {
  type LineItemProblem,
  type LineItemWire,
  lineItemBodies,
  lineItemId,
  lineItemProblems,
  lineItems,
  parseLineItem,
  problemAt,
} from '../../../protocol/service/line-items.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'
import { deleteLineItem } from '../../service-api/delete-line-item.ts'
import { type Mapped, mapLineItem } from '../../service-api/map-line-item.ts'
import { type LineItemUse, listLineItems, showLineItem } from '../../service-api/show-line-items.ts'
import type { Store } from '../../storage/store.ts'
import { type Answer, type Operation, inInstance, instanceId, CLIENTS, ADMINISTRATORS } from '../operation.ts'
import { rulesOperation } from './rules-operation.ts'
import { LINE_ITEM_EXAMPLE, problemsExample } from './examples.ts'

export const inLineItem = z.object({ instanceId, lineItemId })

const place = { areas: ['provisioning/api'], tag: 'Line items', errors: ['NOT_FOUND'] } as const
const ofInstance = { ...place, path: '/instances/:instanceId/line-items', params: inInstance } as const
const ofLineItem = { ...place, path: '/instances/:instanceId/line-items/:lineItemId', params: inLineItem } as const

export function lineItemOperations(store: Store): readonly Operation[] {
  return [
    rulesOperation(store, {
      ...ofInstance,
      id: 'listlineitems',
      summary: 'List the line items of an instance',
      answers: (version) => ({ 200: { description: 'All line items.', body: z.array(lineItems[version]) } }),
      method: 'GET',
      principals: CLIENTS,
      handle: async ({ params, version, now }, acting) => {
        const uses = await acting.read((reader) => listLineItems(reader, params.instanceId, now))
        return { status: 200, body: uses.map((use) => lineItemToWire(version, use)) }
      },
    }),
    rulesOperation(store, {
      ...ofInstance,
      id: 'addactivation',
      role: 'rules',
      summary: 'Map a line item to an instance, or replace its details',
      bodyForm: (version) => lineItemBodies[version],
      example: LINE_ITEM_EXAMPLE,
      answers: (version) => ({
        200: { description: 'The details of a mapped line item were replaced.', body: lineItems[version] },
        201: { description: 'The line item was mapped.', body: lineItems[version], example: LINE_ITEM_EXAMPLE },
        400: {
          description: 'The payload is invalid. Each text is a path and its problem.',
          body: lineItemProblems[version],
          example: problemsExample(version),
        },
      }),
      method: 'PUT',
      principals: ADMINISTRATORS,
      body: z.unknown(),
      handle: async ({ params, body, version, now }, acting) => {
        const parsed = parseLineItem(version, params.instanceId, body)
        if (!parsed.ok) return invalid(version, parsed.problems)
        const mapped = await mapLineItem(acting, params.instanceId, parsed.body, now).catch(refused)
        if (mapped.outcome === 'REFUSED') return invalid(version, mapped.problems)
        return { status: mapped.outcome === 'MAPPED' ? 201 : 200, body: lineItemToWire(version, mapped.use) }
      },
    }),
    rulesOperation(store, {
      ...ofLineItem,
      id: 'getlineitembyid',
      summary: 'Show a line item',
      answers: (version) => ({
        200: { description: 'The line item.', body: lineItems[version], example: LINE_ITEM_EXAMPLE },
      }),
      method: 'GET',
      principals: CLIENTS,
      handle: async ({ params, version, now }, acting) => {
        const use = await acting.read((reader) => showLineItem(reader, params.instanceId, params.lineItemId, now))
        return { status: 200, body: lineItemToWire(version, use) }
      },
    }),
    rulesOperation(store, {
      ...ofLineItem,
      id: 'deletelineitem',
      role: 'rules',
      summary: 'Delete a line item that is OBSOLETE',
      answers: { 204: { description: 'The line item is deleted.' } },
      errors: ['NOT_FOUND', 'CONFLICT'],
      method: 'DELETE',
      principals: ADMINISTRATORS,
      handle: async ({ params, now }, acting) => {
        await deleteLineItem(acting, params.instanceId, params.lineItemId, now)
        return { status: 204 }
      },
    }),
  ]
}

/** A change that was rolled back. @throws the error, if it is not about the body */
function refused(error: unknown): Mapped {
  if (!(error instanceof CodedError) || error.code !== 'BAD_REQUEST') throw error
  return { outcome: 'REFUSED', problems: [problemAt([], String(error.details['problem']))] }
}

/** The text of a problem is far longer than the field of a body that causes it. */
const PROBLEMS_SHOWN = 100

/** The key of the problems is what v1.1 changed. */
function invalid(version: ApiVersion, problems: readonly LineItemProblem[]): Answer {
  const texts = problems.slice(0, PROBLEMS_SHOWN).map(({ text }) => text)
  return { status: 400, body: version === 'v1.0' ? { errors: texts } : { message: texts } }
}

function lineItemToWire(version: ApiVersion, { record, used }: LineItemUse): LineItemWire {
  const { rateTableSeries, overdraftType, overdraftLimit, resetFrequency, given } = record
  const shown = (number: number, text: string | undefined): number => (text === undefined ? number : rawNumber(text))
  return {
    activationId: record.id,
    state: record.state,
    quantity: shown(tokensNumber(record.quantity), given.quantity),
    start: shown(record.start, given.start),
    end: shown(record.end, given.end),
    used: tokensNumber(used),
    attributes: {
      elastic: record.elastic,
      ...(rateTableSeries === null ? {} : { rateTableSeries }),
      ...(overdraftLimit === null ? {} : { overdraftLimit: shown(tokensNumber(overdraftLimit), given.overdraftLimit) }),
      ...(overdraftType === null ? {} : { overdraftType }),
      ...(resetFrequency === null || version === 'v1.0' ? {} : { resetFrequency }),
    },
  }
}
