// A pool that has run dry while devices hold what they do not need, for every store.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../../src/core/accounts/account.ts'
import { MICRO_MAX } from '../../../../src/core/pricing/amount.ts'
import { DAY, INSTANCE, type Twin } from '../twin.ts'
import { TestDevice, topUpRequest } from '../test-device.ts'
import { shortagesIn } from './shortages.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)

/** @param open a twin with nothing in it but the instance */
export function rebalanceSuite(name: string, open: () => Promise<Twin>): void {
  describe(name, () => {
    let twin: Twin
    beforeEach(async () => {
      twin = await open()
      await twin.setLineItem('ACT-1', { quantity: 100n })
    })
    afterEach(async () => twin[Symbol.asyncDispose]())

    const charge = (amount: bigint) => ({ lineItemId: 'ACT-1', accounts: [LINE], amount })
    const notifications = () =>
      twin.store.transaction(async (tx) => {
        const found = await tx.outbox.claim(1_000, twin.time, twin.time + 1)
        await tx.outbox.remove(found.map(({ id }) => id))
        return found
      })
    const recallsFrom = ({ id, state }: TestDevice) =>
      twin.store.read(async (reader) => {
        const noted = { since: twin.time - 2 * twin.terms.syncEveryMs, until: twin.time }
        const found = await reader.edge.shortages.recallsFrom(id, state.epoch, noted, 10)
        return found.recalls.flatMap(({ account, keep, available }) => (available > keep ? [{ account, keep }] : []))
      })

    async function devicesWith<T extends readonly bigint[]>(...rooms: T): Promise<{ [K in keyof T]: TestDevice }> {
      const devices: TestDevice[] = []
      for (const available of rooms) {
        const device = await TestDevice.join(twin)
        await device.sync(available > 0n ? [topUpRequest(LINE, 0n, available)] : [])
        devices.push(device)
      }
      await notifications()
      return devices as unknown as { [K in keyof T]: TestDevice }
    }

    /** Does as an agent does that is asked: gives back what is beyond `keep`, and all of it when it is idle. */
    async function obey(device: TestDevice, idle = true): Promise<void> {
      const answer = await device.sync()
      if (answer.outcome !== 'MERGED') throw new Error(answer.outcome)
      for (const { account, keep } of answer.releases) device.giveBack(account, idle ? 0n : keep)
      if (answer.releases.length > 0) await device.sync()
    }

    it('recalls tokens from a device that was unlimited before', async () => {
      await twin.setLineItem('ACT-1', { quantity: 100n, overdraft: 'UNLIMITED' })
      const [needy, rich] = await devicesWith(0n, 80n)
      await twin.setLineItem('ACT-1', { quantity: 100n })
      await rich.sync([topUpRequest(LINE, 0n, 100n)])
      await needy.sync([topUpRequest(LINE, 0n, 40n)])
      expect(await recallsFrom(rich)).toEqual([{ account: LINE, keep: 50n }])
    })

    it('recalls the need of a waiting request from the devices with the most tokens, and notifies them at once', async () => {
      const [needy, rich, poor] = await devicesWith(0n, 80n, 20n)
      await needy.sync([topUpRequest(LINE, 0n, 40n)])
      expect(needy.available(LINE)).toBe(0n)
      expect(await recallsFrom(rich)).toEqual([{ account: LINE, keep: 33n }])
      expect(await recallsFrom(poor)).toEqual([])
      expect((await notifications()).map(({ notification }) => notification)).toEqual([
        { kind: 'device', deviceId: rich.id, reason: 'sync' },
      ])

      expect(await rich.sync()).toMatchObject({ releases: [{ account: LINE, keep: 33n }] })
      rich.giveBack(LINE, 33n)
      expect(await rich.sync([topUpRequest(LINE, 80n)])).toMatchObject({ releases: [] })
      expect(await recallsFrom(rich)).toEqual([])
      await needy.sync([topUpRequest(LINE, 0n, 40n)])
      expect(needy.available(LINE)).toBe(40n)
    })

    it('recalls below the fair share where a waiting request needs it, the same level for all', async () => {
      const [needy, ...others] = await devicesWith(0n, 30n, 30n, 30n)
      await needy.sync([topUpRequest(LINE, 0n, 40n)])
      for (const device of others) {
        expect(await recallsFrom(device)).toEqual([{ account: LINE, keep: 20n }])
        await obey(device, false)
      }
      await needy.sync([topUpRequest(LINE, 0n, 40n)])
      expect(needy.available(LINE)).toBe(40n)
    })

    it('recalls as much from a device that has spent since the level was set', async () => {
      const [needy, busy, idle] = await devicesWith(0n, 50n, 50n)
      await needy.sync([topUpRequest(LINE, 0n, 20n)])
      expect(await recallsFrom(busy)).toEqual([{ account: LINE, keep: 33n }])
      expect(busy.charge(charge(20n))).toBe(true)
      expect(await busy.sync()).toMatchObject({ releases: [{ account: LINE, keep: 13n }] })
      busy.giveBack(LINE, 13n)
      await busy.sync()
      await obey(idle, false)
      await needy.sync([topUpRequest(LINE, 0n, 20n)])
      expect(needy.available(LINE)).toBe(20n)
    })

    it('recalls the rest of a device that has spent nearly all since the level was set', async () => {
      const [needy, busy] = await devicesWith(0n, 100n)
      await needy.sync([topUpRequest(LINE, 0n, 90n)])
      expect(busy.charge(charge(95n))).toBe(true)
      expect(await busy.sync()).toMatchObject({ releases: [{ account: LINE, keep: 0n }] })
    })

    it('keeps recalling while the device syncs without its request, and recalls everything after a sync interval', async () => {
      const [needy, rich] = await devicesWith(20n, 80n)
      await needy.sync([topUpRequest(LINE, 0n, 40n)])
      await needy.sync([topUpRequest(LINE, 10n)])
      expect(await recallsFrom(rich)).toEqual([{ account: LINE, keep: 50n }])
      for (let n = 0; n < 2; n += 1) {
        twin.time += twin.terms.syncEveryMs / 2
        await needy.sync([topUpRequest(LINE, 0n, 40n)])
      }
      expect(await recallsFrom(rich)).toEqual([{ account: LINE, keep: 0n }])
    })

    it('recalls nothing for a request that all tokens together could not pay, and moves nothing for it', async () => {
      const [greedy, other] = await devicesWith(0n, 60n)
      const answer = await greedy.sync([topUpRequest(LINE, 0n, 101n)])
      expect(greedy.available(LINE)).toBe(0n)
      expect(answer).toMatchObject({ grant: { accounts: [{ account: LINE, available: 40n, exhausted: false }] } })
      expect(await recallsFrom(other)).toEqual([])
      expect(await notifications()).toEqual([])
      await other.sync([topUpRequest(LINE, 0n, 100n)])
      expect(other.available(LINE)).toBe(100n)
    })

    it('reports the tokens that devices in contact could return, only to a device whose request was not served', async () => {
      const [needy, rich] = await devicesWith(0n, 80n)
      const accountsOf = async (wanted: bigint, needed?: bigint) => {
        const answer = await needy.sync([topUpRequest(LINE, wanted, needed)])
        return answer.outcome === 'MERGED' ? (answer.grant?.accounts ?? []) : []
      }
      expect(await accountsOf(0n, 40n)).toMatchObject([{ account: LINE, available: 20n, returnable: 80n }])
      expect((await accountsOf(0n, 20n))[0]).not.toHaveProperty('returnable')
      twin.time += 3 * twin.terms.syncEveryMs
      expect((await accountsOf(0n, 40n))[0]).not.toHaveProperty('returnable')
      expect(await recallsFrom(rich)).not.toEqual([])
    })

    it('recalls nothing when only tokens of a fenced epoch could complete the need', async () => {
      const [needy, fenced, other] = await devicesWith(0n, 50n, 30n)
      await needy.sync([topUpRequest(LINE, 0n, 60n)])
      expect(await recallsFrom(other)).not.toEqual([])
      await fenced.attach()
      await needy.sync([topUpRequest(LINE, 0n, 60n)])
      expect(await recallsFrom(other)).toEqual([])
      await needy.sync([topUpRequest(LINE, 0n, 50n)])
      expect(await recallsFrom(other)).toEqual([{ account: LINE, keep: 0n }])
    })

    it('accepts requests for more tokens than any pool can have', async () => {
      await twin.reserve('ACT-1', 10n)
      const [other, greedy, greedier] = await devicesWith(60n, 0n, 0n)
      const most = { account: LINE, amount: String(MICRO_MAX) }
      for (const [device, needs] of [
        [greedy, [[most]]],
        [greedier, [[most, most]]],
      ] as const) {
        const { document } = await device.sealAs({ ...device.payload([]), needs: needs.map((need) => [...need]) })
        const taken = await twin.sync(device.id, document)
        if (!taken.accepted) throw new Error(taken.problem)
        expect(await device.accept(taken.answer)).toMatchObject({
          grant: { accounts: [{ account: LINE, granted: 0n, available: 30n }] },
        })
      }
      expect(await recallsFrom(other)).toEqual([])
    })

    it('serves other devices when the shortages of an account together exceed the maximum of a counter', async () => {
      const quantity = MICRO_MAX - 807n
      const most = (quantity * 6n) / 10n
      await twin.setLineItem('ACT-1', { quantity })
      const [honest, ...greedy] = await devicesWith(10n, 0n, 0n, 0n)
      for (const device of greedy) await device.sync([topUpRequest(LINE, 0n, most)])
      const times = { since: 0, until: twin.time, shortSince: 0 }
      const noted = await twin.store.read((reader) => reader.edge.shortages.of([LINE], times, honest.id))
      expect(noted.get(LINE)?.othersLacking).toBe(2n * most)
      expect(honest.charge(charge(5n))).toBe(true)
      expect(await honest.sync([topUpRequest(LINE, 10n)])).toMatchObject({ outcome: 'MERGED' })
      expect((await twin.pool(LINE)).billedByDevices).toBe(5n)
    })

    it('grants no more over time than the maximum of a counter, however often tokens are returned', async () => {
      await twin.setLineItem('ACT-2', { quantity: MICRO_MAX })
      const line = lineAccount(INSTANCE, 'ACT-2', 0)
      const [device] = await devicesWith(0n)
      await device.sync([topUpRequest(line, MICRO_MAX - 5n)])
      expect(device.available(line)).toBe(MICRO_MAX - 5n)
      device.giveBack(line, 0n)
      await device.sync([topUpRequest(line, 10n)])
      expect(device.available(line)).toBe(5n)
    })

    it('serves the waiting requests that it can, in their order, and reports the rest', async () => {
      const [device] = await devicesWith(0n)
      const payload = device.payload([])
      const needs = [70n, 40n, 30n, 1n].map((amount) => [{ account: LINE, amount: String(amount) }])
      const { document } = await device.sealAs({ ...payload, needs })
      const taken = await twin.sync(device.id, document)
      if (!taken.accepted) throw new Error(taken.problem)
      expect(await device.accept(taken.answer)).toMatchObject({
        grant: { accounts: [{ account: LINE, granted: 100n, available: 0n, exhausted: true }] },
      })
    })

    it('counts the charges of the cloud as spent', async () => {
      await twin.chargeDirectly(LINE, 40n)
      const [needy, rich] = await devicesWith(0n, 60n)
      await needy.sync([topUpRequest(LINE, 0n, 61n)])
      expect(await recallsFrom(rich)).toEqual([])
      await needy.sync([topUpRequest(LINE, 0n, 50n)])
      expect(await recallsFrom(rich)).toEqual([{ account: LINE, keep: 10n }])
      expect((await notifications()).map(({ notification }) => notification)).toEqual([
        { kind: 'device', deviceId: rich.id, reason: 'sync' },
      ])
    })

    it('makes a device return tokens above a lowered cap, charges of the cloud included', async () => {
      await twin.chargeDirectly(LINE, 40n)
      const [device] = await devicesWith(60n)
      expect(await device.sync()).toMatchObject({ releases: [] })
      await twin.setLineItem('ACT-1', { quantity: 99n })
      expect(await device.sync()).toMatchObject({ releases: [{ account: LINE, keep: 59n }] })
    })

    it('grants no tokens in advance that another device was refused, until that shortage is over', async () => {
      const [needy, rich] = await devicesWith(0n, 95n)
      await needy.sync([topUpRequest(LINE, 0n, 40n)])
      await rich.sync()
      rich.giveBack(LINE, 60n)
      await rich.sync([topUpRequest(LINE, 200n)])
      expect(rich.available(LINE)).toBe(60n)
      // The device that was refused has not asked again yet: its tokens wait for it.
      const [third] = await devicesWith(0n)
      await third.sync([topUpRequest(LINE, 40n)])
      expect(third.available(LINE)).toBe(0n)
      await needy.sync([topUpRequest(LINE, 0n, 40n)])
      expect(needy.available(LINE)).toBe(40n)
    })

    it('grants an idle device its share in advance only an hour after the last shortage, unless there is enough', async () => {
      const [needy, rich, third] = await devicesWith(0n, 100n, 0n)
      await needy.sync([topUpRequest(LINE, 0n, 1n)])
      await obey(rich)
      await needy.sync([topUpRequest(LINE, 0n, 1n)])
      expect(needy.available(LINE)).toBe(1n)
      await third.sync([topUpRequest(LINE, 30n)])
      expect(third.available(LINE)).toBe(30n)
      await rich.sync([topUpRequest(LINE, 40n)])
      expect(rich.available(LINE)).toBe(0n)
      twin.time += 3_600_000
      await rich.sync([topUpRequest(LINE, 40n)])
      expect(rich.available(LINE)).toBe(33n)
    })

    it('notifies again when the shortage before was noted by a clock far ahead', async () => {
      const [needy, rich] = await devicesWith(0n, 100n)
      twin.time += 31 * DAY
      await rich.sync()
      await needy.sync([topUpRequest(LINE, 0n, 10n)])
      twin.time -= 31 * DAY
      expect(await recallsFrom(rich)).toEqual([])
      await rich.sync()
      await notifications()
      await needy.sync([topUpRequest(LINE, 0n, 10n)])
      expect(await notifications()).toHaveLength(1)
    })

    it('notifies no device twice at a time, and none for advance requests of an idle device', async () => {
      const [needy, rich] = await devicesWith(0n, 100n)
      await needy.sync([topUpRequest(LINE, 50n)])
      expect(await recallsFrom(rich)).toEqual([])
      for (let n = 0; n < 5; n += 1) await needy.sync([topUpRequest(LINE, 0n, 10n)])
      expect(await notifications()).toHaveLength(1)
      twin.time += twin.terms.syncEveryMs
      await rich.seal()
      await needy.sync([topUpRequest(LINE, 0n, 10n)])
      expect(await notifications()).toHaveLength(1)
    })

    describe('a device that was short', () => {
      const notified = async () => {
        await twin.notifyServable()
        return (await notifications()).flatMap(({ notification }) =>
          notification.kind === 'device' ? [notification.deviceId] : [],
        )
      }

      it('is notified once when another device has returned the needed tokens', async () => {
        const [needy, rich] = await devicesWith(0n, 100n)
        await needy.sync([topUpRequest(LINE, 0n, 40n)])
        await notifications()
        expect(await notified()).toEqual([])
        rich.giveBack(LINE, 61n)
        await rich.sync()
        expect(await notified()).toEqual([])
        rich.giveBack(LINE, 60n)
        await rich.sync()
        expect(await notified()).toEqual([needy.id])
        expect(await notified()).toEqual([])
        await needy.sync([topUpRequest(LINE, 0n, 40n)])
        expect(needy.available(LINE)).toBe(40n)
        twin.time += twin.terms.syncEveryMs
        rich.giveBack(LINE)
        await rich.sync()
        expect(await notified()).toEqual([])
      })

      it('is notified when an administrator raises the quantity, also of a need that no recall could meet', async () => {
        const [needy, rich] = await devicesWith(0n, 100n)
        await needy.sync([topUpRequest(LINE, 0n, 150n)])
        await rich.sync([topUpRequest(LINE, 0n, 200n)])
        await notifications()
        expect(await notified()).toEqual([])
        await twin.setLineItem('ACT-1', { quantity: 250n })
        await notifications()
        expect(await notified()).toEqual([needy.id, rich.id].sort())
        await twin.setLineItem('ACT-1', { quantity: 250n, overdraft: 'UNLIMITED' })
      })

      it('is not notified of charges of the cloud', async () => {
        const [needy, rich] = await devicesWith(0n, 60n)
        await twin.chargeDirectly(LINE, 40n)
        await needy.sync([topUpRequest(LINE, 0n, 30n)])
        rich.giveBack(LINE, 31n)
        await rich.sync()
        await notifications()
        expect(await notified()).toEqual([])
        expect(await recallsFrom(rich)).toEqual([{ account: LINE, keep: 30n }])
        rich.giveBack(LINE, 30n)
        await rich.sync()
        await notifications()
        expect(await recallsFrom(rich)).toEqual([])
        expect(await notified()).toEqual([needy.id])
      })

      it('is notified when the cloud refunds, and when a silent device is settled as released', async () => {
        const [needy, rich] = await devicesWith(0n, 60n)
        await twin.chargeDirectly(LINE, 40n)
        await needy.sync([topUpRequest(LINE, 0n, 30n)])
        await notifications()
        await twin.refundDirectly(LINE, 30n)
        expect(await notified()).toEqual([needy.id])
        twin.time += 31 * 86_400_000
        await needy.sync([topUpRequest(LINE, 0n, 50n)])
        await notifications()
        expect(await notified()).toEqual([])
        await twin.settle('RELEASED')
        expect(await notified()).toEqual([needy.id])
        expect(rich.available(LINE)).toBe(60n)
      })

      it('is notified although it only requested tokens in advance', async () => {
        const [idle, rich] = await devicesWith(0n, 100n)
        await idle.sync([topUpRequest(LINE, 10n)])
        expect(await notified()).toEqual([])
        rich.giveBack(LINE, 50n)
        await rich.sync()
        expect(await notified()).toEqual([idle.id])
      })

      describe('while the clock was far ahead', () => {
        it('is not notified, because it requests again without a notification', async () => {
          const [needy, rich] = await devicesWith(0n, 100n)
          twin.time += DAY / 2
          await needy.sync([topUpRequest(LINE, 0n, 40n)])
          twin.time -= DAY / 2
          rich.giveBack(LINE, 60n)
          await rich.sync()
          await notifications()
          for (let round = 0; round < 3; round += 1) {
            expect(await notified()).toEqual([])
            twin.time += twin.terms.syncEveryMs
          }
        })

        it('is notified again of a later shortage', async () => {
          const [needy, rich] = await devicesWith(0n, 100n)
          await needy.sync([topUpRequest(LINE, 0n, 40n)])
          rich.giveBack(LINE, 60n)
          await rich.sync()
          await notifications()
          twin.time += DAY / 2
          expect(await notified()).toEqual([needy.id])
          twin.time -= DAY / 2
          expect(await notified()).toEqual([needy.id])
          expect(await notified()).toEqual([])
          twin.time += twin.terms.syncEveryMs
          await needy.sync([topUpRequest(LINE, 0n, 100n)])
          rich.giveBack(LINE)
          await rich.sync()
          await notifications()
          expect(await notified()).toEqual([needy.id])
          expect(await notified()).toEqual([])
        })

        it('is forgotten, when it was further ahead than anything is notified for', async () => {
          const [needy] = await devicesWith(0n, 100n)
          twin.time += 2 * DAY
          await needy.sync([topUpRequest(LINE, 0n, 40n)])
          const noted = () => shortagesIn(twin.store, LINE, [needy.id])
          expect(await noted()).toHaveLength(1)
          twin.time -= 2 * DAY
          await twin.recallForCloud()
          expect(await noted()).toEqual([])
        })
      })

      it('is notified again, at most once in a sync interval, where others were faster', async () => {
        const [needy, rich, third] = await devicesWith(0n, 100n, 0n)
        for (let round = 0; round < 3; round += 1) {
          await needy.sync([topUpRequest(LINE, 0n, 40n)])
          await notifications()
          rich.giveBack(LINE, 60n)
          await rich.sync()
          expect(await notified()).toEqual(round === 0 || round === 2 ? [needy.id] : [])
          await third.sync([topUpRequest(LINE, 0n, 40n)])
          await needy.sync([topUpRequest(LINE, 0n, 40n)])
          expect(needy.available(LINE)).toBe(0n)
          third.giveBack(LINE)
          await third.sync()
          await rich.sync([topUpRequest(LINE, 0n, 100n)])
          await notifications()
          if (round === 1) twin.time += twin.terms.syncEveryMs
        }
      })
    })

    it('recalls the reserve of the cloud, and no more than there is', async () => {
      const [one, other] = await devicesWith(60n, 40n)
      await twin.reserve('ACT-1', 30n)
      await twin.recallForCloud()
      expect([await recallsFrom(one), await recallsFrom(other)]).toEqual([
        [{ account: LINE, keep: 35n }],
        [{ account: LINE, keep: 35n }],
      ])
      await obey(one, false)
      await obey(other, false)
      expect(await recallsFrom(one)).toEqual([])
      await twin.reserve('ACT-1', 1_000n)
      await twin.recallForCloud()
      expect([await recallsFrom(one), await recallsFrom(other)]).toEqual([
        [{ account: LINE, keep: 0n }],
        [{ account: LINE, keep: 0n }],
      ])
    })

    it('stops moving tokens within an hour if all devices request more than there is', async () => {
      const devices = await devicesWith(50n, 50n, 0n, 0n)
      let moved = 0
      for (let round = 0; round < 30; round += 1) {
        twin.time += twin.terms.syncEveryMs
        const before = devices.map((device) => device.available(LINE))
        for (const device of devices) {
          await obey(device, false)
          await device.sync([topUpRequest(LINE, 100n, device.available(LINE) === 0n ? 1n : 0n)])
        }
        if (devices.some((device, index) => device.available(LINE) !== before[index])) moved = round
      }
      expect(devices.map((device) => device.available(LINE)).reduce((sum, each) => sum + each, 0n)).toBeGreaterThan(90n)
      expect(devices.every((device) => device.available(LINE) > 0n)).toBe(true)
      expect(moved * twin.terms.syncEveryMs).toBeLessThanOrEqual(3_600_000)
    })

    it(
      'never leaves the last tokens with an idle device for longer than a sync interval',
      { timeout: 60_000 },
      async () => {
        const devices: TestDevice[] = []
        for (let n = 0; n < 20; n += 1) {
          const device = await TestDevice.join(twin)
          await device.sync([topUpRequest(LINE, 10n)])
          devices.push(device)
        }
        const [busy, ...idle] = devices
        if (busy === undefined) throw new Error('there is a device')
        for (let used = 0n; used < 100n;) {
          await busy.sync([topUpRequest(LINE, 20n, 1n)])
          if (busy.available(LINE) === 0n) {
            // The pool is dry. One sync interval, in which each connected device comes once and does as it is asked.
            for (const device of idle) await obey(device)
            twin.time += twin.terms.syncEveryMs
            await busy.sync([topUpRequest(LINE, 20n, 1n)])
            expect(busy.available(LINE)).toBeGreaterThan(0n)
          }
          for (; busy.available(LINE) > 0n; used += 1n) busy.charge(charge(1n))
        }
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n })
      },
    )
  })
}
