/** The target is locked before the source is read: of two nodes that copy, the later one reads the later state. */
import { CodedError } from '../../protocol/errors.ts'
import { changeSharedRules } from '../policy/bump-policy-revision.ts'
import type { ConfigurationValue, KeyRecord, RateTableRecord } from '../storage/records.ts'
import type { Reader, Store, Transaction } from '../storage/store.ts'

type TableName = Omit<RateTableRecord, 'items'>

interface Shared {
  readonly cloudId: string | undefined
  readonly tables: readonly TableName[]
  readonly configuration: readonly ConfigurationValue[]
  readonly keys: readonly KeyRecord[]
}

interface Change<T> {
  readonly remove: readonly T[]
  readonly save: readonly T[]
}

/** Returns whether anything was copied. @throws CodedError CELL_DIFFERS if the target is a cell of another cloud */
export async function copyShared(control: Store, target: Store, now: () => number): Promise<boolean> {
  if (isSame(await control.read(readShared), await target.read(readShared))) return false
  return target.transaction(async (tx) => {
    await tx.cell.lockCopies()
    const { wanted, items } = await control.read(async (reader) => ({
      wanted: await readShared(reader),
      items: await reader.rateTables.list(),
    }))
    await tx.keys.lock()
    const present = await readShared(tx)
    if (isSame(wanted, present)) return false
    await changeKeys(tx, difference(wanted.keys, present.keys))
    const tables = difference(wanted.tables, present.tables)
    const configuration = difference(wanted.configuration, present.configuration)
    const isOfRules = [tables, configuration].some(({ remove, save }) => remove.length + save.length > 0)
    if (!isOfRules) return true
    await changeSharedRules(tx, now(), async () => {
      for (const { name } of configuration.remove) await tx.configuration.remove(name)
      for (const value of configuration.save) await tx.configuration.save(value)
      for (const { series, version } of tables.remove) await tx.rateTables.remove(series, version)
      const missing = new Set(tables.save.map(recordText))
      for (const table of items) if (missing.has(recordText(nameOf(table)))) await tx.rateTables.insert(table)
    })
    return true
  })
}

async function changeKeys(tx: Transaction, { remove, save }: Change<KeyRecord>): Promise<void> {
  for (const { type, id } of remove) await tx.keys.remove(type, id)
  for (const key of save) await tx.keys.save(key)
}

async function readShared(reader: Reader): Promise<Shared> {
  return {
    cloudId: (await reader.cell.get())?.cloudId,
    tables: (await reader.rateTables.names()).map(nameOf),
    configuration: await reader.configuration.list(),
    keys: await reader.keys.all(),
  }
}

/** A table never changes: one with the same name and another creation is another one. */
function nameOf({ series, version, effectiveFrom, created }: TableName): TableName {
  return { series, version, effectiveFrom, created }
}

function isSame(one: Shared, other: Shared): boolean {
  if (one.cloudId !== other.cloudId) {
    throw new CodedError('CELL_DIFFERS', 'This cell belongs to another cloud, with another database as its first cell.')
  }
  return (['tables', 'configuration', 'keys'] as const).every((part) => {
    const { remove, save } = difference<object>(one[part], other[part])
    return remove.length + save.length === 0
  })
}

function difference<T extends object>(wanted: readonly T[], present: readonly T[]): Change<T> {
  const [texts, others] = [new Set(wanted.map(recordText)), new Set(present.map(recordText))]
  return {
    remove: present.filter((each) => !texts.has(recordText(each))),
    save: wanted.filter((each) => !others.has(recordText(each))),
  }
}

function recordText(record: object): string {
  return JSON.stringify(record)
}
