// What becomes of epochs that are never heard of again, for every store.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { actionAccount, lineAccount } from '../../../../src/core/accounts/account.ts'
import { accountLedger } from '../../../../src/cloud/accounts/account-ledger.ts'
import {
  confirmSettlement,
  expireNextInactive,
  showSettlement,
} from '../../../../src/cloud/sync/grants/expire-inactive.ts'
import type { Epoch } from '../../../../src/cloud/storage/device-records.ts'
import { DAY, INSTANCE, type Twin } from '../twin.ts'
import { TestDevice, topUpRequest } from '../test-device.ts'
import { listUsage } from '../../usage/list-usage.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const ACTION = actionAccount(INSTANCE, 'ACT-1', 'a')

/** @param open a twin with nothing in it but the instance */
export function expireInactiveSuite(name: string, open: () => Promise<Twin>): void {
  describe(name, () => {
    let twin: Twin
    beforeEach(async () => {
      twin = await open()
      await twin.setLineItem('ACT-1', {
        quantity: 1_000n,
        actions: [{ id: 'a', name: null, effect: 'ALLOW', conditionId: null, allocation: 500n }],
      })
    })
    afterEach(async () => twin[Symbol.asyncDispose]())

    const charge = (amount: bigint) => ({ lineItemId: 'ACT-1', accounts: [LINE, ACTION], amount })
    const usage = async () => (await twin.store.read((reader) => listUsage(reader, { limit: 100 }))).records
    const epoch = (device: TestDevice, number = 1) =>
      twin.store.read((reader) => reader.edge.epochs.get(device.id, number))
    const ledger = async () => {
      const { accounts } = await accountLedger({ store: twin.store }, INSTANCE, 0, 100)
      return accounts.find(({ account }) => account === LINE)
    }

    /** It holds 100, has reported 30 of them, and spends `unreported` without a word. */
    async function silent(unreported = 0n): Promise<TestDevice> {
      const device = await TestDevice.join(twin)
      await device.sync([topUpRequest(LINE, 100n), topUpRequest(ACTION, 100n)])
      device.charge(charge(30n))
      await device.sync()
      if (unreported > 0n) device.charge(charge(unreported))
      return device
    }

    describe('many silent devices', () => {
      const percentMax = 25
      const settle = () => twin.settle('CHARGED', 30 * DAY, percentMax)
      const settledOf = async (devices: readonly TestDevice[]) => {
        const found = await Promise.all(devices.map((device) => epoch(device)))
        return found.filter((each) => each?.settledAt !== null).length
      }
      const show = () => showSettlement(twin.settlement('CHARGED', 30 * DAY, percentMax))

      async function fleet(size: number): Promise<TestDevice[]> {
        const devices: TestDevice[] = []
        for (let n = 0; n < size; n += 1) {
          const device = await TestDevice.join(twin)
          await device.sync([topUpRequest(LINE, 10n)])
          devices.push(device)
        }
        return devices
      }

      it('are not settled when they are more than an allowed share, until an administrator confirms it', async () => {
        const devices = await fleet(8)
        twin.time += 31 * DAY
        expect(await settle()).toBe(1)
        expect(await settledOf(devices)).toBe(0)
        expect(await show()).toEqual({ paused: true, due: 8, settled: 0, allowed: 2 })

        await confirmSettlement(twin.settlement())
        await settle()
        expect(await settledOf(devices)).toBe(8)
        expect(await show()).toEqual({ paused: false, due: 0, settled: 8, allowed: 2 })
        const { records } = await twin.store.read((reader) => reader.edge.audit.list({}, 1))
        expect(records).toMatchObject([{ action: 'CONFIRM_SETTLEMENT', at: twin.time }])
      })

      it('are confirmed as they are due: those that fall silent later need another confirmation', async () => {
        const gone = await fleet(4)
        twin.time += DAY
        const later = await fleet(4)
        twin.time += 30 * DAY
        await confirmSettlement(twin.settlement())
        await settle()
        expect([await settledOf(gone), await settledOf(later)]).toEqual([4, 0])
        twin.time += DAY
        await settle()
        expect(await settledOf(later)).toBe(0)
        expect(await show()).toMatchObject({ paused: true, due: 4 })
      })

      it('are settled up to the allowed share in a day, and at least one', async () => {
        const devices = await fleet(8)
        twin.time += 31 * DAY
        const [one, two, three, ...others] = devices
        for (const device of others) await device.sync()
        await three?.sync()
        await settle()
        expect(await settledOf([one!, two!])).toBe(2)
        twin.time += 30 * DAY - 1
        for (const device of others) await device.sync()
        twin.time += 2
        await settle()
        expect(await settledOf([three!])).toBe(1)
        expect(await settledOf(devices)).toBe(3)
      })

      it('are settled one at a time in a small fleet', async () => {
        const [device] = await fleet(1)
        twin.time += 31 * DAY
        await settle()
        expect(await settledOf([device!])).toBe(1)
        const [one, two] = await fleet(2)
        twin.time += 29 * DAY
        await one?.sync()
        twin.time += 2 * DAY
        await settle()
        expect(await settledOf([one!, two!])).toBe(1)
      })
    })

    describe('a device that never receives a response', () => {
      const repeats: readonly (readonly [string, (device: TestDevice) => Promise<() => Promise<unknown>>])[] = [
        [
          'the last segment',
          async (device) => {
            const { document } = await device.seal()
            return () => twin.sync(device.id, document)
          },
        ],
        [
          'an earlier segment',
          async (device) => {
            const { document } = await device.seal()
            await device.sync()
            await device.sync()
            return () => twin.sync(device.id, document)
          },
        ],
        ['an attach', async (device) => () => twin.attach(device.id, 'the same nonce', device.state.epoch)],
        [
          'attaches after restarts',
          async (device) => () => twin.attach(device.id, `nonce ${twin.time}`, device.state.epoch),
        ],
      ]
      it.each(repeats)('is not settled while it sends %s', async (_what, open) => {
        const device = await silent(20n)
        const send = await open(device)
        for (let n = 0; n < 4; n += 1) {
          twin.time += 20 * DAY
          await send()
          await twin.settle('RELEASED')
        }
        expect(await epoch(device)).toMatchObject({ settledAt: null })
        expect((await twin.pool(LINE)).grantedOut).toBe(100n)
        twin.time += 31 * DAY
        await twin.settle('RELEASED')
        expect(await epoch(device)).toMatchObject({ settledAt: twin.time })
      })
    })

    describe('a silent device, settled as used', () => {
      it('is fenced, and its tokens count as used and are shown as presumed', async () => {
        const device = await silent()
        twin.time += 30 * DAY
        expect(await twin.settle()).toBe(1)
        twin.time += 1
        expect(await twin.settle()).toBe(2)
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 100n })
        expect(await twin.pool(ACTION)).toMatchObject({ grantedOut: 100n, billedByDevices: 100n })
        expect(await epoch(device)).toMatchObject({
          status: 'FENCED',
          fenceReason: 'SILENT',
          settlement: 'CHARGED',
          settledAt: twin.time,
        })
        const [line, ...others] = await usage()
        expect(line).toMatchObject({
          operation: 'SETTLEMENT',
          status: 'PRESUMED',
          tokens: 70n,
          used: 100n,
          activationId: 'ACT-1',
          accountId: 'customer',
          quantity: 1_000n,
          item: '',
          version: '',
          requesterType: 'device',
          requesterValue: device.id,
          source: { kind: 'device', deviceId: device.id, epoch: 1, entry: 0 },
        })
        expect(others).toHaveLength(1)
        expect(await ledger()).toMatchObject({
          presumed: '70',
          exposure: { released: '0', copies: '0' },
          devices: [{ presumed: '70', outstanding: '100', billed: '100' }],
        })
      })

      it('leaves none of its tokens unaccounted for after it was unlimited', async () => {
        await twin.setLineItem('ACT-1', { quantity: 1_000n, overdraft: 'UNLIMITED' })
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge({ ...charge(50n), accounts: [LINE] })
        await twin.setLineItem('ACT-1', { quantity: 1_000n })
        await device.sync([topUpRequest(LINE, 0n, 800n)])
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 850n, billedByDevices: 50n })
        twin.time += 31 * DAY
        await twin.settle()
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 850n, billedByDevices: 850n })
        expect(await ledger()).toMatchObject({ presumed: '800', devices: [{ outstanding: '850', billed: '850' }] })
      })

      it('is settled once, however many nodes look and however often', async () => {
        await silent()
        await silent()
        twin.time += 31 * DAY
        await Promise.all([twin.settle(), twin.settle(), twin.settle()])
        expect(await twin.settle()).toBe(1)
        expect((await twin.pool(LINE)).billedByDevices).toBe(200n)
        expect((await usage()).filter(({ status }) => status === 'PRESUMED')).toHaveLength(2)
      })

      describe('by a node that finds it and is too late', () => {
        /** The look of a node that has read this epoch before. */
        const late = (due: Epoch | undefined) =>
          expireNextInactive({
            ...twin.settlement(),
            store: {
              read: (work) => twin.store.read(work),
              transaction: (work) =>
                twin.store.transaction((tx) => {
                  const epochs = { ...tx.edge.epochs, nextInactive: async () => due }
                  return work({ ...tx, edge: { ...tx.edge, epochs } })
                }),
            },
          })

        it('is not settled again', async () => {
          const device = await silent()
          twin.time += 31 * DAY
          const due = await epoch(device)
          await twin.settle()
          const after = await epoch(device)
          twin.time += DAY
          expect(await late(due)).toBe(true)
          expect(await epoch(device)).toEqual(after)
          expect((await usage()).filter(({ status }) => status === 'PRESUMED')).toHaveLength(1)
        })

        it('is not settled when it has reported since', async () => {
          const device = await silent()
          twin.time += 31 * DAY
          const due = await epoch(device)
          await device.sync()
          expect(await late(due)).toBe(true)
          expect(await epoch(device)).toMatchObject({ status: 'ACTIVE', settledAt: null })
          await device.sync([], true)
          const closed = await epoch(device)
          twin.time += 31 * DAY
          expect(await late(due)).toBe(true)
          expect(await epoch(device)).toEqual(closed)
        })
      })

      it('reports after each check whether it waits for an administrator', async () => {
        const told: boolean[] = []
        const look = (percentMax: number) =>
          expireNextInactive({ ...twin.settlement('CHARGED', 30 * DAY, percentMax), onPaused: (is) => told.push(is) })
        for (let n = 0; n < 4; n += 1) await silent()
        expect(await look(25)).toBe(false)
        twin.time += 31 * DAY
        expect([await look(25), await look(100), await look(25)]).toEqual([false, true, false])
        expect(told).toEqual([false, true, false, true])
      })

      it('is not settled while it reports, or without tokens', async () => {
        const device = await silent()
        const empty = await TestDevice.join(twin)
        await empty.sync()
        twin.time += 29 * DAY
        await device.sync()
        twin.time += 29 * DAY
        expect(await twin.settle()).toBe(1)
        expect([await epoch(device), await epoch(empty)]).toMatchObject([
          { status: 'ACTIVE', settlement: null },
          { status: 'ACTIVE', settlement: null },
        ])
      })

      it('is corrected to the exact use as entries arrive, and the billed lines add up at each step', async () => {
        const device = await silent(20n)
        twin.time += 31 * DAY
        await twin.settle()
        expect(await device.sync()).toMatchObject({ outcome: 'FENCED', closed: false })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 100n })
        expect((await usage()).map(({ status, tokens }) => [status, tokens])).toEqual([
          ['PRESUMED', -20n],
          ['GRANTED', 20n],
          ['PRESUMED', 70n],
          ['GRANTED', 30n],
        ])
        expect(await device.sync([], true)).toMatchObject({ closed: true })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 50n, billedByDevices: 50n })
        expect(await ledger()).toMatchObject({ presumed: '0' })
        const sum = (await usage()).reduce((total, { tokens }) => total + tokens, 0n)
        expect(sum).toBe(50n)
        await device.attach()
        expect(await device.sync([topUpRequest(LINE, 10n)])).toMatchObject({ outcome: 'MERGED' })
      })

      it('is corrected by the entries of a copy or of an undelivered range', async () => {
        const device = await silent()
        const copy = device.copy()
        await device.sync()
        copy.charge(charge(25n))
        twin.time += 31 * DAY
        await twin.settle()
        expect((await twin.pool(LINE)).billedByDevices).toBe(100n)
        await copy.sync()
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 100n })
        expect(await ledger()).toMatchObject({ presumed: '45', exposure: { copies: '45' } })
      })

      it('includes one with two writers, one of whom has closed the epoch', async () => {
        const device = await silent()
        const copy = device.copy()
        device.charge(charge(5n))
        await device.sync()
        copy.charge(charge(7n))
        expect(await copy.sync()).toMatchObject({ outcome: 'FENCED', forked: true })
        expect(await device.sync([], true)).toMatchObject({ outcome: 'FENCED', closed: true })
        // The copy may have spent the rest without a word.
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 42n })
        await device.attach()
        twin.time += 31 * DAY
        await twin.settle()
        expect(await epoch(device)).toMatchObject({ settlement: 'CHARGED' })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 100n })
        expect(await ledger()).toMatchObject({ presumed: '58' })
      })

      it('includes a fenced one, whose silence counts from the fence', async () => {
        const device = await silent()
        twin.time += 20 * DAY
        await device.attach()
        twin.time += 20 * DAY
        expect(await twin.settle()).toBe(1)
        twin.time += 11 * DAY
        await device.sync()
        expect(await twin.settle()).toBe(2)
        expect(await epoch(device, 1)).toMatchObject({ settlement: 'CHARGED', fenceReason: 'SUPERSEDED' })
        expect(await epoch(device, 2)).toMatchObject({ status: 'ACTIVE' })
        expect((await twin.pool(LINE)).billedByDevices).toBe(100n)
      })
    })

    describe('a silent device, settled as unused', () => {
      it('returns its tokens, and the risk is published', async () => {
        await silent()
        twin.time += 31 * DAY
        await twin.settle('RELEASED')
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 30n, billedByDevices: 30n })
        expect(await ledger()).toMatchObject({
          exposure: { released: '70' },
          devices: [{ released: '70', outstanding: '30', billed: '30' }],
        })
        expect((await usage()).map(({ status }) => status)).toEqual(['GRANTED'])
      })

      it('is billed for tokens that it spent before, which are not sold again', async () => {
        const device = await silent(60n)
        twin.time += 31 * DAY
        await twin.settle('RELEASED')
        expect(await twin.chargeDirectly(LINE, 970n)).toBe(true)
        await device.sync()
        expect(await twin.pool(LINE)).toMatchObject({
          charged: 970n,
          grantedOut: 90n,
          billedByDevices: 90n,
          capTarget: 1_000n,
          capInForce: 1_060n,
        })
        expect(await ledger()).toMatchObject({ exposure: { released: '10' } })
        await device.sync([], true)
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 90n, billedByDevices: 90n })
        expect(await ledger()).toMatchObject({ exposure: { released: '0' } })
      })
    })
  })
}
