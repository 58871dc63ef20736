// Figures over all devices of an instance or account: exact for few, remembered for many.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import {
  NOTHING_RETURNABLE,
  NO_SHORTAGES,
  type Shortage,
  newDeviceAccount,
} from '../../../src/cloud/storage/device-records.ts'
import type { Store, Transaction } from '../../../src/cloud/storage/store.ts'
import { newEpoch } from '../../../src/cloud/devices/epochs.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { shortagesOf } from '../../../sim/sharing/shortages-of.ts'
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
    const returnable = async (reportedSince: number, except = idOf(1)) => {
      const found = await read((edge) => edge.deviceAccounts.returnable([ACCOUNT], except, reportedSince))
      return found.get(ACCOUNT) ?? NOTHING_RETURNABLE
    }
    const largest = (reportedSince: number, except = idOf(1)) =>
      read((edge) => edge.deviceAccounts.availableOfOthers(ACCOUNT, except, reportedSince, 2))

    it('are exact for up to twenty devices, without the requesting one', async () => {
      await add(1, 20)
      expect(await live(T0)).toBe(19)
      expect(await live(T0 + 1)).toBe(0)
      expect(await returnable(T0 - 1)).toEqual({ all: 209n, inContact: 209n })
      expect(await returnable(T0)).toEqual({ all: 209n, inContact: 0n })
      expect(await returnable(T0 - 1, '')).toEqual({ all: 210n, inContact: 210n })
      expect(await largest(T0 - 1, idOf(20))).toEqual([
        { deviceId: idOf(19), available: 19n },
        { deviceId: idOf(18), available: 18n },
      ])
      await use(20, 25n)
      expect(await returnable(T0 - 1)).toEqual({ all: 189n, inContact: 189n })
      expect((await largest(T0 - 1))[0]?.deviceId).toBe(idOf(19))
    })

    it('are cached for each device if there are more than twenty', async () => {
      await add(1, 22)
      expect([await live(T0 - 9_000), await live(T0 - 9_000, '')]).toEqual([21, 22])
      await add(23, 30)
      expect([await live(T0 - 2_401, ''), await live(T0 - 9_000)]).toEqual([22, 21])
      expect(await live(T0 - 2_400)).toBe(29)
      // A clock that went back.
      expect(await live(T0 - 2_401)).toBe(29)
    })

    it('count returning and revoked devices at once, and each device once', async () => {
      await add(1, 30)
      const stored = (n: number, lastSyncAt: number | null) => ({
        ...{ ...device(idOf(n)), epoch: 1, instanceIds: [INSTANCE] },
        lastSyncAt,
      })
      const sync = (from: number | null, to: number, ...numbers: readonly number[]) =>
        store.transaction((tx) =>
          tx.edge.devices.saveSome(numbers.map((n) => ({ device: stored(n, to), stored: stored(n, from) }))),
        )
      await sync(T0, T0 - 20_000, 1, 2, 3, 4, 5)
      expect(await live(T0 - 9_000, '')).toBe(25)
      await sync(T0 - 20_000, T0, 1, 2)
      await sync(T0, T0 + 1, 2, 9)
      await sync(T0 - 20_000, T0 - 9_001, 5)
      expect(await live(T0 - 8_999, '')).toBe(27)
      await store.transaction((tx) => tx.edge.devices.save(stored(3, T0), stored(3, T0 - 20_000)))
      const revoked = { ...stored(9, T0 + 1), revokedAt: T0 + 2 }
      await store.transaction((tx) => tx.edge.devices.save(revoked, stored(9, T0 + 1)))
      await store.transaction((tx) => tx.edge.devices.save({ ...revoked, lastSyncAt: T0 + 3 }, revoked))
      expect(await live(T0 - 8_998, '')).toBe(27)
      // Read again.
      expect(await live(T0 - 1_000, '')).toBe(27)
    })

    it('count the current balance of the requesting device, also with remembered figures of the others', async () => {
      await add(1, 22)
      const all = (22n * 23n) / 2n
      expect(await returnable(T0 - 500)).toEqual({ all: all - 1n, inContact: all - 1n })
      expect(await largest(T0 - 500, idOf(22))).toMatchObject([{ available: 21n }, { available: 20n }])
      await use(22, 5n + 2n)
      await use(21, 5n + 21n)
      expect(await returnable(T0 - 490, idOf(22))).toEqual({ all: all - 20n, inContact: all - 20n })
      expect(await largest(T0 - 490)).toMatchObject([{ available: 22n }, { available: 21n }])
      expect(await returnable(T0 - 200)).toEqual({ all: all - 24n, inContact: all - 24n })
      expect(await largest(T0 - 200)).toMatchObject([{ available: 20n }, { available: 20n }])
    })

    it('are never negative', async () => {
      await add(1, 22)
      for (let n = 1; n <= 22; n += 1) await use(n, BigInt(n + 5))
      expect(await returnable(T0 - 500)).toEqual(NOTHING_RETURNABLE)
      await use(10, 0n)
      expect(await returnable(T0 - 499, idOf(10))).toEqual(NOTHING_RETURNABLE)
      expect(await largest(T0 - 499)).toEqual([{ deviceId: idOf(10), available: 15n }])
    })

    it('add the shortages of other devices, however they were recorded', async () => {
      const other = lineAccount(INSTANCE, 'M', 0)
      const noted = [0, 1, 2, 3, 4].flatMap((n) =>
        [null, 0n, 5n].flatMap((keep): readonly Shortage[] => {
          const recalledAt = keep === null && n < 3 ? null : T0 + n
          const who = `${String(keep)} ${n}`
          const shortage = {
            who,
            lacking: BigInt(n),
            enough: 1n,
            keep,
            since: T0,
            at: T0 + n,
            recalledAt,
            notifiedAt: null,
          }
          return [ACCOUNT, other].map((account) => ({ account, ...shortage }))
        }),
      )
      await store.transaction(async (tx) => {
        await tx.accounts.open([ACCOUNT, other].map((account) => ({ account, cap: 9n })))
        for (const shortage of noted) await tx.edge.shortages.save(shortage)
      })
      for (const who of ['5 3', 'null 1', 'unknown']) {
        for (const times of [
          { since: 0, until: T0 + 9, shortSince: 0 },
          { since: T0, until: T0 + 3, shortSince: T0 + 1 },
          { since: T0 + 2, until: T0 + 9, shortSince: T0 + 9 },
        ]) {
          const found = await read((edge) => edge.shortages.of([ACCOUNT, other, ACCOUNT], times, who))
          const ofOne = (account: string) => noted.filter((shortage) => shortage.account === account)
          for (const account of [ACCOUNT, other]) {
            expect(found.get(account)).toEqual(shortagesOf(ofOne(account), times, who))
          }
        }
      }
    })

    it('cache the shortages of many devices, and use the current one of the requesting device', async () => {
      const short = (n: number, lacking: bigint, at = T0): Promise<void> =>
        store.transaction((tx) =>
          tx.edge.shortages.save({
            ...{ account: ACCOUNT, who: idOf(n), lacking, enough: 1n, keep: 0n, since: at, at },
            ...{ recalledAt: at, notifiedAt: null },
          }),
        )
      const others = async (now: number, who = idOf(1)) => {
        const times = { since: 0, until: now, shortSince: T0 - 1 }
        const { othersLacking, othersRecalledAt } =
          (await read((edge) => edge.shortages.of([ACCOUNT], times, who))).get(ACCOUNT) ?? NO_SHORTAGES
        return [othersLacking, othersRecalledAt]
      }
      await add(1, 1)
      for (let n = 1; n <= 21; n += 1) await short(n, 10n)
      expect(await others(T0)).toEqual([200n, T0])
      await short(1, 15n)
      await short(2, 30n, T0 + 1)
      expect(await others(T0 + 1)).toEqual([220n, T0 + 1])
      await short(22, 10n)
      expect(await others(T0 + 2, 'unknown')).toEqual([245n, T0 + 1])
      await short(3, 1n, T0 + 3)
      await short(4, 500n, T0 + 3)
      expect(await others(T0 + 3)).toEqual([230n, T0 + 1])
      expect(await others(T0 + 3, idOf(3))).toEqual([244n, T0 + 1])
      expect(await others(T0 + 3, idOf(4))).toEqual([0n, T0 + 1])
      expect(await others(T0 + 222)).toEqual([711n, T0 + 3])
    })

    it('include the latest recall for other devices, whichever device requests first', async () => {
      const recall = (n: number, at: number): Promise<void> =>
        store.transaction((tx) =>
          tx.edge.shortages.save({
            ...{ account: ACCOUNT, who: idOf(n), lacking: 0n, enough: 1n, keep: null, since: T0, at: T0 },
            ...{ recalledAt: at, notifiedAt: null },
          }),
        )
      const times = { since: 0, until: T0, shortSince: 0 }
      const recalledAt = async (n: number) =>
        (await read((edge) => edge.shortages.of([ACCOUNT], times, idOf(n)))).get(ACCOUNT)?.othersRecalledAt
      await add(1, 1)
      await recall(1, T0)
      for (let n = 2; n <= 22; n += 1) await recall(n, T0 - 1_000)
      expect(await recalledAt(1)).toBe(T0 - 1_000)
      expect(await recalledAt(2)).toBe(T0)
    })

    it('are empty without shortages', async () => {
      const never = { since: 0, until: 1, shortSince: 0 }
      expect(await read((edge) => edge.shortages.of([ACCOUNT], never, 'unknown'))).toEqual(new Map())
    })
  })
}
