/** Defects of exports, reports and archives of usage. */
import type { Reader, Transaction } from '../../src/cloud/storage/store.ts'
import type { Defect } from './defects.ts'
import type { TwinDefects } from './twin-defects.ts'

function reading(change: (reader: Reader) => Reader): Pick<TwinDefects, 'store'> {
  return { store: (store) => ({ ...store, read: (work) => store.read((reader) => work(change(reader))) }) }
}

function withoutArchives<T extends Pick<Reader, 'usageArchives'> | Transaction>(reader: T): T {
  return { ...reader, usageArchives: { ...reader.usageArchives, later: async () => null } }
}

export const EXPORT_DEFECTS: readonly Defect[] = [
  {
    name: 'exports-lose-a-record',
    is: 'each piece of an export or report lacks its first record',
    always: ['usage-export'],
    twin: () =>
      reading((reader) => {
        const range: Reader['usage']['range'] = async (part) => {
          const step = await reader.usage.range(part)
          return { ...step, records: step.records.slice(1) }
        }
        return { ...reader, usage: { ...reader.usage, range } }
      }),
  },
  {
    name: 'exports-omit-archived',
    is: 'exports and reports leave out archived usage, and do not say so',
    always: ['usage-export', 'archive'],
    twin: () => ({ ...reading(withoutArchives), transaction: withoutArchives }),
  },
  {
    name: 'positions-used-twice',
    is: 'after a restore, the twin gives new usage records positions that exports have returned before',
    always: ['usage-export', 'twin-restore', 'cloud-request'],
    twin: () => ({
      transaction: (tx) => ({ ...tx, usage: { ...tx.usage, passForgotten: async () => undefined } }),
    }),
  },
]
