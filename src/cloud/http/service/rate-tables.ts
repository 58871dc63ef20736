/** Rate table operations. Source: interface, Rate tables; documentation on their answers. */
import { actingAs } from '../../storage/audit.ts'
import { CodedError } from '../../../protocol/errors.ts'
import {
  RATE_TABLE_SAVED,
  type RateTableWire,
  rateTableBody,
  rateTableConflict,
  rateTableQuery,
  rateTableSaved,
  rateTables,
} from '../../../protocol/service/rate-tables.ts'
import { exactNumber } from '../../../protocol/wire.ts'
import { createRateTable, deleteRateTable } from '../../service-api/change-rate-tables.ts'
import type { RatedItem } from '../../../core/rules/policy.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'
import type { RateTableRecord } from '../../storage/records.ts'
import type { Store } from '../../storage/store.ts'
import { type Answer, type Operation, serviceOperation, ADMINISTRATORS } from '../operation.ts'
import { RATE_TABLE_EXAMPLE } from './examples.ts'

const place = {
  path: '/rate-tables',
  areas: ['provisioning/api'],
  principals: ADMINISTRATORS,
  cells: 'CONTROL',
  tag: 'Rate tables',
} as const

export function rateTableOperations(store: Store): readonly Operation[] {
  return [
    serviceOperation({
      ...place,
      id: 'getratetables',
      summary: 'List all rate tables, in effect or not',
      answers: (version) => ({ 200: { description: 'All rate tables.', body: rateTables[version] } }),
      method: 'GET',
      handle: async ({ version }) => {
        const tables = await store.read((reader) => reader.rateTables.list())
        return { status: 200, body: tables.map((table) => rateTableToWire(version, table)) }
      },
    }),
    serviceOperation({
      ...place,
      id: 'postratetables',
      role: 'rules',
      summary: 'Create a rate table',
      example: RATE_TABLE_EXAMPLE,
      answers: {
        201: { description: 'The rate table is saved.', body: rateTableSaved },
        409: { description: 'The series already has this version.', body: rateTableConflict },
      },
      method: 'POST',
      body: (version) => rateTableBody[version],
      handle: async ({ principal, body, now }) =>
        orConflict(async () => {
          await createRateTable(actingAs(store, principal), body, now)
          return { status: 201, body: RATE_TABLE_SAVED }
        }),
    }),
    serviceOperation({
      ...place,
      id: 'deleteratetables',
      role: 'rules',
      summary: 'Delete a rate table that is not yet in effect',
      answers: {
        204: { description: 'The rate table is deleted.' },
        409: { description: 'The rate table is in effect.', body: rateTableConflict },
      },
      errors: ['NOT_FOUND'],
      method: 'DELETE',
      query: rateTableQuery,
      handle: async ({ principal, query: { series = '', version }, now }) =>
        orConflict(async () => {
          await deleteRateTable(actingAs(store, principal), series, version, now)
          return { status: 204 }
        }),
    }),
  ]
}

/** A conflict of rate tables has its own response body. */
async function orConflict(work: () => Promise<Answer>): Promise<Answer> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof CodedError && error.code === 'CONFLICT') return { status: 409, body: { error: error.message } }
    throw error
  }
}

/** v1.0 has no formulas, and a rate cannot stand for one: it sees the table without such items. */
function rateTableToWire(
  apiVersion: ApiVersion,
  { created, effectiveFrom, series, version, items }: RateTableRecord,
): RateTableWire {
  const shown = apiVersion === 'v1.0' ? items.filter(({ formula }) => formula === undefined) : items
  return {
    created,
    effectiveFrom,
    series,
    version,
    items: shown.map(ratedItemToWire),
  }
}

function ratedItemToWire({ name, version, rate, formula }: RatedItem): RateTableWire['items'][number] {
  const named = { name, ...(version === '' ? {} : { version }) }
  return rate === undefined ? { ...named, formula } : { ...named, rate: exactNumber(rate) }
}
