/** Rate tables of the tenant; one in effect cannot be deleted. Source: interface, Rate tables. */
import { recordChange } from '../storage/audit.ts'
import { rateTablesToWire } from '../../protocol/edge/policy-document.ts'
import { CodedError, bodyError } from '../../protocol/errors.ts'
import type { RateTableBody } from '../../protocol/service/rate-tables.ts'
import { changeSharedRules } from '../policy/bump-policy-revision.ts'
import { relevantTables } from '../policy/load-policy.ts'
import type { Store } from '../storage/store.ts'

/** Every device has the tables in memory, and fetches them with each change of its rules, within the 16 MiB of an answer. */
const TABLES_BYTES_MAX = 6_000_000

/** @throws CodedError CONFLICT for an existing version of the series, BAD_REQUEST */
export async function createRateTable(store: Store, body: RateTableBody, now: number): Promise<void> {
  const { version, effectiveFrom } = body
  const series = body.series ?? ''
  await store.transaction((tx) =>
    changeSharedRules(tx, now, async () => {
      if ((await tx.rateTables.get(series, version)) !== undefined) {
        throw new CodedError(
          'CONFLICT',
          `There is a rate table ${named(series, version)} already. Use another version.`,
        )
      }
      await tx.rateTables.insert({ series, version, effectiveFrom, created: now, items: body.items })
      const tables = rateTablesToWire(relevantTables(await tx.rateTables.list(), now))
      if (Buffer.byteLength(JSON.stringify(tables)) > TABLES_BYTES_MAX) {
        throw bodyError(
          `all rate tables that devices need have at most ${TABLES_BYTES_MAX} bytes of JSON: delete tables that are not in effect yet, or wait until a replaced one is 30 days old`,
          ['items'],
        )
      }
      await recordChange(tx, now, { action: 'CREATE_RATE_TABLE', detail: { series, version, effectiveFrom } })
    }),
  )
}

/** @throws CodedError NOT_FOUND, CONFLICT when it is in effect */
export async function deleteRateTable(store: Store, series: string, version: string, now: number): Promise<void> {
  await store.transaction((tx) =>
    changeSharedRules(tx, now, async () => {
      const table = await tx.rateTables.get(series, version)
      if (table === undefined) {
        throw new CodedError('NOT_FOUND', `There is no rate table ${named(series, version)}.`)
      }
      if (table.effectiveFrom <= now) {
        throw new CodedError(
          'CONFLICT',
          `The rate table ${named(series, version)} is in effect already, so it stays. To replace it, create another version.`,
        )
      }
      await tx.rateTables.remove(series, version)
      await recordChange(tx, now, { action: 'DELETE_RATE_TABLE', detail: { series, version } })
    }),
  )
}

function named(series: string, version: string): string {
  return series === '' ? version : `${version} of series ${series}`
}
