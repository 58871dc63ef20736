// Figures over all devices of an instance or account: exact for few, remembered for many.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { NOTHING_RETURNABLE, newDeviceAccount } from '../../../src/cloud/storage/device-records.ts'
import type { Store, Transaction } from '../../../src/cloud/storage/store.ts'
import { newEpoch } from '../../../src/cloud/sync/attach.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { device, instance } from './suite.ts'

const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
const ACCOUNT = lineAccount(INSTANCE, 'L', 0)
const T0 = 1_000_000

const idOf = (n: number): string => `device ${String(n).padStart(3, '0')}`

/** @param open an empty store */
export function fleetFiguresSuite(name: string, open: () => Promise<Store>): void {
  describe(`figures of the fleet in ${name}`, () => {
    let store: Store
    beforeEach(async () => {
      store = await open()
      await store.transaction((tx) => tx.instances.insert(instance(INSTANCE)))
    })
    afterEach(() => store.close())

    /** Adds devices that synced at T0; number n has n tokens left. */
    const add = (from: number, to: number): Promise<void> =>
      store.transaction(async (tx) => {
        await tx.accounts.open([{ account: ACCOUNT, cap: 1_000_000n }])
        for (let n = from; n <= to; n += 1) {
          const id = idOf(n)
          await tx.edge.devices.insert({ ...device(id), lastSyncAt: T0, epoch: 1, instanceIds: [INSTANCE] })
          await tx.edge.epochs.insert(newEpoch(id, 1, { now: T0, present: T0 }))
          const record = { ...newDeviceAccount(id, 1, ACCOUNT), granted: BigInt(n + 5), used: 5n }
          await tx.edge.deviceAccounts.save([record])
        }
      })
    const use = (n: number, used: bigint): Promise<void> =>
      store.transaction((tx) =>
        tx.edge.deviceAccounts.save([{ ...newDeviceAccount(idOf(n), 1, ACCOUNT), granted: BigInt(n + 5), used }]),
      )
    const read = <T>(work: (edge: Transaction['edge']) => Promise<T>): Promise<T> =>
      store.transaction((tx) => work(tx.edge))
    const live = (since: number, except = idOf(1)) => read((edge) => edge.devices.countLive(INSTANCE, since, except))
    const returnable = async (heardSince: number, except = idOf(1)) => {
      const found = await read((edge) => edge.deviceAccounts.returnable([ACCOUNT], except, heardSince))
      return found.get(ACCOUNT) ?? NOTHING_RETURNABLE
    }
    const largest = (heardSince: number, except = idOf(1)) =>
      read((edge) => edge.deviceAccounts.availableOfOthers(ACCOUNT, except, heardSince, 2))

    it('are exact for a hundred devices, without the device that asks', async () => {
      await add(1, 100)
      expect(await live(T0)).toBe(99)
      expect(await live(T0 + 1)).toBe(0)
      expect(await returnable(T0 - 1)).toEqual({ all: 5_049n, inContact: 5_049n })
      expect(await returnable(T0)).toEqual({ all: 5_049n, inContact: 0n })
      expect(await returnable(T0 - 1, '')).toEqual({ all: 5_050n, inContact: 5_050n })
      expect(await largest(T0 - 1, idOf(100))).toEqual([
        { deviceId: idOf(99), available: 99n },
        { deviceId: idOf(98), available: 98n },
      ])
      await use(100, 105n)
      expect(await returnable(T0 - 1)).toEqual({ all: 4_949n, inContact: 4_949n })
      expect((await largest(T0 - 1))[0]?.deviceId).toBe(idOf(99))
    })

    it('are remembered for a millisecond for each of more devices', async () => {
      await add(1, 102)
      expect([await live(T0 - 500), await live(T0 - 500, '')]).toEqual([101, 102])
      await add(103, 110)
      expect([await live(T0 - 399, ''), await live(T0 - 500)]).toEqual([102, 101])
      expect(await live(T0 - 398)).toBe(109)
      // A clock that went back.
      expect(await live(T0 - 399)).toBe(109)
    })

    it('count the balance of the device that asks as it is, whatever is remembered of the others', async () => {
      await add(1, 102)
      const all = (102n * 103n) / 2n
      expect(await returnable(T0 - 500)).toEqual({ all: all - 1n, inContact: all - 1n })
      expect(await largest(T0 - 500, idOf(102))).toMatchObject([{ available: 101n }, { available: 100n }])
      await use(102, 5n + 2n)
      await use(101, 5n + 101n)
      expect(await returnable(T0 - 450, idOf(102))).toEqual({ all: all - 100n, inContact: all - 100n })
      expect(await largest(T0 - 450)).toMatchObject([{ available: 102n }, { available: 101n }])
      expect(await returnable(T0 - 300)).toEqual({ all: all - 104n, inContact: all - 104n })
      expect(await largest(T0 - 300)).toMatchObject([{ available: 100n }, { available: 100n }])
    })

    it('never fall below nothing', async () => {
      await add(1, 102)
      for (let n = 1; n <= 102; n += 1) await use(n, BigInt(n + 5))
      expect(await returnable(T0 - 500)).toEqual(NOTHING_RETURNABLE)
      await use(50, 0n)
      expect(await returnable(T0 - 499, idOf(50))).toEqual(NOTHING_RETURNABLE)
      expect(await largest(T0 - 499)).toEqual([{ deviceId: idOf(50), available: 55n }])
    })
  })
}
