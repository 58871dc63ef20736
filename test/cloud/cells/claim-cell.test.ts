import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import {
  claimCell,
  registerName,
  requireAllCells,
  requireNoCell,
  requireNotLost,
} from '../../../src/cloud/cells/claim-cell.ts'
import { copyShared } from '../../../src/cloud/cells/copy-shared.ts'
import { registerFirstKey } from '../../../src/cloud/service-api/change-keys.ts'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { newKeyPair } from '../harness.ts'

const NORTH = { name: 'north', isControl: true, cloudId: 'cloud' }
const SOUTH = { name: 'south', isControl: false, cloudId: 'cloud' }

describe('a database that is claimed as a cell', () => {
  let folder: string
  let store: Store
  const open = (name: string): Store =>
    openSqliteStore({ path: join(folder, name), check: false, onBroken: () => undefined })

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'tallygate-claim-'))
    store = open('a.db')
  })
  afterEach(async () => {
    await store.close()
    await rm(folder, { recursive: true })
  })

  it('keeps its cell', async () => {
    await claimCell(store, SOUTH)
    expect(await claimCell(store, SOUTH)).toBe('cloud')
    const others = [NORTH, { ...SOUTH, name: 'west' }, { ...SOUTH, isControl: true }]
    for (const other of others) await expect(claimCell(store, other)).rejects.toMatchObject({ code: 'CELL_DIFFERS' })
    await expect(requireNoCell(store)).rejects.toMatchObject({ code: 'CELL_DIFFERS' })
  })

  it('keeps its cloud, which the control cell names at its first start', async () => {
    expect(await claimCell(store, NORTH)).toBe('cloud')
    expect(await claimCell(store, { ...NORTH, cloudId: 'new' })).toBe('cloud')
    const other = open('b.db')
    await claimCell(other, SOUTH)
    const ofOther = claimCell(other, { ...SOUTH, cloudId: 'other' })
    await expect(ofOther).rejects.toMatchObject({ code: 'CELL_DIFFERS' })
    await other.close()
  })

  it('needs the control cell only at its first start', async () => {
    const alone = { ...SOUTH, cloudId: null }
    await expect(claimCell(store, alone)).rejects.toMatchObject({ code: 'DATABASE_UNREACHABLE' })
    await claimCell(store, SOUTH)
    expect(await claimCell(store, alone)).toBe('cloud')
  })

  it('keeps the names of all cells in the control cell, which every node must have', async () => {
    await claimCell(store, NORTH)
    await requireAllCells(store, ['north'])
    for (const name of ['south', 'south', 'west']) await registerName(store, name)
    await requireAllCells(store, ['north', 'west', 'south'])
    await expect(requireAllCells(store, ['north', 'south'])).rejects.toMatchObject({
      code: 'CELL_DIFFERS',
      message: 'The settings of this node lack cells of the cloud: west.',
    })
  })

  it('is refused if it is empty and the cloud has used this cell', async () => {
    const control = open('b.db')
    await claimCell(control, NORTH)
    await requireNotLost(control, store, 'south')
    await registerName(control, 'south')
    await expect(requireNotLost(control, store, 'south')).rejects.toMatchObject({ code: 'CELL_DIFFERS' })
    await requireNotLost(control, store, 'west')
    await claimCell(store, SOUTH)
    await requireNotLost(control, store, 'south')
    await control.close()
  })

  it('becomes the first one, or none, if it has the data of a cloud without cells', async () => {
    const makeKey = async () => ({ id: 'first', pem: newKeyPair().publicPem })
    await registerFirstKey(store, makeKey, 1)
    await expect(claimCell(store, SOUTH)).rejects.toMatchObject({ code: 'CELL_DIFFERS' })
    await requireNoCell(store)
    expect(await claimCell(store, NORTH)).toBe('cloud')
  })

  it('gets no copies from the control cell of another cloud', async () => {
    const control = open('b.db')
    await claimCell(control, { ...NORTH, cloudId: 'new' })
    await claimCell(store, SOUTH)
    await expect(copyShared(control, store, () => 1)).rejects.toMatchObject({ code: 'CELL_DIFFERS' })
    await control.close()
  })
})
