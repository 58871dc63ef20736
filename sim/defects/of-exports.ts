/** Defects of exports, reports and archives of usage. */
import { USAGE_ROW_POSITIONS } from '../../src/cloud/storage/records.ts'
import type { Reader, Transaction } from '../../src/cloud/storage/store.ts'
import type { Defect } from './defects.ts'
import type { TwinDefects } from './twin-defects.ts'

function reading(change: (reader: Reader) => Reader): Pick<TwinDefects, 'store'> {
  return { store: (store) => ({ ...store, read: (work) => store.read((reader) => work(change(reader))) }) }
}

type Step = Awaited<ReturnType<Reader['usage']['range']>>
type Part = Parameters<Reader['usage']['range']>[0]

function readingSteps(change: (step: Step, part: Part) => Step): Pick<TwinDefects, 'store'> {
  return reading((reader) => {
    const range = async (part: Part): Promise<Step> => change(await reader.usage.range(part), part)
    return { ...reader, usage: { ...reader.usage, range } }
  })
}

function withoutArchives<T extends Pick<Reader, 'usageArchives'> | Transaction>(reader: T): T {
  return { ...reader, usageArchives: { ...reader.usageArchives, later: async () => null } }
}

export const EXPORT_DEFECTS: readonly Defect[] = [
  {
    name: 'exports-lose-a-record',
    is: 'each piece of an export or report lacks its first record',
    always: ['usage-export'],
    twin: () => readingSteps((step) => ({ ...step, records: step.records.slice(1) })),
  },
  {
    name: 'exports-skip-a-row',
    is: 'each piece of an export or report but the first begins a row too late',
    always: ['usage-export'],
    twin: () =>
      readingSteps((step, part) => (step.end < part.upTo ? { ...step, end: step.end + USAGE_ROW_POSITIONS } : step)),
  },
  {
    name: 'exports-omit-archived-meanwhile',
    is: 'exports leave out usage that is archived while they are read, and do not say so',
    always: ['usage-export', 'archive'],
    twin: () =>
      reading((reader) => {
        // Only for a report, and for the first piece of an export.
        const later: Reader['usageArchives']['later'] = async (after, range) =>
          after === 0n ? reader.usageArchives.later(after, range) : null
        return { ...reader, usageArchives: { ...reader.usageArchives, later } }
      }),
  },
  {
    name: 'exports-omit-archived',
    is: 'exports and reports leave out archived usage, and do not say so',
    always: ['usage-export', 'archive'],
    twin: () => ({ ...reading(withoutArchives), transaction: withoutArchives }),
  },
  {
    name: 'archive-takes-too-much',
    is: 'usage that is delivered while an archive is written counts as archived, and is deleted',
    always: ['slow-archive'],
    twin: () => {
      let before = 0n
      return {
        transaction: (tx) => {
          const { usageArchives } = tx
          const plan: Transaction['usageArchives']['plan'] = async (...planned) => {
            before = await tx.usage.settled()
            await usageArchives.plan(...planned)
          }
          const record: Transaction['usageArchives']['record'] = async (archive) => {
            const upTo = archive.upTo === before ? await tx.usage.settled() : archive.upTo
            await usageArchives.record({ ...archive, upTo })
          }
          return { ...tx, usageArchives: { ...usageArchives, plan, record } }
        },
      }
    },
  },
  {
    name: 'reports-repeat-records',
    is: 'the second page of a report, and each later one, begins with the last record of the page before',
    always: ['usage-export'],
    twin: () =>
      reading((reader) => {
        const count: Reader['usage']['count'] = async (part) => {
          const counted = await reader.usage.count(part)
          return { ...counted, records: counted.records + 1 }
        }
        return { ...reader, usage: { ...reader.usage, count } }
      }),
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
