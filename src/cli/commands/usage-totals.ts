/** The tokens of usage records, added up by columns. The sum over all records is the bill. */
import { InvalidArgumentError } from 'commander'
import { z } from 'zod'
import { exactTokens, parseExactJson, parseRepeatableJson } from '../../client/exact-json.ts'
import { linesOf } from '../../client/lines-of.ts'
import { grouped } from '../../core/accounts/in-words.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import { CodedError } from '../../protocol/errors.ts'
import { jsonLine, table } from '../lines.ts'
import type { Names } from '../nouns/noun.ts'

const FIELDS = {
  account: ['accountId'],
  instance: ['instanceId'],
  'line-item': ['activationId'],
  item: ['item', 'itemVersion'],
  requester: ['consumerType', 'consumerId'],
  device: ['deviceId'],
} as const

export type TotalsColumn = keyof typeof FIELDS
type Field = (typeof FIELDS)[TotalsColumn][number]

export const TOTALS_BY: readonly TotalsColumn[] = ['instance', 'line-item', 'item']

export function totalsColumns(text: string): readonly TotalsColumn[] {
  const names = text.split(',').map((name) => name.trim())
  const columns = names.filter((name): name is TotalsColumn => Object.hasOwn(FIELDS, name))
  if (columns.length === names.length && new Set(names).size === names.length) return columns
  const known = Object.keys(FIELDS).join(', ')
  throw new InvalidArgumentError(`Use different columns of ${known}, with commas between them.`)
}

const text = z.string().nullable()
const usageLine = z.object({
  accountId: text,
  instanceId: text,
  activationId: text,
  item: text,
  itemVersion: text,
  consumerType: text,
  consumerId: text,
  deviceId: text,
  tokens: exactTokens,
})

interface Total {
  readonly group: Readonly<Partial<Record<Field, string | null>>>
  readonly records: number
  readonly tokens: bigint
}

/** They take about 50 MB of memory. */
const TOTALS_MAX = 100_000

/** Of records that charge or return tokens. @param pieces of an export as NDJSON */
export async function totalsOf(
  pieces: AsyncIterable<string | Buffer>,
  columns: readonly TotalsColumn[],
): Promise<readonly Total[]> {
  const fields = columns.flatMap((column): readonly Field[] => FIELDS[column])
  const totals = new Map<string, Total>()
  for await (const line of linesOf(pieces)) {
    const { tokens, ...record } = parsedLine(line)
    if (record.activationId === null) continue
    const group = Object.fromEntries(fields.map((field) => [field, record[field]]))
    const key = JSON.stringify(Object.values(group))
    const { records, tokens: sum } = totals.get(key) ?? { records: 0, tokens: 0n }
    if (records === 0 && totals.size === TOTALS_MAX) {
      const message = `There are more than ${grouped(TOTALS_MAX)} totals by ${columns.join(', ')}.`
      throw new CodedError('TOTALS_TOO_MANY', message, { details: { limit: TOTALS_MAX } })
    }
    totals.set(key, { group, records: records + 1, tokens: sum + tokens })
  }
  return [...totals].sort(([one], [other]) => (one < other ? -1 : 1)).map(([, total]) => total)
}

function parsedLine(line: string): z.infer<typeof usageLine> {
  try {
    return usageLine.parse(parseExactJson(line))
  } catch (cause) {
    throw new CodedError('ANSWER_UNEXPECTED', 'The export contains a line that is no usage record.', { cause })
  }
}

/** With all digits, for bills. */
export function totalsTable(totals: readonly Total[], columns: readonly TotalsColumn[], names: Names): string[] {
  const cells = totals.map(({ group, records, tokens }) => [
    ...columns.map((column) => {
      const value = FIELDS[column].map((field: Field) => group[field] ?? '').join(' ')
      return names.get(value) ?? value.trim()
    }),
    String(records),
    formatMicro(tokens),
  ])
  const head = [...columns.map((column) => column.toUpperCase().replace('-', ' ')), 'RECORDS', 'TOKENS']
  return [...table(head, cells, 'No usage.')]
}

export function totalJson({ group, records, tokens }: Total): string {
  return jsonLine({ ...group, records, tokens: parseRepeatableJson(formatMicro(tokens)) })
}
