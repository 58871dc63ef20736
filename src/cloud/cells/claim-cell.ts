/** A database keeps its cell: with another one, requests would be decided with the data of other instances. */
import { CodedError } from '../../protocol/errors.ts'
import type { CellRecord } from '../storage/records.ts'
import type { Store, Transaction } from '../storage/store.ts'

/**
 * @param cell null: the cloud has no cells
 * @throws CodedError CELL_DIFFERS
 */
export async function claimCell(store: Store, cell: CellRecord | null): Promise<void> {
  const known =
    (await store.read((reader) => reader.cell.get())) ??
    (cell === null ? undefined : await store.transaction((tx) => register(tx, cell)))
  if (known === undefined || (known.name === cell?.name && known.isControl === cell.isControl)) return
  const wanted = cell === null ? 'the only database (db)' : describe(cell)
  throw new CodedError('CELL_DIFFERS', `The settings name this database as ${wanted}, but it is ${describe(known)}.`)
}

async function register(tx: Transaction, cell: CellRecord): Promise<CellRecord> {
  const known = await tx.cell.get()
  if (known === undefined) await tx.cell.register(cell)
  return known ?? cell
}

function describe({ name, isControl }: CellRecord): string {
  return isControl ? `the first cell, ${name}` : `the cell ${name}, which is not the first one`
}
