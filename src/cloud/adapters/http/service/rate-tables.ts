/** Rate table operations. Source: contract, Rate tables; facts on their answers. */
import { CodedError } from '../../../../protocol/errors.ts'
import {
  RATE_TABLE_SAVED,
  type RateTableWire,
  rateTableBody,
  rateTableQuery,
} from '../../../../protocol/service/rate-tables.ts'
import { exactNumber } from '../../../../protocol/wire.ts'
import { createRateTable, deleteRateTable } from '../../../app/change-rate-tables.ts'
import type { RateTableRecord } from '../../../app/records.ts'
import type { Store } from '../../../app/store.ts'
import { type Answer, type Route, route } from '../routes.ts'

const place = { path: '/rate-tables', areas: ['provisioning/api'], access: 'ADMINISTRATION' } as const

export function rateTableRoutes(store: Store): readonly Route[] {
  return [
    route({
      ...place,
      method: 'GET',
      handle: async () => {
        const tables = await store.read((reader) => reader.rateTables.list())
        return { status: 200, body: tables.map(rateTableToWire) }
      },
    }),
    route({
      ...place,
      method: 'POST',
      body: rateTableBody,
      handle: async ({ body, now }) =>
        orConflict(async () => {
          await createRateTable(store, body, now)
          return { status: 201, body: RATE_TABLE_SAVED }
        }),
    }),
    route({
      ...place,
      method: 'DELETE',
      query: rateTableQuery,
      handle: async ({ query: { series = '', version }, now }) =>
        orConflict(async () => {
          await deleteRateTable(store, series, version, now)
          return { status: 204 }
        }),
    }),
  ]
}

/** A conflict of rate tables has a body of its own. */
async function orConflict(work: () => Promise<Answer>): Promise<Answer> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof CodedError && error.code === 'CONFLICT') return { status: 409, body: { error: error.message } }
    throw error
  }
}

function rateTableToWire({ created, effectiveFrom, series, version, items }: RateTableRecord): RateTableWire {
  return {
    created,
    effectiveFrom,
    ...(series === '' ? {} : { series }),
    version,
    items: items.map((item) => ({
      name: item.name,
      ...(item.version === '' ? {} : { version: item.version }),
      rate: exactNumber(item.rate),
    })),
  }
}
