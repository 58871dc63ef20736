// A pool that has run dry while devices hold what they do not need, for every store.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../src/core/account.ts'
import { INSTANCE, type Twin } from './twin.ts'
import { TestDevice, want } from './test-device.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)

/** @param open a twin with nothing in it but the instance */
export function scarceSuite(name: string, open: () => Promise<Twin>): void {
  describe(name, () => {
    let twin: Twin
    beforeEach(async () => {
      twin = await open()
      await twin.setLineItem('ACT-1', { quantity: 100n })
    })
    afterEach(async () => twin[Symbol.asyncDispose]())

    const charge = (amount: bigint) => ({ lineItemId: 'ACT-1', accounts: [LINE], amount })
    const hints = () =>
      twin.store.transaction(async (tx) => {
        const found = await tx.outbox.claim(1_000, twin.time, twin.time + 1)
        await tx.outbox.remove(found.map(({ id }) => id))
        return found
      })
    const asks = (device: TestDevice) => twin.store.read((reader) => reader.edge.releases.of(device.id))

    async function devicesWith<T extends readonly bigint[]>(...rooms: T): Promise<{ [K in keyof T]: TestDevice }> {
      const devices: TestDevice[] = []
      for (const room of rooms) {
        const device = await TestDevice.join(twin)
        await device.sync(room > 0n ? [want(LINE, 0n, room)] : [])
        devices.push(device)
      }
      await hints()
      return devices as unknown as { [K in keyof T]: TestDevice }
    }

    /** Does as an agent does that is asked: gives back what is beyond `keep`, and all of it when it is idle. */
    async function obey(device: TestDevice, idle = true): Promise<void> {
      const answer = await device.sync()
      if (answer.outcome !== 'MERGED') throw new Error(answer.outcome)
      for (const { account, keep } of answer.releases) device.giveBack(account, idle ? 0n : keep)
      if (answer.releases.length > 0) await device.sync()
    }

    it('asks who holds most for what a waiting request needs, with a hint to come at once', async () => {
      const [needy, rich, poor] = await devicesWith(0n, 80n, 20n)
      await needy.sync([want(LINE, 0n, 40n)])
      expect(needy.room(LINE)).toBe(0n)
      expect(await asks(rich)).toEqual([{ account: LINE, keep: 33n, askedAt: twin.time }])
      expect(await asks(poor)).toEqual([])
      expect((await hints()).map(({ hint }) => hint)).toEqual([{ kind: 'device', deviceId: rich.id, reason: 'sync' }])

      expect(await rich.sync()).toMatchObject({ releases: [{ account: LINE, keep: 33n }] })
      rich.giveBack(LINE, 33n)
      expect(await rich.sync([want(LINE, 80n)])).toMatchObject({ releases: [] })
      expect(await asks(rich)).toEqual([])
      await needy.sync([want(LINE, 0n, 40n)])
      expect(needy.room(LINE)).toBe(40n)
    })

    it('gives a device that is asked nothing for its comfort, until it has given back', async () => {
      const [needy, rich] = await devicesWith(0n, 95n)
      await needy.sync([want(LINE, 0n, 40n)])
      const [other] = await devicesWith(5n)
      other.giveBack(LINE)
      await other.sync()
      expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 95n + needy.room(LINE) })
      await rich.sync([want(LINE, 200n)])
      expect(rich.room(LINE)).toBe(95n)
    })

    it('asks nobody twice within a sync interval, and nobody for the comfort of a device that uses nothing', async () => {
      const [needy, rich] = await devicesWith(0n, 100n)
      await needy.sync([want(LINE, 50n)])
      expect(await asks(rich)).toEqual([])
      for (let n = 0; n < 5; n += 1) await needy.sync([want(LINE, 0n, 10n)])
      expect(await hints()).toHaveLength(1)
      twin.time += twin.terms.syncEveryMs
      await needy.sync([want(LINE, 0n, 10n)])
      expect(await hints()).toHaveLength(1)
    })

    it('comes to rest: devices that all want more than there is do not pass it on and on', async () => {
      const devices = await devicesWith(50n, 50n, 0n, 0n)
      let moved = 0
      for (let round = 0; round < 30; round += 1) {
        twin.time += twin.terms.syncEveryMs
        const before = devices.map((device) => device.room(LINE))
        for (const device of devices) {
          await obey(device, false)
          await device.sync([want(LINE, 100n, device.room(LINE) === 0n ? 1n : 0n)])
        }
        if (devices.some((device, index) => device.room(LINE) !== before[index])) moved = round
      }
      expect(devices.map((device) => device.room(LINE)).reduce((sum, each) => sum + each, 0n)).toBeGreaterThan(90n)
      expect(devices.every((device) => device.room(LINE) > 0n)).toBe(true)
      expect(moved).toBeLessThan(5)
    })

    it(
      'never leaves the last tokens with an idle device for longer than a sync interval',
      { timeout: 60_000 },
      async () => {
        const devices: TestDevice[] = []
        for (let n = 0; n < 20; n += 1) {
          const device = await TestDevice.join(twin)
          await device.sync([want(LINE, 10n)])
          devices.push(device)
        }
        const [busy, ...idle] = devices
        if (busy === undefined) throw new Error('there is a device')
        for (let used = 0n; used < 100n;) {
          await busy.sync([want(LINE, 20n, 1n)])
          if (busy.room(LINE) === 0n) {
            // The pool is dry. One sync interval, in which each connected device comes once and does as it is asked.
            for (const device of idle) await obey(device)
            twin.time += twin.terms.syncEveryMs
            await busy.sync([want(LINE, 20n, 1n)])
            expect(busy.room(LINE)).toBeGreaterThan(0n)
          }
          for (; busy.room(LINE) > 0n; used += 1n) busy.charge(charge(1n))
        }
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n })
      },
    )
  })
}
