// What becomes of an epoch that was given up, and of the entries that a later one delivers, for every store.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { actionAccount, limitAccount, lineAccount } from '../../../../src/core/accounts/account.ts'
import { accountLedger } from '../../../../src/cloud/accounts/account-ledger.ts'
import { setOfflinePolicy } from '../../../../src/cloud/policy/offline-policy.ts'
import { deleteLineItem } from '../../../../src/cloud/service-api/delete-line-item.ts'
import { setConsumptionLimit } from '../../../../src/cloud/service-api/set-consumption-limit.ts'
import type { SegmentWire } from '../../../../src/protocol/edge/sync.ts'
import { successorOf } from '../successor.ts'
import { DAY, INSTANCE, type Twin } from '../twin.ts'
import { TestDevice, topUpRequest } from '../test-device.ts'
import { listUsage } from '../../usage/list-usage.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const ACTION = actionAccount(INSTANCE, 'ACT-1', 'a')
const OTHER = lineAccount(INSTANCE, 'ACT-2', 0)
const actions = [{ id: 'a', name: null, effect: 'ALLOW', conditionId: null, allocation: 1_000n }] as const

/** @param open a twin with nothing in it but the instance */
export function undeliveredSuite(name: string, open: () => Promise<Twin>): void {
  describe(name, () => {
    let twin: Twin
    beforeEach(async () => {
      twin = await open()
      await twin.setLineItem('ACT-1', { quantity: 1_000n, actions })
      await twin.setLineItem('ACT-2', { quantity: 1_000n })
    })
    afterEach(async () => twin[Symbol.asyncDispose]())

    const charge = (amount: bigint) => ({ lineItemId: 'ACT-1', accounts: [LINE, ACTION], amount })
    const ofOther = (amount: bigint) => ({ lineItemId: 'ACT-2', accounts: [OTHER], amount })
    const evidence = (device: TestDevice) => twin.store.read((reader) => reader.edge.evidence.of(device.id, 100))
    const epoch = (device: TestDevice, number = 1) =>
      twin.store.read((reader) => reader.edge.epochs.get(device.id, number))
    const forks = async ({ id: deviceId }: TestDevice) => {
      const filter = { type: 'device.forked', deviceId } as const
      return (await twin.store.read((reader) => reader.events.list(filter, 10))).map(({ event }) => event)
    }
    const record = async (device: TestDevice, account = LINE) => {
      const records = await twin.store.read((reader) => reader.edge.deviceAccounts.ofDevice(device.id))
      return records.find((each) => each.account === account && each.epoch === 1)
    }
    /** What the lines of the bill come to. */
    const linesOf = async (lineItemId = 'ACT-1') => {
      const { records } = await twin.store.read((reader) => listUsage(reader, { limit: 1_000 }))
      return records
        .filter(({ activationId }) => activationId === lineItemId)
        .reduce((sum, { tokens }) => sum + tokens, 0n)
    }

    /** It has 600 of each account, has charged 120 and given back 50, and has reported nothing of that. */
    async function owing(): Promise<TestDevice> {
      const device = await TestDevice.join(twin)
      await device.sync([topUpRequest(LINE, 600n), topUpRequest(ACTION, 600n)])
      device.charge(charge(120n))
      device.refund(charge(50n))
      return device
    }

    /** Its next segment is refused, and it gives the epoch up. */
    async function refused(device: TestDevice): Promise<SegmentWire> {
      const honest = device.payload()
      const lie = { ...honest, counters: honest.counters.map((each) => ({ ...each, used: '1' })) }
      expect(await twin.sync(device.id, (await device.sealAs(lie)).document)).toMatchObject({ accepted: false })
      return honest
    }

    const send = async (device: TestDevice, payload: SegmentWire) =>
      twin.sync(device.id, (await device.sealAs(payload)).document)

    const expectSettledExactly = async (device: TestDevice, used: bigint, refunded: bigint) => {
      const billed = used - refunded
      for (const account of [LINE, ACTION]) {
        expect(await twin.pool(account)).toMatchObject({ grantedOut: billed, billedByDevices: billed })
        expect(await record(device, account)).toMatchObject({
          ...{ used, refunded, branchUsed: 0n, presumed: 0n, released: 0n },
          returned: 600n - billed,
        })
      }
      expect(await linesOf()).toBe(billed)
      expect(await epoch(device)).toMatchObject({ status: 'CLOSED', forked: false })
    }

    describe('an epoch that was given up and has one writer', () => {
      it('is billed exactly, refunds included, and closed, when a later one has delivered the rest', async () => {
        const device = await owing()
        await refused(device)
        const { deliver } = await successorOf(device)
        expect(await deliver(device.undeliveredRange(1, 2, true))).toMatchObject({ outcome: 'MERGED' })
        await expectSettledExactly(device, 120n, 50n)
        twin.time += 31 * DAY
        await twin.settle()
        await expectSettledExactly(device, 120n, 50n)
        expect((await evidence(device)).map(({ kind }) => kind)).toEqual(['REJECTED'])
      })

      it.each(['CHARGED', 'RELEASED'] as const)(
        'is billed exactly when its undelivered entries come after it was settled as %s',
        async (as) => {
          const device = await owing()
          await refused(device)
          twin.time += 31 * DAY
          await twin.settle(as)
          expect((await twin.pool(LINE)).billedByDevices).toBe(as === 'CHARGED' ? 600n : 0n)
          const { deliver } = await successorOf(device)
          await deliver(device.undeliveredRange(1, 1))
          expect(await linesOf()).toBe((await twin.pool(LINE)).billedByDevices)
          await deliver(device.undeliveredRange(2, 2, true))
          await expectSettledExactly(device, 120n, 50n)
        },
      )

      it('is closed by a device that has nothing more to deliver of it', async () => {
        const device = await owing()
        await device.sync()
        const { deliver } = await successorOf(device)
        const nothing = device.undeliveredRange(3, 2, true)
        expect(nothing.entries.bodies).toEqual([])
        await deliver(nothing)
        await expectSettledExactly(device, 120n, 50n)
      })

      it('stays open for the rest of a restored device: more may have been used', async () => {
        const device = await owing()
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(1, 2, false))
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 600n, billedByDevices: 70n })
        twin.time += 31 * DAY
        await twin.settle()
        expect((await twin.pool(LINE)).billedByDevices).toBe(600n)
      })

      it('stays open for a device that knows less of it than the cloud', async () => {
        const device = await owing()
        const restored = device.copy()
        device.charge(charge(5n))
        await device.sync()
        const { deliver } = await successorOf(restored)
        await deliver(restored.undeliveredRange(1, 2, true))
        expect(await epoch(device)).toMatchObject({ status: 'FENCED', forked: false })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 600n, billedByDevices: 75n })
      })

      it('is billed once, also when reports overlap or are repeated', async () => {
        const device = await owing()
        device.charge(charge(7n))
        device.refund(charge(3n))
        const { deliver } = await successorOf(device)
        for (const [first, last] of [
          [1, 1],
          [1, 2],
          [2, 3],
          [1, 3],
          [3, 4],
          [1, 4],
          [4, 4],
        ] as const) {
          // prettier-ignore
          await deliver(device.undeliveredRange(first, last, true))
        }
        await expectSettledExactly(device, 127n, 53n)
        await deliver(device.undeliveredRange(1, 4, true))
        await expectSettledExactly(device, 127n, 53n)
        expect(await evidence(device)).toEqual([])
      })

      it('bills charges after a gap as a branch, which joins the chain when the gap is filled', async () => {
        const device = await owing()
        device.charge(charge(7n))
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(2, 3, true))
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 600n, billedByDevices: 7n })
        expect(await record(device)).toMatchObject({ used: 0n, branchUsed: 7n })
        // The charge of the refund may be missing.
        expect(await evidence(device)).toMatchObject([{ kind: 'UNDELIVERED_RANGE', problem: 'Not paid: 1 refund.' }])
        expect(await deliver(device.undeliveredRange(1, 3, true))).not.toHaveProperty('unbilled')
        await expectSettledExactly(device, 127n, 50n)
        expect(await evidence(device)).toHaveLength(1)
      })

      it('accepts a range that a branch has billed, and bills none of it again', async () => {
        const device = await owing()
        device.charge(charge(7n))
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(3, 3, true))
        expect(await record(device)).toMatchObject({ branchUsed: 7n })
        await deliver(device.undeliveredRange(1, 2, true))
        expect(await deliver(device.undeliveredRange(3, 3, true))).toMatchObject({ outcome: 'MERGED' })
        await expectSettledExactly(device, 127n, 50n)
      })

      it('is delivered by a third epoch if the second one is given up too', async () => {
        const device = await owing()
        device.charge(charge(7n))
        const first = await successorOf(device)
        await first.deliver(device.undeliveredRange(1, 2))
        const second = await successorOf(first.next)
        await second.deliver(device.undeliveredRange(2, 3, true))
        await expectSettledExactly(device, 127n, 50n)
      })

      it('is billed exactly the overspend of an essential line item', async () => {
        await setOfflinePolicy({ store: twin.store, now: twin.now }, INSTANCE, 'ACT-2', 40n)
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(OTHER, 100n)])
        device.chargeInOverspend(ofOther(130n))
        device.refund(ofOther(20n))
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(1, 2, true))
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 110n, billedByDevices: 110n })
        expect(await record(device, OTHER)).toMatchObject({ used: 130n, refunded: 20n, overspend: 10n, branchUsed: 0n })
      })

      it('counts overspend once, first as a branch from behind a gap, then as part of the chain', async () => {
        await setOfflinePolicy({ store: twin.store, now: twin.now }, INSTANCE, 'ACT-2', 40n)
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(OTHER, 100n)])
        device.charge(ofOther(60n))
        for (const amount of [60n, 15n]) device.chargeInOverspend(ofOther(amount))
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(2, 3))
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 100n, billedByDevices: 75n })
        expect(await record(device, OTHER)).toMatchObject({ used: 0n, branchUsed: 75n, branchOverspend: 35n })
        await deliver(device.undeliveredRange(1, 2))
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 135n, billedByDevices: 135n })
        expect(await record(device, OTHER)).toMatchObject({
          ...{ used: 120n, overspend: 20n, branchUsed: 15n, branchOverspend: 15n },
        })
        await deliver(device.undeliveredRange(3, 3, true))
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 135n, billedByDevices: 135n })
        expect(await record(device, OTHER)).toMatchObject({
          ...{ used: 135n, overspend: 35n, branchUsed: 0n, branchOverspend: 0n },
        })
      })

      it('is billed without entries that do not add up, or that name an account beside others that no rules have', async () => {
        const device = await owing()
        const part = { lineItemId: 'ACT-1', rate: '1', actionId: null, charged: '5' }
        const item = { item: 'Print', version: '', count: '1', outcome: 'GRANTED', total: '5', parts: [part] }
        const { changed } = device.state
        device.record({ kind: 'access', items: [item], postings: [{ account: LINE, amount: '6' }] })
        const future = lineAccount(INSTANCE, 'ACT-1', 99)
        const postings = [LINE, future].map((account, index) => ({ account, amount: String(3 - index) }))
        device.record({ kind: 'access', items: [item], postings })
        device.state.changed = changed
        device.charge(charge(7n))
        const { deliver } = await successorOf(device)
        expect(await deliver(device.undeliveredRange(1, 5, true))).toMatchObject({ outcome: 'MERGED', unbilled: 2 })
        expect(await record(device)).toMatchObject({ used: 120n, refunded: 50n, branchUsed: 7n })
        expect((await evidence(device)).map(({ problem }) => problem)).toEqual([
          'Not billed: 1 entry (amounts that do not add up); 1 entry (accounts that no rules have ever had).',
        ])
        expect(await twin.store.read((reader) => reader.accounts.get([future]))).toEqual(new Map())
      })

      it('is billed its metered use, also after the line item got a limit', async () => {
        await twin.setLineItem('ACT-2', { quantity: 100n, overdraft: 'UNLIMITED' })
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(OTHER, 100n)])
        device.charge(ofOther(5_000n))
        device.refund(ofOther(1_000n))
        await twin.setLineItem('ACT-2', { quantity: 100n })
        const { deliver } = await successorOf(device)
        expect(await deliver(device.undeliveredRange(1, 2, true))).not.toHaveProperty('unbilled')
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 4_000n, billedByDevices: 4_000n })
      })

      it('that a restored cloud has forgotten is billed and closed by entries that continue its chain', async () => {
        const device = await TestDevice.join(twin)
        device.state.epoch = 4
        for (const account of [LINE, ACTION]) {
          device.state.counters.set(account, { granted: 600n, used: 0n, refunded: 0n, returned: 0n })
        }
        device.charge(charge(120n))
        device.refund(charge(50n))
        const { next, deliver } = await successorOf(device)
        expect(next.state.epoch).toBe(5)
        await deliver(device.undeliveredRange(1, 2, true))
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 70n, billedByDevices: 70n })
        expect(await epoch(device, 4)).toMatchObject({ status: 'CLOSED', grantsForgotten: true })
      })

      it.each(['a segment', 'another attach', 'an attach after that of an emptied device'])(
        'is billed and closed exactly, also its forgotten grants, if %s shows that a restored cloud has forgotten an attach',
        async (kind) => {
          const device = await owing()
          for (const account of [LINE, ACTION]) {
            device.state.counters.set(account, { ...device.counters(account), granted: 700n })
          }
          device.charge(charge(560n))
          device.refund(charge(20n))
          const forgotten = device.copy()
          forgotten.state = { ...structuredClone((await TestDevice.join(twin)).state), epoch: 2 }
          if (kind === 'an attach after that of an emptied device') {
            await twin.store.transaction((tx) => tx.edge.recoveries.restored(twin.time + 1, true))
            await twin.attach(device.id, 'of an emptied device', 0)
          }
          const next = kind === 'a segment' ? forgotten : (await successorOf(forgotten)).next
          const sealed = await next.sealAs({ ...next.payload(), undeliveredRange: device.undeliveredRange(1, 4, true) })
          expect(await twin.sync(next.id, sealed.document)).toMatchObject({ accepted: true, unbilled: null })
          expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 610n, billedByDevices: 610n })
          expect(await epoch(device)).toMatchObject({ status: 'CLOSED', forked: false, lastEntry: 4 })
          expect(await linesOf()).toBe(610n)
        },
      )

      it('is not billed above any cap until the administrator of a restored cloud has raised the cap again', async () => {
        const device = await TestDevice.join(twin)
        device.state.epoch = 4
        device.state.counters.set(OTHER, { granted: 9_000n, used: 0n, refunded: 0n, returned: 0n })
        device.charge(ofOther(2_500n))
        const { next } = await successorOf(device)
        const sealed = await next.sealAs({ ...next.payload(), undeliveredRange: device.undeliveredRange(1, 1, true) })
        await expect(twin.sync(next.id, sealed.document)).rejects.toMatchObject({ code: 'GRANTS_FORGOTTEN' })
        await twin.setLineItem('ACT-2', { quantity: 2_000n })
        expect(await twin.sync(next.id, sealed.document)).toMatchObject({ accepted: true, unbilled: null })
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 2_500n, billedByDevices: 2_500n })
      })

      it('is billed up to an entry that does not add up; charges behind it are billed, and it stays open', async () => {
        const device = await owing()
        const { body } = device.state.entries[1]!
        device.state.entries[1]!.body = body.replace('"total":"50"', '"total":"51"')
        device.charge(charge(7n))
        device.refund(charge(7n))
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(1, 4, true))
        expect(await record(device)).toMatchObject({ used: 120n, refunded: 0n, branchUsed: 7n, returned: 0n })
        expect(await epoch(device)).toMatchObject({ status: 'FENCED', forked: false, lastEntry: 1 })
      })
    })

    describe('entries that a restored cloud has lost and the device no longer keeps', () => {
      const counted = (isLast: boolean, ...accounts: readonly string[]) => ({
        counters: accounts.map((account) => ({ account, used: '120', refunded: '50' })),
        isLast,
      })

      /** The cloud has heard that its copy of the first epoch is not the newest. */
      async function forgetful(): Promise<TestDevice> {
        const device = await owing()
        device.charge(charge(7n))
        device.refund(charge(3n))
        const ahead = { ...device.payload(), seq: 9 }
        const taken = await send(device, ahead)
        if (!taken.accepted) throw new Error(taken.problem)
        expect(await device.accept(taken.answer)).toMatchObject({ outcome: 'BEHIND', seq: 1 })
        return device
      }

      it('are billed by the counters of the device, and the chain continues behind them until it is closed', async () => {
        const device = await forgetful()
        const { deliver } = await successorOf(device)
        const gone = { ...device.undeliveredRange(3, 2), counted: counted(false, LINE) }
        await deliver(gone)
        await deliver({ ...gone, counted: counted(true, ACTION) })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 600n, billedByDevices: 70n })
        await deliver(device.undeliveredRange(3, 4, true))
        await expectSettledExactly(device, 127n, 53n)
        const { records } = await twin.store.read((reader) => listUsage(reader, { limit: 100 }))
        expect(records.find(({ operation }) => operation === 'SETTLEMENT')).toMatchObject({
          status: 'COUNTED',
          tokens: 70n,
          source: { epoch: 1, entry: 0 },
        })
        // The same again, as after an answer that was lost.
        await deliver({ ...gone, counted: counted(true, ACTION) })
        await deliver(device.undeliveredRange(3, 4, true))
        await expectSettledExactly(device, 127n, 53n)
        expect(await evidence(device)).toEqual([])
      })

      it('are no alarm when the device still has some of their segments, after the epoch was closed', async () => {
        const device = await forgetful()
        const kept = { ...device.payload(), seq: 9 }
        const lost = { ...kept, entries: { ...kept.entries, bodies: [], head: kept.entries.previousHash, first: 2 } }
        const { deliver } = await successorOf(device)
        await deliver({ ...device.undeliveredRange(3, 2), counted: counted(true, LINE, ACTION) })
        await deliver(device.undeliveredRange(3, 4, true))
        for (const late of [kept, lost]) {
          const taken = await send(device, late)
          if (!taken.accepted) throw new Error(taken.problem)
          expect(await device.accept(taken.answer)).toMatchObject({ outcome: 'BEHIND', seq: 1 })
        }
        await expectSettledExactly(device, 127n, 53n)
        expect(await evidence(device)).toEqual([])
      })

      it('are not billed again with segments that the device still has, after a second writer was found', async () => {
        const device = await forgetful()
        const whole = { ...device.payload(), seq: 9 }
        const start = { ...whole.entries, bodies: whole.entries.bodies.slice(0, 1) }
        const lost = { ...whole, entries: { ...start, head: device.undeliveredRange(1, 1).entries.head } }
        const other = { ...whole, seq: 1, entries: device.undeliveredRange(1, 0).entries }
        const { deliver } = await successorOf(device)
        await deliver({ ...device.undeliveredRange(3, 2), counted: counted(true, LINE, ACTION) })
        const unbilled: unknown[] = []
        for (const late of [other, whole, lost]) {
          const taken = await send(device, late)
          if (!taken.accepted) throw new Error(taken.problem)
          expect(await device.accept(taken.answer)).toMatchObject({ outcome: 'FENCED', forked: true })
          unbilled.push(taken.unbilled?.problem)
        }
        expect(unbilled).toEqual([
          undefined,
          undefined,
          'Not billed: 1 entry (lost by the cloud, and billed by the counters of the device).',
        ])
        expect(await record(device)).toMatchObject({ used: 120n, refunded: 50n, branchUsed: 7n })
        expect(await linesOf()).toBe(77n)
      })

      it('correct the presumed use', async () => {
        const device = await forgetful()
        twin.time += 31 * DAY
        await twin.settle()
        const { deliver } = await successorOf(device)
        await deliver({ ...device.undeliveredRange(3, 2), counted: counted(true, LINE, ACTION) })
        expect(await linesOf()).toBe(600n)
        const { records } = await twin.store.read((reader) => listUsage(reader, { limit: 100 }))
        expect(records.map(({ status, tokens, used }) => [status, tokens, used])).toEqual([
          ['PRESUMED', -70n, 600n],
          ['COUNTED', 70n, 670n],
          ['PRESUMED', 600n, 600n],
        ])
        await deliver(device.undeliveredRange(3, 4, true))
        await expectSettledExactly(device, 127n, 53n)
      })

      it('are not believed to be lost by a cloud that has not forgotten anything', async () => {
        const device = await owing()
        const { deliver } = await successorOf(device)
        await deliver({ ...device.undeliveredRange(3, 2), counted: counted(true, LINE, ACTION) })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 600n, billedByDevices: 0n })
      })

      it('are not billed by counters below the known ones: the evidence stays', async () => {
        const device = await forgetful()
        const old = device.copy()
        old.state.unacknowledged = null
        await old.sync([], false)
        const { deliver } = await successorOf(device)
        const fallen = { counters: [{ account: LINE, used: '119', refunded: '50' }], isLast: true }
        await deliver({ ...device.undeliveredRange(6, 5), counted: fallen })
        expect(await record(device)).toMatchObject({ used: 127n, refunded: 53n })
        expect(await evidence(device)).toMatchObject([
          {
            kind: 'UNDELIVERED_RANGE',
            problem: 'What the device says of entries that the cloud has lost does not add up.',
          },
        ])
      })

      it('are not billed while their sum is above any possible cap', async () => {
        const device = await forgetful()
        const { next } = await successorOf(device)
        const made = { counters: [{ account: OTHER, used: '2500', refunded: '0' }], isLast: true }
        const undeliveredRange = { ...device.undeliveredRange(3, 2), counted: made }
        const sealed = await next.sealAs({ ...next.payload(), undeliveredRange })
        await expect(twin.sync(next.id, sealed.document)).rejects.toMatchObject({ code: 'GRANTS_FORGOTTEN' })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 600n, billedByDevices: 0n })
      })
    })

    describe('a segment that was given up and arrives late', () => {
      it('changes nothing and causes no alarm, after any delivery', async () => {
        const device = await owing()
        const late = device.payload()
        device.charge(charge(7n))
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(1, 2))
        expect(await send(device, late)).toMatchObject({ accepted: true })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 600n, billedByDevices: 70n })
        await deliver(device.undeliveredRange(3, 3, true))
        await expectSettledExactly(device, 127n, 50n)
        expect(await evidence(device)).toEqual([])
      })

      it.each([
        ['nothing of it', []],
        ['a part of it', [[1, 1]]],
        ['all of it', [[1, 2]]],
        ['more than it', [[1, 3]]],
        ['everything, so that its epoch is closed', [[1, 4]]],
      ] as const)('after a later epoch has delivered %s is billed once, and is no fork', async (_name, parts) => {
        const device = await owing()
        const late = device.payload()
        device.charge(charge(7n))
        device.refund(charge(3n))
        const { deliver } = await successorOf(device)
        for (const [first, last] of parts) await deliver(device.undeliveredRange(first, last, true))
        const taken = await send(device, late)
        expect(taken).toMatchObject({ accepted: true })
        if (!taken.accepted) return
        expect(await device.accept(taken.answer)).toMatchObject({
          outcome: 'FENCED',
          forked: false,
          seq: late.seq,
          receipt: { entries: { from: 1, to: 2, head: late.entries.head } },
        })
        await deliver(device.undeliveredRange(1, 4, true))
        await expectSettledExactly(device, 127n, 53n)
        expect(await evidence(device)).toEqual([])
      })

      it('is not a fork if it is empty and its epoch is closed', async () => {
        const device = await owing()
        await device.sync()
        const late = device.payload()
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(3, 2, true))
        expect(await send(device, late)).toMatchObject({ accepted: true })
        await expectSettledExactly(device, 120n, 50n)
      })
    })

    describe('a second writer of an epoch that was given up', () => {
      it('is detected by entries that contradict those of a later epoch, and both are billed', async () => {
        const device = await owing()
        const clone = device.copy()
        device.charge(charge(7n))
        clone.charge(charge(9n))
        clone.refund(charge(9n))
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(1, 3))
        expect(await clone.sync()).toMatchObject({ outcome: 'FENCED', forked: true })
        expect(await record(device)).toMatchObject({ used: 127n, refunded: 50n, branchUsed: 9n })
        expect((await evidence(device)).map(({ kind }) => kind)).toEqual(['FORK'])
        expect(await forks(device)).toHaveLength(1)
        await deliver(device.undeliveredRange(1, 3, true))
        expect(await forks(device)).toHaveLength(1)
        expect(await epoch(device)).toMatchObject({ status: 'FENCED', forked: true })
        expect(await linesOf()).toBe(86n)
      })

      it('is detected when it delivers its entries later, and its refunds are not paid', async () => {
        const device = await owing()
        const clone = device.copy()
        device.charge(charge(7n))
        clone.charge(charge(9n))
        clone.refund(charge(9n))
        const one = await successorOf(device)
        await one.deliver(device.undeliveredRange(1, 3, true))
        const two = await successorOf(clone)
        expect(await forks(device)).toEqual([])
        await two.deliver(clone.undeliveredRange(1, 4, true))
        await two.deliver(clone.undeliveredRange(1, 4, true))
        expect(await forks(device)).toMatchObject([
          { id: `${device.id}/1/forked`, type: 'device.forked', data: { deviceId: device.id, epoch: 1 } },
        ])
        expect(await record(device)).toMatchObject({ used: 127n, refunded: 50n, branchUsed: 9n })
        expect(await epoch(device)).toMatchObject({ status: 'CLOSED', forked: true })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 86n, billedByDevices: 86n })
      })

      it('keeps the epoch open: the other may still use granted tokens', async () => {
        const device = await owing()
        const clone = device.copy()
        await device.sync()
        clone.charge(charge(9n))
        await clone.sync()
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(3, 2, true))
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 600n, billedByDevices: 79n })
      })

      it('is detected by entries after the end of a closed epoch', async () => {
        const device = await owing()
        const clone = device.copy()
        await device.sync([], true)
        clone.charge(charge(9n))
        const { deliver } = await successorOf(clone)
        await deliver(clone.undeliveredRange(1, 3, true))
        expect(await epoch(device)).toMatchObject({ status: 'CLOSED', forked: true })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 79n, billedByDevices: 79n })
      })
    })

    describe('rules that changed while entries were on their way', () => {
      it('bill granted use after a cap was lowered', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 500n), topUpRequest(ACTION, 500n)])
        device.charge(charge(100n))
        await twin.setLineItem('ACT-1', { quantity: 200n, actions: [{ ...actions[0], allocation: 20n }] })
        const { deliver } = await successorOf(device)
        expect(await deliver(device.undeliveredRange(1, 1))).not.toHaveProperty('unbilled')
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 500n, billedByDevices: 100n, capInForce: 500n })
        expect(await twin.pool(ACTION)).toMatchObject({ grantedOut: 500n, billedByDevices: 100n })
      })

      it('bill granted use after the line item was deleted', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 500n), topUpRequest(ACTION, 500n), topUpRequest(OTHER, 500n)])
        device.charge(charge(100n))
        device.charge(ofOther(300n))
        await twin.setLineItem('ACT-1', { quantity: 1_000n, actions, state: 'OBSOLETE' })
        await deleteLineItem(twin.store, INSTANCE, 'ACT-1', twin.time)
        const { deliver } = await successorOf(device)
        expect(await deliver(device.undeliveredRange(1, 2, true))).not.toHaveProperty('unbilled')
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 100n })
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 300n, billedByDevices: 300n })
      })

      it('bill the use of a copy that its grants permitted, even after the cap is lowered', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 500n), topUpRequest(ACTION, 500n)])
        const clone = device.copy()
        device.charge(charge(400n))
        clone.charge(charge(400n))
        await device.sync()
        await twin.setLineItem('ACT-1', { quantity: 100n, actions: [{ ...actions[0], allocation: 10n }] })
        expect(await clone.sync()).not.toHaveProperty('unbilled')
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 800n, billedByDevices: 800n })
      })
    })

    describe('implausible numbers', () => {
      /** A copy that has charged 30 of another line item, and of ACT-1 first 50, then 5000, then 60. */
      async function liar(): Promise<TestDevice> {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n), topUpRequest(ACTION, 100n), topUpRequest(OTHER, 100n)])
        const clone = device.copy()
        await device.sync()
        for (const account of [LINE, ACTION]) {
          clone.state.counters.set(account, { granted: 9_000n, used: 0n, refunded: 0n, returned: 0n })
        }
        for (const amount of [50n, 5_000n, 60n]) clone.charge(charge(amount))
        clone.charge(ofOther(30n))
        return clone
      }

      const expectTheRestBilled = async () => {
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 110n, billedByDevices: 110n })
        expect(await twin.pool(ACTION)).toMatchObject({ grantedOut: 110n, billedByDevices: 110n })
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 100n, billedByDevices: 30n })
        expect([await linesOf(), await linesOf('ACT-2')]).toEqual([110n, 30n])
      }
      const problem = `Not billed: 1 entry (more than was granted and than copies can have used of ${LINE}).`

      it('are kept as evidence and reported, and do not affect other entries of a fork', async () => {
        const clone = await liar()
        expect(await clone.sync()).toMatchObject({ outcome: 'FENCED', forked: true, unbilled: 1 })
        await expectTheRestBilled()
        expect(await evidence(clone)).toMatchObject([{ kind: 'FORK', problem }])
      })

      it('are counted together with those of an undelivered range in the same segment of a fork', async () => {
        const clone = await liar()
        // Not of an earlier epoch.
        const misplaced = clone.undeliveredRange(1, 4, false)
        expect(await send(clone, { ...clone.payload(), undeliveredRange: misplaced })).toMatchObject({
          accepted: true,
          unbilled: {
            entries: 1 + 4,
            problem: expect.stringMatching(/^Not billed: 1 entry .* Not billed: 4 entries /) as string,
          },
        })
        await expectTheRestBilled()
      })

      it('are kept as evidence and reported, and do not affect other entries of a later epoch', async () => {
        const clone = await liar()
        const { deliver } = await successorOf(clone)
        expect(await deliver(clone.undeliveredRange(1, 4, true))).toMatchObject({ outcome: 'MERGED', unbilled: 1 })
        await expectTheRestBilled()
        expect(await evidence(clone)).toMatchObject([{ kind: 'UNDELIVERED_RANGE', problem }])
        expect(await epoch(clone)).toMatchObject({ status: 'FENCED' })
        // Nothing of what is billed is billed again with it.
        expect(await deliver(clone.undeliveredRange(1, 4, true))).toMatchObject({ unbilled: 1 })
        await expectTheRestBilled()
      })

      it('are no more overspend than the offline policy allows', async () => {
        await setOfflinePolicy({ store: twin.store, now: twin.now }, INSTANCE, 'ACT-2', 40n)
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(OTHER, 1_000n)])
        const clone = device.copy()
        await device.sync()
        clone.chargeInOverspend(ofOther(2_040n))
        clone.chargeInOverspend(ofOther(1n))
        expect(await clone.sync()).toMatchObject({ unbilled: 1 })
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 2_040n, billedByDevices: 2_040n })
        const { accounts } = await accountLedger({ store: twin.store }, INSTANCE, 0, 100)
        expect(accounts.find(({ account }) => account === OTHER)).toMatchObject({ overspend: '40' })
      })

      it('are no more overspend than the offline policy allows over all deliveries of the epoch, nor than an entry charges', async () => {
        await setOfflinePolicy({ store: twin.store, now: twin.now }, INSTANCE, 'ACT-2', 40n)
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(OTHER, 1_000n)])
        const clone = device.copy()
        device.charge(ofOther(1n))
        await device.sync()
        for (const amount of [10n, 1_000n, 20n, 1_000n, 5n]) clone.chargeInOverspend(ofOther(amount))
        for (const entry of clone.state.entries) {
          entry.body = entry.body
            .replace(/,"aboveGrant":"\d+"/, '')
            .replace(/"amount":"(\d+)"/, '"amount":"$1","aboveGrant":"9000"')
        }
        const { deliver } = await successorOf(clone)
        const overspend = async () => (await record(device, OTHER))?.branchOverspend
        const seen: unknown[] = []
        for (let n = 1; n <= 5; n += 1) {
          await deliver(clone.undeliveredRange(n, n))
          seen.push(await overspend())
        }
        expect(seen).toEqual([10n, 40n, 40n, 40n, 40n])
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 2_036n, billedByDevices: 2_036n })
      })

      describe('of an allocation, whose burned tokens nothing bills', () => {
        const burn = (device: TestDevice, amount: bigint) =>
          device.record({ kind: 'burn', items: [], postings: [{ account: ACTION, amount: String(amount) }] })
        /** It claims such a grant. */
        const holding = (device: TestDevice, granted: bigint) => {
          device.state.counters.set(ACTION, { granted, used: 0n, refunded: 0n, returned: 0n })
        }

        it('are not counted for a copy beyond twice the allocation', async () => {
          const device = await TestDevice.join(twin)
          await device.sync([topUpRequest(LINE, 1n)])
          const clone = device.copy()
          await device.sync()
          holding(clone, 10n ** 15n)
          burn(clone, 2_000n)
          burn(clone, 1n)
          expect(await clone.sync()).toMatchObject({ outcome: 'FENCED', forked: true, unbilled: 1 })
          expect(await twin.pool(ACTION)).toMatchObject({ grantedOut: 2_000n })
        })

        it('wait on a device of a restored cloud', async () => {
          const device = await TestDevice.join(twin)
          device.state.epoch = 4
          holding(device, 10n ** 15n)
          burn(device, 2_001n)
          const { next } = await successorOf(device)
          const sealed = await next.sealAs({ ...next.payload(), undeliveredRange: device.undeliveredRange(1, 1, true) })
          await expect(twin.sync(next.id, sealed.document)).rejects.toMatchObject({ code: 'GRANTS_FORGOTTEN' })
        })
      })

      it('of an allocation are no more than the device has used of its line item, if a restored cloud has lost the entries', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 1n)])
        await twin.attach(device.id, 'an attach', 1, 9)
        const deliver = async (used: string, ...accounts: readonly string[]) => {
          const next = device.copy()
          next.state = { ...structuredClone((await TestDevice.join(twin)).state), epoch: 2 }
          const counters = accounts.map((account) => ({ account, used, refunded: '0' }))
          const undeliveredRange = { ...device.undeliveredRange(9, 8), counted: { counters, isLast: true } }
          return twin.sync(next.id, (await next.sealAs({ ...next.payload(), undeliveredRange })).document)
        }
        await expect(deliver(String(10n ** 15n), ACTION)).rejects.toMatchObject({ code: 'GRANTS_FORGOTTEN' })
        expect(await deliver('1500', LINE, ACTION)).toMatchObject({ accepted: true, unbilled: null })
        expect(await twin.pool(ACTION)).toMatchObject({ grantedOut: 1_500n })
      })

      it('count as overspend of the chain once they join it', async () => {
        await setOfflinePolicy({ store: twin.store, now: twin.now }, INSTANCE, 'ACT-2', 40n)
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(OTHER, 100n)])
        device.chargeInOverspend(ofOther(5n))
        device.chargeInOverspend(ofOther(110n))
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(2, 2))
        expect(await record(device, OTHER)).toMatchObject({ overspend: 0n, branchOverspend: 15n, branchUsed: 110n })
        await deliver(device.undeliveredRange(1, 2, true))
        expect(await record(device, OTHER)).toMatchObject({ overspend: 15n, branchOverspend: 0n, branchUsed: 0n })
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 115n, billedByDevices: 115n })
      })
    })

    it.each([
      ['a copy', async (clone: TestDevice) => void (await clone.sync())],
      [
        'a later epoch',
        async (clone: TestDevice) => {
          const { deliver } = await successorOf(clone)
          await deliver(clone.undeliveredRange(2, 3))
        },
      ],
    ])('counts the accounts of requesters that %s opens', async (_name, deliver) => {
      const terms = { limit: 90n, frequency: 'DAILY', nextReset: twin.time + DAY } as const
      await setConsumptionLimit(twin.store, { instanceId: INSTANCE, lineItemId: 'ACT-2' }, terms, twin.time)
      const device = await TestDevice.join(twin)
      await device.sync([topUpRequest(OTHER, 100n)])
      const clone = device.copy()
      clone.charge(ofOther(1n))
      for (const value of ['ada', 'ben']) {
        const limit = limitAccount(INSTANCE, 'ACT-2', { type: 'user', value }, 0)
        clone.state.counters.set(limit, { granted: 5n, used: 0n, refunded: 0n, returned: 0n })
        clone.charge({ lineItemId: 'ACT-2', accounts: [OTHER, limit], amount: 2n })
      }
      await device.sync()
      await deliver(clone)
      expect(twin.openedPools).toBe(2)
      expect(await twin.pool(limitAccount(INSTANCE, 'ACT-2', { type: 'user', value: 'ben' }, 0))).toMatchObject({
        grantedOut: 2n,
      })
    })

    describe('accounts that no rules have ever had', () => {
      const INVENTED = lineAccount(INSTANCE, 'ACT-2', 7)
      const LIMIT = limitAccount(INSTANCE, 'ACT-2', { type: 'user', value: 'ada' }, 10_000)
      const ofInvented = (amount: bigint) => ({ lineItemId: 'ACT-2', accounts: [INVENTED], amount })
      const exists = async (account: string) =>
        (await twin.store.read((reader) => reader.accounts.get([account]))).has(account)
      const problem = 'Not billed: 1 entry (accounts that no rules have ever had).'

      /** It has charged 5 of a period that does not exist, and 30 of one that does. */
      async function inventive(): Promise<TestDevice> {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(OTHER, 100n)])
        const granted = { granted: 5n, used: 0n, refunded: 0n, returned: 0n }
        for (const account of [INVENTED, LIMIT]) device.state.counters.set(account, granted)
        return device
      }

      it('are not opened by a copy, and its other entries are billed', async () => {
        const device = await inventive()
        const clone = device.copy()
        await device.sync()
        clone.charge(ofInvented(5n))
        clone.charge(ofOther(30n))
        expect(await clone.sync()).toMatchObject({ outcome: 'FENCED', forked: true, unbilled: 1 })
        expect(await exists(INVENTED)).toBe(false)
        expect(await evidence(clone)).toMatchObject([{ kind: 'FORK', problem }])
        expect(await twin.pool(OTHER)).toMatchObject({ billedByDevices: 30n })
      })

      it('are not opened by an entry that also uses an account of the rules, which is not billed either', async () => {
        const place = { instanceId: INSTANCE, lineItemId: 'ACT-2' }
        const terms = { limit: 90n, frequency: 'DAILY', nextReset: twin.time + DAY } as const
        await setConsumptionLimit(twin.store, place, terms, twin.time)
        const device = await inventive()
        const clone = device.copy()
        await device.sync()
        clone.charge({ lineItemId: 'ACT-2', accounts: [OTHER, LIMIT], amount: 5n })
        clone.charge(ofOther(30n))
        expect(await clone.sync()).toMatchObject({ outcome: 'FENCED', forked: true, unbilled: 1 })
        expect(await exists(LIMIT)).toBe(false)
        expect(await evidence(clone)).toMatchObject([{ kind: 'FORK', problem }])
        expect(await twin.pool(OTHER)).toMatchObject({ billedByDevices: 30n })
      })

      it('are not opened by deliveries of a later epoch, however often', async () => {
        const device = await inventive()
        device.charge(ofInvented(5n))
        device.charge(ofOther(30n))
        const { deliver } = await successorOf(device)
        for (let n = 0; n < 2; n += 1) {
          expect(await deliver(device.undeliveredRange(1, 2, true))).toMatchObject({ unbilled: 1 })
          expect(await exists(INVENTED)).toBe(false)
          expect(await twin.pool(OTHER)).toMatchObject({ billedByDevices: 30n })
        }
        expect((await evidence(device))[0]).toMatchObject({ kind: 'UNDELIVERED_RANGE', problem })
      })

      it('are not opened by the offline policy of an essential line item: the segment is refused', async () => {
        await setOfflinePolicy({ store: twin.store, now: twin.now }, INSTANCE, 'ACT-2', 40n)
        const device = await TestDevice.join(twin)
        device.chargeInOverspend(ofInvented(5n))
        const { document } = await device.seal([topUpRequest(LINE, 1n)])
        expect(await twin.sync(device.id, document)).toMatchObject({
          accepted: false,
          details: { problem: 'ACCOUNT_UNKNOWN', account: INVENTED },
        })
        // The other account that it names.
        expect(twin.openedPools).toBe(1)
        expect(await exists(INVENTED)).toBe(false)
      })

      it('are not opened before the rules are entered again if the cloud has forgotten grants', async () => {
        const device = await TestDevice.join(twin)
        device.state.epoch = 4
        const unmapped = lineAccount(INSTANCE, 'ACT-9', 0)
        device.state.counters.set(unmapped, { granted: 9n, used: 0n, refunded: 0n, returned: 0n })
        device.charge({ lineItemId: 'ACT-9', accounts: [unmapped], amount: 9n })
        const { next } = await successorOf(device)
        const sealed = await next.sealAs({ ...next.payload(), undeliveredRange: device.undeliveredRange(1, 1, true) })
        await expect(twin.sync(next.id, sealed.document)).rejects.toMatchObject({ code: 'GRANTS_FORGOTTEN' })
        expect(await exists(unmapped)).toBe(false)
      })

      it('are opened for periods that the cloud may have forgotten together with grants', async () => {
        const device = await TestDevice.join(twin)
        device.state.epoch = 4
        device.state.counters.set(INVENTED, { granted: 9n, used: 0n, refunded: 0n, returned: 0n })
        device.charge(ofInvented(9n))
        const { deliver } = await successorOf(device)
        expect(await deliver(device.undeliveredRange(1, 1, true))).toMatchObject({ outcome: 'MERGED' })
        expect(twin.openedPools).toBe(1)
        expect(await twin.pool(INVENTED)).toMatchObject({ billedByDevices: 9n })
      })

      it('are not opened if another account of the entry cannot have paid the amount', async () => {
        const requester = limitAccount(INSTANCE, 'ACT-2', { type: 'user', value: 'Nobody' }, 0)
        const device = await inventive()
        const clone = device.copy()
        await device.sync()
        for (const account of [OTHER, requester]) {
          clone.state.counters.set(account, { granted: 9_000n, used: 0n, refunded: 0n, returned: 0n })
        }
        clone.charge({ lineItemId: 'ACT-2', accounts: [OTHER, requester], amount: 5_000n })
        expect(await clone.sync()).toMatchObject({ unbilled: 1 })
        expect(await exists(requester)).toBe(false)
      })

      it('are distinguished from those of unused accounts: these are opened and billed', async () => {
        await setOfflinePolicy({ store: twin.store, now: twin.now }, INSTANCE, 'ACT-2', 40n)
        const device = await TestDevice.join(twin)
        const clone = device.copy()
        await device.sync()
        clone.chargeInOverspend(ofOther(30n))
        expect(await clone.sync()).not.toHaveProperty('unbilled')
        expect(await twin.pool(OTHER)).toMatchObject({ grantedOut: 30n, billedByDevices: 30n })
      })
    })
  })
}
