/** A session's charge as JSON for the database, with decimals and micro-tokens as text. */
import { decimal, formatDecimal } from '../pricing/amount.ts'
import { type Variables, variableTexts } from '../pricing/formula-rate.ts'
import type { ReservedItem, IntervalCharge } from './session.ts'

export interface StoredCharge {
  readonly from: number
  readonly until: number
  readonly items: readonly {
    readonly name: string
    readonly version: string
    readonly count: string
    readonly variables?: Readonly<Record<string, string>>
    readonly metaData: string | null
    readonly parts: readonly {
      readonly lineItemId: string
      readonly accounts: readonly string[]
      readonly charged: string
      readonly rate?: string
    }[]
  }[]
}

export function storedCharge({ from, until, items }: IntervalCharge): StoredCharge {
  return {
    from,
    until,
    items: items.map(({ item, shares }) => ({
      name: item.name,
      version: item.version,
      count: formatDecimal(item.count),
      ...(item.variables === undefined ? {} : { variables: variableTexts(item.variables) }),
      metaData: item.metaData,
      parts: shares.map(({ lineItemId, accounts, charged, rate }) => ({
        lineItemId,
        accounts,
        charged: String(charged),
        ...(rate === undefined ? {} : { rate: formatDecimal(rate) }),
      })),
    })),
  }
}

export function chargeOf({ from, until, items }: StoredCharge): IntervalCharge {
  return {
    from,
    until,
    items: items.map(({ name, version, count, variables, metaData, parts }): ReservedItem => ({
      item: {
        name,
        version,
        count: decimal(count),
        ...(variables === undefined ? {} : { variables: variablesOf(variables) }),
        metaData,
      },
      shares: parts.map(({ lineItemId, accounts, charged, rate }) => ({
        lineItemId,
        accounts,
        charged: BigInt(charged),
        ...(rate === undefined ? {} : { rate: decimal(rate) }),
      })),
    })),
  }
}

function variablesOf(texts: Readonly<Record<string, string>>): Variables {
  return new Map(Object.entries(texts).map(([name, text]) => [name, decimal(text)]))
}
