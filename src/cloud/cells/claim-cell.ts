/** Under another name, requests would be decided with other instances' data, and copies would replace keys. */
import { CodedError } from '../../protocol/errors.ts'
import type { CellRecord } from '../storage/records.ts'
import type { Store, Transaction } from '../storage/store.ts'

interface Claim extends Pick<CellRecord, 'name' | 'isControl'> {
  /** For the control cell, a new one in case it has none. Null: the control cell has not responded yet. */
  readonly cloudId: string | null
}

/** Returns the id of the cloud. @throws CodedError CELL_DIFFERS, DATABASE_UNREACHABLE */
export async function claimCell(store: Store, claim: Claim): Promise<string> {
  const known =
    (await store.read((reader) => reader.cell.get())) ?? (await store.transaction((tx) => register(tx, claim)))
  const { name, isControl, cloudId } = claim
  if (known.name !== name || known.isControl !== isControl) throw differs(describe(claim), describe(known))
  if (!isControl && cloudId !== null && known.cloudId !== cloudId) {
    throw differs(describe(claim), `the cell ${name} of another cloud, with another database as its first cell`)
  }
  return known.cloudId
}

/** @throws CodedError CELL_DIFFERS if the settings lack a cell: its instances would be unknown here */
export async function requireAllCells(control: Store, names: readonly string[]): Promise<void> {
  const known = await control.read((reader) => reader.cell.names())
  const missing = known.filter((name) => !names.includes(name))
  if (missing.length === 0) return
  throw new CodedError('CELL_DIFFERS', `The settings of this node lack cells of the cloud: ${missing.join(', ')}.`)
}

/** @throws CodedError CELL_DIFFERS if the database of a cell that the cloud has used is empty: its instances would be unknown */
export async function requireNotLost(control: Store, store: Store, name: string): Promise<void> {
  const known = await control.read((reader) => reader.cell.names())
  // Another node claims it before it registers the name.
  if (!known.includes(name) || (await store.read((reader) => reader.cell.get())) !== undefined) return
  throw new CodedError(
    'CELL_DIFFERS',
    `The cloud has used the cell ${name}, but its database is empty. Restore it from a backup. To give up what it contained, set restored = true in the table of this cell.`,
  )
}

/** After its claim. */
export async function registerName(control: Store, name: string): Promise<void> {
  const known = await control.read((reader) => reader.cell.names())
  if (!known.includes(name)) await control.transaction((tx) => tx.cell.addName(name))
}

/** For a cloud without cells. @throws CodedError CELL_DIFFERS */
export async function requireNoCell(store: Store): Promise<void> {
  const known = await store.read((reader) => reader.cell.get())
  if (known !== undefined) throw differs('the only database (db)', describe(known))
}

async function register(tx: Transaction, { name, isControl, cloudId }: Claim): Promise<CellRecord> {
  const known = await tx.cell.get()
  if (known !== undefined) return known
  if (cloudId === null)
    throw new CodedError('DATABASE_UNREACHABLE', 'The first start of a cell requires the first cell.')
  // Every cloud that has started has registered a key. Copies would delete it.
  if (!isControl && (await tx.keys.countAdministration()) > 0) {
    throw differs(describe({ name, isControl }), 'that of a cloud without cells, and can only become the first one')
  }
  const registered = { name, isControl, cloudId }
  await tx.cell.register(registered)
  return registered
}

function differs(wanted: string, actual: string): CodedError {
  return new CodedError('CELL_DIFFERS', `The settings name this database as ${wanted}, but it is ${actual}.`)
}

function describe({ name, isControl }: Pick<CellRecord, 'name' | 'isControl'>): string {
  return isControl ? `the first cell, ${name}` : `the cell ${name}, which is not the first one`
}
