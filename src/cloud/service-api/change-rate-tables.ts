/** Rate tables of the tenant; one in effect cannot be deleted. Source: interface, Rate tables. */
import { recordChange } from '../storage/audit.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { RateTableBody } from '../../protocol/service/rate-tables.ts'
import { changeSharedRules } from '../policy/bump-policy-revision.ts'
import type { Store } from '../storage/store.ts'

/** @throws CodedError CONFLICT for an existing version of the series */
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
