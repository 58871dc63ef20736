/** Rate tables of the source that this cloud lacks. A table that exists is never changed. */
import type { z } from 'zod'
import { counted } from '../../core/accounts/in-words.ts'
import { formatDecimal } from '../../core/pricing/amount.ts'
import type { ImportChange, ImportResult } from '../../protocol/edge/import.ts'
import { rateTables } from '../../protocol/service/rate-tables.ts'
import { exactNumber } from '../../protocol/wire.ts'
import type { Call } from '../../client/call.ts'
import { type Answer, refusal } from '../../client/http.ts'
import { instantText } from '../lines.ts'
import type { Source, SourceRateTable } from './source.ts'

export interface RateTableTarget {
  readonly send: (call: Call) => Promise<Answer>
  readonly json: <T extends z.ZodType>(call: Call, schema: T) => Promise<z.output<T>>
}

const PATH = '/provisioning/api/v1.1/rate-tables'

export async function importRateTables(source: Source, target: RateTableTarget, apply: boolean): Promise<ImportResult> {
  const [changes, conflicts]: [ImportChange[], string[]] = [[], []]
  const here = new Map((await listed(target)).map((table) => [keyOf(table), contentOf(table)]))
  const wanted = await source.rateTables()
  for (const table of wanted) {
    const [key, text] = [keyOf(table), contentOf(table)]
    const known = here.get(key)
    if (known === text) continue
    const name = table.series === '' ? `rate table ${table.version}` : `rate table ${table.series} ${table.version}`
    if (known === undefined) {
      const items = counted(table.items.length, 'item', 'items')
      const after = `${items}, effective from ${instantText(table.effectiveFrom)}`
      changes.push({ object: name, field: 'new', before: null, after })
    } else conflicts.push(`${name}: the source has other items or another effective time than this cloud.`)
  }
  if (!apply) return { applied: false, changes, notes: [], conflicts }
  for (const table of wanted) if (!here.has(keyOf(table))) await create(target, table, conflicts)
  return { applied: true, changes, notes: [], conflicts }
}

async function create(target: RateTableTarget, table: SourceRateTable, conflicts: string[]): Promise<void> {
  const { series, version, effectiveFrom } = table
  const items = table.items.map(({ name, version: of, ...rated }) => ({
    name,
    ...(of === '' ? {} : { version: of }),
    ...('rate' in rated ? { rate: exactNumber(rated.rate) } : rated),
  }))
  const body = { ...(series === '' ? {} : { series }), version, effectiveFrom, items }
  const call = { method: 'POST', path: PATH, body } as const
  const answer = await target.send(call)
  if (answer.status === 201) return
  // A concurrent import may have created the same table.
  const known = (await listed(target)).find((each) => keyOf(each) === keyOf(table))
  if (known !== undefined && contentOf(known) === contentOf(table)) return
  if (answer.status !== 400 && answer.status !== 409) throw refusal(call, answer)
  conflicts.push(`Rate table ${series} ${version}: ${answer.text.slice(0, 300)}`)
}

async function listed(target: RateTableTarget): Promise<readonly z.output<(typeof rateTables)['v1.1']>[number][]> {
  return target.json({ method: 'GET', path: PATH }, rateTables['v1.1'])
}

type AnyTable = Pick<SourceRateTable, 'series' | 'version' | 'effectiveFrom'> & {
  readonly items: readonly {
    readonly name: string
    readonly version?: string | undefined
    readonly rate?: number | { readonly digits: bigint; readonly scale: number }
    readonly formula?: string
  }[]
}

function keyOf({ series, version }: AnyTable): string {
  return JSON.stringify([series, version])
}

/** Equal texts are equal tables, whatever the sequence of the items. */
function contentOf({ effectiveFrom, items }: AnyTable): string {
  const lines = items.map(({ name, version = '', rate, formula }) =>
    JSON.stringify([name, version, formula ?? null, rate === undefined ? null : rateText(rate)]),
  )
  return JSON.stringify([effectiveFrom, lines.sort()])
}

/** As a double: that is how every service reads and writes rates. */
function rateText(rate: number | { readonly digits: bigint; readonly scale: number }): string {
  return String(typeof rate === 'number' ? rate : Number(formatDecimal(rate)))
}
