import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { copyShared } from '../../../src/cloud/cells/copy-shared.ts'
import { changeConfiguration } from '../../../src/cloud/service-api/change-configuration.ts'
import { deleteKey, saveKeys } from '../../../src/cloud/service-api/change-keys.ts'
import { createRateTable, deleteRateTable } from '../../../src/cloud/service-api/change-rate-tables.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { decimal } from '../../../src/core/pricing/amount.ts'
import { newKeyPair } from '../harness.ts'

const NOW = 1_790_000_000_000
const LATER = NOW + 60_000
const now = (): number => NOW

describe('a copy of the shared data of the control cell', () => {
  let folder: string
  let control: Store
  let target: Store

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'tallygate-copy-'))
    const open = (name: string): Store =>
      openSqliteStore({ path: join(folder, name), check: false, onBroken: () => undefined })
    ;[control, target] = [open('control.db'), open('target.db')]
    await createInstance(target, { id: 'i', shortName: 's', accountId: 'a' }, NOW)
    await saveKey('kept')
  })
  afterEach(async () => {
    for (const store of [control, target]) await store.close()
    await rm(folder, { recursive: true })
  })

  const saveKey = async (id: string): Promise<void> => {
    const deps = { store: control, delayMs: 0 }
    await saveKeys(deps, 'administration-key', [{ id, publicKey: newKeyPair().publicPem }], NOW)
  }

  const table = (version: string): Promise<void> => {
    const items = [{ name: 'Print', version: '1.0', rate: decimal('0.1') }]
    return createRateTable(control, { version, effectiveFrom: LATER, items }, NOW)
  }

  const allOf = (store: Store) =>
    store.read(async (reader) => ({
      tables: await reader.rateTables.list(),
      keys: await reader.keys.all(),
      configuration: await reader.configuration.list(),
    }))

  const revision = () => target.read((reader) => reader.policyRevisions.get('i').then((found) => found?.revision))

  it('makes the target equal, and bumps the rules of its instances once', async () => {
    await table('1')
    await table('2')
    await saveKey('other')
    await changeConfiguration(control, [{ name: 'timezone.tolerant', value: 'true' }], 'tests', NOW)
    expect(await copyShared(control, target, now)).toBe(true)
    expect(await allOf(target)).toEqual(await allOf(control))
    expect((await allOf(target)).tables).toHaveLength(2)
    expect(await revision()).toBe(2)
    expect(await copyShared(control, target, now)).toBe(false)
    expect(await revision()).toBe(2)
  })

  it('removes deleted rows, and replaces rows with the same name', async () => {
    await table('1')
    await table('2')
    await saveKey('other')
    await copyShared(control, target, now)
    await deleteRateTable(control, '', '1', NOW)
    await deleteRateTable(control, '', '2', NOW)
    await createRateTable(control, { version: '2', effectiveFrom: LATER + 1, items: [] }, NOW)
    await deleteKey({ store: control, delayMs: 0 }, 'administration-key', 'other', NOW)
    await saveKey('kept')
    expect(await copyShared(control, target, now)).toBe(true)
    expect(await allOf(target)).toEqual(await allOf(control))
    expect((await allOf(target)).tables).toMatchObject([{ version: '2', effectiveFrom: LATER + 1 }])
    expect(await revision()).toBe(3)
  })

  it('does not bump the rules for a change of keys', async () => {
    await copyShared(control, target, now)
    expect((await allOf(target)).keys.map(({ id }) => id)).toEqual(['kept'])
    expect(await revision()).toBe(1)
  })

  it('never brings back a key that was deleted while it ran', async () => {
    await saveKey('deleted')
    const late: { copies: number } = { copies: 0 }
    const slow: Store = {
      ...control,
      read: async (work) => {
        const result = await control.read(work)
        if (late.copies++ > 0) return result
        await deleteKey({ store: control, delayMs: 0 }, 'administration-key', 'deleted', NOW)
        await copyShared(control, target, now)
        return result
      },
    }
    await copyShared(slow, target, now)
    expect((await allOf(target)).keys.map(({ id }) => id)).toEqual(['kept'])
  })

  it('changes nothing if the control cell fails', async () => {
    await copyShared(control, target, now)
    const before = await allOf(target)
    await table('1')
    const reads = { left: 1 }
    const failing: Store = {
      ...control,
      read: (work) => (reads.left-- > 0 ? control.read(work) : Promise.reject(new Error('away'))),
    }
    await expect(copyShared(failing, target, now)).rejects.toThrow('away')
    expect(await allOf(target)).toEqual(before)
  })
})
