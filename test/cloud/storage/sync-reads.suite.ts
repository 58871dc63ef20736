// What a sync reads of several tables with one statement.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type DeviceAccountRecord, newDeviceAccount } from '../../../src/cloud/storage/device-records.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { newEpoch } from '../../../src/cloud/devices/epochs.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { newSession, step } from '../../../src/core/sessions/session.ts'
import { device, instance } from './suite.ts'

const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
const DEVICE = 'device'
const T0 = 1_000

const accountOf = (n: number): string => lineAccount(INSTANCE, `L${String(n).padStart(4, '0')}`, 0)

/** @param open an empty store */
export function syncReadsSuite(name: string, open: () => Promise<Store>): void {
  describe(`what a sync reads from ${name}`, () => {
    let store: Store
    beforeEach(async () => {
      store = await open()
      await store.transaction(async (tx) => {
        await tx.instances.insert(instance(INSTANCE))
        await tx.edge.devices.insert({ ...device(DEVICE), epoch: 1, instanceIds: [INSTANCE] })
        await tx.edge.epochs.insert(newEpoch(DEVICE, 1, { now: T0, present: T0 }))
      })
    })
    afterEach(() => store.close())

    const add = (records: readonly Partial<DeviceAccountRecord>[], cap: bigint | null = 100n): Promise<void> =>
      store.transaction(async (tx) => {
        const all = records.map((record, n) => ({
          ...newDeviceAccount(DEVICE, 1, accountOf(n)),
          wasMetered: record.metered === true,
          ...record,
        }))
        await tx.accounts.open(all.map(({ account }) => ({ account, cap })))
        await tx.edge.deviceAccounts.save(all)
      })

    describe('its epoch', () => {
      const sessions = async (number = 1) =>
        (await store.read((reader) => reader.edge.epochs.getWithSessionPresence(DEVICE, number))).hasSessions

      it('is read together with whether it has sessions', async () => {
        const { epoch } = await store.read((reader) => reader.edge.epochs.getWithSessionPresence(DEVICE, 1))
        expect(epoch).toEqual(await store.read((reader) => reader.edge.epochs.get(DEVICE, 1)))
        expect(await sessions()).toBe(false)
      })

      it('reports possible sessions if it does not exist', async () => {
        expect(await store.read((reader) => reader.edge.epochs.getWithSessionPresence(DEVICE, 2))).toEqual({
          epoch: undefined,
          hasSessions: true,
        })
      })

      it.each(['deviceId', 'keptBy'] as const)('has the sessions that name the device as %s', async (column) => {
        const opened = { ...newSession({ id: 's', instanceId: INSTANCE, deviceId: null }, 1), [column]: DEVICE }
        await store.transaction((tx) => tx.sessions.insert(opened))
        expect(await sessions()).toBe(true)
        await store.transaction((tx) => tx.sessions.save(step(opened, { kind: 'CLOSED' }, 2).session))
        expect(await sessions()).toBe(false)
      })
    })

    describe('its accounts', () => {
      const get = (accounts: readonly string[], limit = 10) =>
        store.read((reader) => reader.edge.deviceAccounts.getWithLimited(DEVICE, 1, accounts, limit))

      it('are the existing ones that were named, and those with a new limit', async () => {
        await add([{ granted: 5n, used: 2n }, { metered: true }, { metered: true, unlimited: true }, { granted: 1n }])
        const { records, limited } = await get([accountOf(0), accountOf(1), accountOf(9), accountOf(0)])
        expect([...records.keys()].sort()).toEqual([accountOf(0), accountOf(1)])
        expect(records.get(accountOf(0))).toMatchObject({ granted: 5n, used: 2n, metered: false })
        expect(limited.map(({ account }) => account)).toEqual([accountOf(2), accountOf(1)])
      })

      it('include those with a new limit only if there is a limit', async () => {
        await add([{ metered: true }], null)
        expect(await get([accountOf(0)])).toMatchObject({ limited: [] })
      })

      it('are only those with a new limit if no account is named', async () => {
        await add([{ metered: true }, { metered: true }, { metered: true }])
        const { records, limited } = await get([], 2)
        expect(records.size).toBe(0)
        expect(limited.map(({ account }) => account)).toEqual([accountOf(0), accountOf(1)])
      })

      it('are found by more names than one statement can have', async () => {
        await add(Array.from({ length: 501 }, () => ({ granted: 1n, metered: true })))
        const { records, limited } = await get(Array.from({ length: 700 }, (_, n) => accountOf(n)))
        expect(records.size).toBe(501)
        expect(limited).toHaveLength(10)
      })
    })

    describe('the tokens that it must return', () => {
      const found = (limit: number) =>
        store.read((reader) => reader.edge.shortages.recallsFrom(DEVICE, 1, { since: 0, until: T0 }, limit))

      it('are none without shortages and lowered caps', async () => {
        await add([{ granted: 5n }])
        expect(await found(10)).toEqual({ aboveCaps: [], recalls: [] })
      })

      it('list excesses by account, and recalls with the largest excess first', async () => {
        await add([{ granted: 9n }, { granted: 9n }, { granted: 9n }, { granted: 9n }])
        await store.transaction(async (tx) => {
          const pools = await tx.accounts.lock([accountOf(0), accountOf(1)])
          await tx.accounts.save([...pools.values()].map((pool) => ({ ...pool, capTarget: 3n, grantedOut: 9n })))
          for (const [n, keep] of [
            [2, 4n],
            [3, 1n],
          ] as const) {
            const noted = { lacking: 5n, enough: 1_000n, keep, since: T0, at: T0, recalledAt: T0, notifiedAt: null }
            await tx.edge.shortages.save({ account: accountOf(n), who: 'other', ...noted })
          }
        })
        const aboveCaps = [0, 1].map((n) => ({ account: accountOf(n), available: 9n, above: 6n }))
        const recalls = [
          { account: accountOf(3), available: 9n, keep: 1n },
          { account: accountOf(2), available: 9n, keep: 4n },
        ]
        expect(await found(10)).toEqual({ aboveCaps, recalls })
        expect(await found(1)).toEqual({ aboveCaps: aboveCaps.slice(0, 1), recalls: recalls.slice(0, 1) })
      })
    })
  })
}
