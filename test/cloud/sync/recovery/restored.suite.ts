// A twin that was restored from a backup: what it has forgotten comes back with proofs, and nothing is sold twice meanwhile.
import { CLOUD } from '../../../../src/cloud/storage/audit-records.ts'
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { actionAccount, limitAccount, lineAccount } from '../../../../src/core/accounts/account.ts'
import { accountLedger } from '../../../../src/cloud/accounts/account-ledger.ts'
import { revokeDevice, showAudit } from '../../../../src/cloud/devices/devices.ts'
import { AccessBatcher } from '../../../../src/cloud/service-api/request-access.ts'
import { decimal } from '../../../../src/core/pricing/amount.ts'
import { openSession } from '../../../../src/cloud/sessions/session-life.ts'
import { USAGE_ROW_POSITIONS } from '../../../../src/cloud/storage/records.ts'
import { USAGE_FORGOTTEN_ROWS_MAX, USAGE_ROWS_PER_MS } from '../../../../src/cloud/devices/limits.ts'
import { exportUsage } from '../../../../src/cloud/usage/export-usage.ts'
import { setOfflinePolicy } from '../../../../src/cloud/policy/offline-policy.ts'
import type { SyncAnswerWire } from '../../../../src/protocol/edge/sync.ts'
import {
  beginRecovery,
  endRecoveries,
  overrideRecovery,
  showRecovery,
} from '../../../../src/cloud/sync/recovery/recovery.ts'
import { signDocument } from '../../../../src/protocol/signing.ts'
import { DAY, INSTANCE, type Twin } from '../twin.ts'
import { type Sealed, TestDevice, newDeviceKeys, topUpRequest } from '../test-device.ts'
import { cloudShortages } from '../grants/shortages.ts'
import { successorOf } from '../successor.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const OTHER = lineAccount(INSTANCE, 'ACT-2', 0)
const HOUR = DAY / 24

/** @param open two twins of one owner: the second is what was restored, and knows of devices but of nothing they did */
export function restoredSuite(name: string, open: () => Promise<Twin>): void {
  describe(name, () => {
    let twin: Twin
    beforeEach(async () => {
      twin = await open()
      await twin.setLineItem('ACT-1', { quantity: 1_000n })
    })
    afterEach(async () => twin[Symbol.asyncDispose]())

    const charge = (amount: bigint) => ({ lineItemId: 'ACT-1', accounts: [LINE], amount })
    const recovery = () => showRecovery({ store: twin.store }, INSTANCE)
    const override = () => overrideRecovery(twin, INSTANCE)

    /** @param sold of the line item, until the twin was restored @param position that an export has returned since */
    const restore = (
      sold: bigint,
      unproven: 'MARK' | 'NODE' | null = null,
      until = 0,
      { position = 0n, isJoined = false } = {},
    ) =>
      twin.store.transaction((tx) =>
        beginRecovery(
          tx,
          twin.policies,
          { sold: new Map([[LINE, sold]]), unproven, position, isJoined, until, reason: 'a test' },
          twin.time,
        ),
      )
    const endThose = () => endRecoveries(twin.store, twin.time)

    /** What the twin answered before it was restored: it has signed it, and does not remember. */
    async function forgottenAnswer(
      device: TestDevice,
      sealed: Sealed,
      granted: bigint,
      unlimited = false,
      account = LINE,
    ): Promise<string> {
      const at = twin.time
      const about = { deviceId: device.id, epoch: device.state.epoch, seq: sealed.seq, hash: sealed.hash }
      const entries = { from: 1, to: device.state.sealedEntry, head: device.state.entryHead }
      const answer: SyncAnswerWire = {
        outcome: 'MERGED',
        ...about,
        receipt: { epoch: about.epoch, seq: about.seq, hash: about.hash, entries, retainUntil: at },
        grant: {
          term: at + sealed.seq,
          lifetimeMs: DAY,
          expiresAt: at + DAY,
          accounts: [{ account, granted: String(granted), exhausted: false, available: '0', unlimited }],
        },
        policies: [],
        directives: [],
        releases: [],
        sessions: [],
        nextSyncMs: 300_000,
        time: at,
      }
      const document = await signDocument('sync-answer', JSON.stringify(answer), twin.keys.signer)
      await device.accept(document)
      return document
    }

    /** Sends it, with proofs, and takes the answer. */
    async function send(device: TestDevice, sealed: Sealed, proofs: readonly string[] = []) {
      const taken = await twin.sync(device.id, sealed.document, proofs)
      if (!taken.accepted) throw new Error(taken.problem)
      return { document: taken.answer, answer: await device.accept(taken.answer) }
    }

    it('enters its signed grants again, gives its old responses again, and bills the forgotten usage', async () => {
      const device = await TestDevice.join(twin)
      const segments: { sealed: Sealed; answer: string }[] = []
      for (const granted of [100n, 140n, 180n]) {
        const sealed = await device.seal([topUpRequest(LINE, 100n)])
        segments.push({ sealed, answer: await forgottenAnswer(device, sealed, granted) })
        device.charge(charge(40n))
      }
      expect(device.counters(LINE)).toMatchObject({ granted: 180n, used: 120n })
      const last = await device.seal([topUpRequest(LINE, 100n)])
      expect((await send(device, last)).answer).toMatchObject({ outcome: 'BEHIND', seq: 0 })
      for (const { sealed, answer } of segments) {
        const shown = segments.map((each) => each.answer).reverse()
        expect((await send(device, sealed, shown)).document).toBe(answer)
      }
      expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 180n, billedByDevices: 80n })
      await override()
      expect((await send(device, last)).answer).toMatchObject({ outcome: 'MERGED', seq: 4 })
      expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 220n, billedByDevices: 120n })
      expect(device.available(LINE)).toBe(100n)
    })

    it('restores the same state in any order of the signed responses', async () => {
      const orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] // prettier-ignore
      for (const order of orders) {
        const device = await TestDevice.join(twin)
        const answers: string[] = []
        for (const [granted, unlimited] of [
          [0n, true],
          [100n, false],
          [180n, false],
        ] as const) {
          const sealed = await device.seal()
          answers.push(await forgottenAnswer(device, sealed, granted, unlimited))
        }
        const { answer } = await send(device, await device.seal(), order.map((index) => answers[index] ?? '')) // prettier-ignore
        expect(answer).toMatchObject({ outcome: 'BEHIND' })
        const { epoch, records } = await twin.store.read(async ({ edge }) => ({
          epoch: await edge.epochs.get(device.id, 1),
          records: await edge.deviceAccounts.ofDevice(device.id),
        }))
        expect(epoch).toMatchObject({ term: device.state.term, grantsForgotten: true })
        expect(records).toMatchObject([{ granted: 180n, unlimited: false, metered: true, wasMetered: true }])
      }
      expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 6n * 180n })
    })

    it('enters again every grant of a device that has shown a later one, of another account, first', async () => {
      await twin.setLineItem('ACT-2', { quantity: 1_000n })
      const other = lineAccount(INSTANCE, 'ACT-2', 0)
      const device = await TestDevice.join(twin)
      const first = await device.seal()
      const answers = [await forgottenAnswer(device, first, 900n)]
      const second = await device.seal()
      answers.push(await forgottenAnswer(device, second, 300n, false, other))
      expect((await send(device, second, answers.slice(1))).answer).toMatchObject({ outcome: 'BEHIND' })
      await send(device, first, answers.slice(0, 1))
      await send(device, second, answers.slice(1))
      expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 900n })
      expect(await twin.pool(other)).toMatchObject({ grantedOut: 300n })
    })

    it('limits again an account whose unlimited grant it learns of after a later grant of another account', async () => {
      await twin.setLineItem('ACT-2', { quantity: 1_000n })
      const device = await TestDevice.join(twin)
      const first = await device.seal()
      const answers = [await forgottenAnswer(device, first, 0n, true)]
      const second = await device.seal()
      answers.push(await forgottenAnswer(device, second, 300n, false, lineAccount(INSTANCE, 'ACT-2', 0)))
      expect((await send(device, second, answers.slice(1))).answer).toMatchObject({ outcome: 'BEHIND' })
      await send(device, first, answers.slice(0, 1))
      await send(device, second, answers.slice(1))
      device.charge(charge(5_000n))
      expect(await device.sync()).toMatchObject({ outcome: 'MERGED' })
      expect(device.state.unlimited.has(LINE)).toBe(false)
      expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 5_000n })
    })

    it.each([
      ['bills', 300n, undefined],
      ['does not bill', 2_000n, 1],
    ])(
      '%s %d tokens of which neither grant nor cap is known, with 900 in the sales mark',
      async (_, amount, unbilled) => {
        await twin.setLineItem('ACT-1', { quantity: 10n })
        const device = await TestDevice.join(twin)
        await forgottenAnswer(device, await device.seal(), 5_000n)
        device.charge(charge(1n))
        await forgottenAnswer(device, await device.seal(), 5_000n)
        device.charge(charge(amount))
        await restore(900n)
        expect((await send(device, await device.seal())).answer).toMatchObject({ outcome: 'BEHIND' })
        const { deliver } = await successorOf(device)
        const answer = await deliver(device.undeliveredRange(2, 2))
        expect('unbilled' in answer ? answer.unbilled : undefined).toBe(unbilled)
        expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: unbilled === undefined ? amount : 0n })
      },
    )

    it.each([
      ['bills', 300n, undefined],
      ['does not bill', 2_000n, 1],
    ])(
      '%s %d tokens of a device that has lost the proofs of the grant, with 900 in the sales mark',
      async (_, amount, unbilled) => {
        await twin.setLineItem('ACT-1', { quantity: 10n })
        const device = await TestDevice.join(twin)
        await forgottenAnswer(device, await device.seal(), 5_000n)
        device.charge(charge(amount))
        await restore(900n)
        const { deliver } = await successorOf(device)
        const answer = await deliver(device.undeliveredRange(1, 1))
        expect('unbilled' in answer ? answer.unbilled : undefined).toBe(unbilled)
        expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: unbilled === undefined ? amount : 0n })
      },
    )

    it('bills use without a forgotten limit until the device knows of the limit', async () => {
      const device = await TestDevice.join(twin)
      const first = await device.seal([topUpRequest(LINE, 100n)])
      const answer = await forgottenAnswer(device, first, 0n, true)
      expect(device.charge(charge(5_000n))).toBe(true)
      const second = await device.seal()
      expect(device.charge(charge(5_000n))).toBe(true)
      expect((await send(device, second)).answer).toMatchObject({ outcome: 'BEHIND' })
      await send(device, first, [answer])
      expect((await send(device, second)).answer).toMatchObject({ outcome: 'MERGED', seq: 2 })
      expect(device.state.unlimited.has(LINE)).toBe(false)
      expect(await device.sync()).toMatchObject({ outcome: 'MERGED', seq: 3 })
      expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 10_000n, billedByDevices: 10_000n })
      expect(device.counters(LINE)).toMatchObject({ granted: 10_000n, used: 10_000n })
    })

    it('takes proofs of a device that keeps a session open', async () => {
      const device = await TestDevice.join(twin)
      const parts = {
        store: twin.store,
        policies: twin.policies,
        shortages: cloudShortages(),
        newId: randomUUID,
        sessionIntervalMs: null,
        trustsClock: () => true,
      }
      const { id } = await openSession(parts, { instanceId: INSTANCE, deviceId: device.id, opening: null }, twin.time)
      const sealed = await device.seal([topUpRequest(LINE, 100n)])
      const document = await forgottenAnswer(device, sealed, 100n)
      await send(device, sealed, [document])
      expect(await twin.store.read((reader) => reader.sessions.get(id))).toMatchObject({ state: 'IDLE' })
      expect(twin.heartbeats).toEqual([device.id])
    })

    it('enters them again although the pool was sold meanwhile: the cap in force follows, nothing more is granted', async () => {
      const device = await TestDevice.join(twin)
      const sealed = await device.seal([topUpRequest(LINE, 0n, 1_000n)])
      const document = await forgottenAnswer(device, sealed, 1_000n)
      const other = await TestDevice.join(twin)
      await other.sync([topUpRequest(LINE, 0n, 600n)])
      await send(device, sealed, [document])
      expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 1_600n, capTarget: 1_000n, capInForce: 1_600n })
      await other.sync([topUpRequest(LINE, 0n, 700n)])
      expect(other.available(LINE)).toBe(600n)
    })

    it('bills the overspend of an essential item above any cap, also on grants that it has forgotten', async () => {
      const scarce = lineAccount(INSTANCE, 'ACT-2', 0)
      await twin.setLineItem('ACT-2', { quantity: 10n })
      await setOfflinePolicy({ store: twin.store, now: () => twin.time }, INSTANCE, 'ACT-2', 50n)
      const inOverspend = (device: TestDevice, amount: bigint) =>
        device.chargeInOverspend({ lineItemId: 'ACT-2', accounts: [scarce], amount })
      /** A device that knows of a segment that the twin has forgotten, without its answer, and has gone on above its grant. */
      const ahead = async (amount: bigint) => {
        const device = await TestDevice.join(twin)
        const forgotten = await device.seal()
        device.state.unacknowledged = null
        inOverspend(device, amount)
        const next = await device.seal()
        expect((await send(device, next)).answer).toMatchObject({ outcome: 'BEHIND' })
        await twin.sync(device.id, forgotten.document)
        return { device, next }
      }
      const [one, two] = [await ahead(50n), await ahead(50n)]
      expect((await send(one.device, one.next)).answer).toMatchObject({ outcome: 'MERGED', seq: 2 })
      // What is out already is no reason to doubt the next one.
      expect((await send(two.device, two.next)).answer).toMatchObject({ outcome: 'MERGED', seq: 2 })
      expect(await twin.pool(scarce)).toMatchObject({ grantedOut: 100n, billedByDevices: 100n })
      const shown = (await accountLedger(twin, INSTANCE, 0, 100)).accounts.find(({ account }) => account === scarce)
      expect(shown).toMatchObject({ overspend: '100', devices: [{ overspend: '50' }, { overspend: '50' }] })
      // Nor can a chain be given up for it: its overspend is billed as a branch.
      inOverspend(one.device, 40n)
      const old = one.device.copy()
      await one.device.attach()
      const branch = await one.device.sealAs({ ...one.device.payload(), undeliveredRange: old.undeliveredRange(2, 2) })
      expect(await twin.sync(one.device.id, branch.document)).toMatchObject({ accepted: true })
      expect(await twin.pool(scarce)).toMatchObject({ billedByDevices: 140n })
      // Beyond what the policy allows it is a forgotten grant like any other.
      const three = await ahead(71n)
      await expect(twin.sync(three.device.id, three.next.document)).rejects.toMatchObject({ code: 'GRANTS_FORGOTTEN' })
    })

    it('bills the overspend of an epoch that began during the recovery, by an offline policy that it has forgotten', async () => {
      await restore(0n)
      const device = await TestDevice.join(twin)
      device.chargeInOverspend(charge(50n))
      expect(await device.sync()).toMatchObject({ outcome: 'MERGED' })
      expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 50n })
    })

    it.each([
      [
        'an allocation and of a limit',
        [
          LINE,
          actionAccount(INSTANCE, 'ACT-1', '5f2a'),
          limitAccount(INSTANCE, 'ACT-1', { type: 'user', value: 'ada' }, 0),
        ],
      ],
      ['a period', [lineAccount(INSTANCE, 'ACT-1', 7)]],
    ])('bills the use of %s that it has forgotten with the rules', async (_what, accounts) => {
      const device = await TestDevice.join(twin)
      const sealed = await device.seal()
      device.state.unacknowledged = null
      for (const account of accounts) {
        device.state.counters.set(account, { granted: 40n, used: 0n, refunded: 0n, returned: 0n })
      }
      device.charge({ lineItemId: 'ACT-1', accounts, amount: 40n })
      const late = await device.seal()
      expect((await send(device, late)).answer).toMatchObject({ outcome: 'BEHIND' })
      await twin.sync(device.id, sealed.document)
      expect((await send(device, late)).answer).toMatchObject({ outcome: 'MERGED', seq: 2 })
      for (const account of accounts) expect(await twin.pool(account)).toMatchObject({ billedByDevices: 40n })
    })

    it('rejects a proof that it has not signed, or that belongs to another device', async () => {
      const [device, other] = [await TestDevice.join(twin), await TestDevice.join(twin)]
      const { document } = await send(other, await other.seal([topUpRequest(LINE, 100n)]))
      await device.sync()
      const forged = document.slice(0, -8) + 'AAAAAAAA'
      await send(device, await device.seal(), [document, forged, 'nothing', ''])
      expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n })
      expect(await recovery()).toMatchObject({ since: null, waitingFor: [] })
    })

    it('reserves the tokens of a grant whose segment it has lost', async () => {
      const device = await TestDevice.join(twin)
      const document = await forgottenAnswer(device, await device.seal([topUpRequest(LINE, 100n)]), 100n)
      device.charge(charge(30n))
      const next = await device.seal()
      expect((await send(device, next, [document])).answer).toMatchObject({ outcome: 'BEHIND' })
      expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 0n })
      const old = device.copy()
      await device.attach()
      const undeliveredRange = await device.sealAs({ ...device.payload(), undeliveredRange: old.undeliveredRange() })
      expect(await twin.sync(device.id, undeliveredRange.document)).toMatchObject({ accepted: true })
      expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 30n })
    })

    describe('does not sell the tokens that its sales mark has counted', () => {
      it('and sells the remaining tokens, but none that devices report as used', async () => {
        const [one, two] = [await TestDevice.join(twin), await TestDevice.join(twin)]
        await one.sync([topUpRequest(LINE, 10n)])
        await two.sync([topUpRequest(LINE, 10n)])
        const sealed = await two.seal([topUpRequest(LINE, 460n)])
        const answer = await forgottenAnswer(two, sealed, 460n)
        twin.time += 1_000
        // Devices have had 450 more, and clients of the twin 100.
        await restore(570n)
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 20n, sold: 570n, withheld: 550n })
        // 430 are left for certain.
        await one.sync([topUpRequest(LINE, 0n, 440n)])
        expect(one.available(LINE)).toBe(440n)
        expect(await twin.chargeDirectly(LINE, 1n)).toBe(false)
        await endThose()
        expect(await recovery()).toMatchObject({
          since: twin.time,
          unproven: null,
          waitingFor: [{ deviceId: two.id, epoch: 1, status: 'ACTIVE' }],
          accounts: [{ account: LINE, atRisk: '550', free: '0' }],
        })
        await send(two, sealed, [answer])
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 900n, withheld: 100n })
        await two.sync()
        await endThose()
        expect(await recovery()).toMatchObject({ since: null, waitingFor: [], accounts: [{ atRisk: '100' }] })
        expect(await twin.chargeDirectly(LINE, 1n)).toBe(false)
      })

      it('until an administrator ends the recovery, who sees which tokens may be sold twice', async () => {
        const device = await TestDevice.join(twin)
        await restore(550n)
        expect(await override()).toMatchObject({
          since: twin.time,
          accounts: [{ account: LINE, atRisk: '550', free: '450' }],
        })
        expect(await recovery()).toMatchObject({ since: null, accounts: [] })
        const { records } = await showAudit({ store: twin.store, giveWay: () => undefined }, {}, 2)
        expect(records).toMatchObject([
          { action: 'END_RECOVERY', instanceId: INSTANCE },
          { action: 'NOTICE_RESTORE', by: CLOUD },
        ])
        expect(JSON.parse(records[0]?.detail ?? '')).toMatchObject({ exposure: [{ atRisk: '550' }] })
        await device.sync([topUpRequest(LINE, 0n, 1_000n)])
        expect(device.available(LINE)).toBe(1_000n)
      })

      it('twice when the same backup is restored twice', async () => {
        await restore(550n)
        await restore(550n)
        expect(await twin.pool(LINE)).toMatchObject({ sold: 550n, withheld: 550n })
        expect(await twin.chargeDirectly(LINE, 450n)).toBe(true)
        expect(await twin.chargeDirectly(LINE, 1n)).toBe(false)
      })
    })

    describe('without a sales mark', () => {
      const request = (): Promise<{ readonly items: readonly { readonly outcome: string }[] }> =>
        new AccessBatcher({
          ...{ store: twin.store, policies: twin.policies },
          ...{ shortages: cloudShortages(), defer: setImmediate },
        }).request(
          {
            instanceId: INSTANCE,
            correlationId: randomUUID(),
            request: {
              requester: { type: 'user', value: 'ada', dictionary: {} },
              items: [{ name: 'Print', version: '', count: decimal(1) }],
            },
            metaData: [null],
          },
          twin.time,
        )

      it('sells nothing to devices and clients, also with no device to wait for, until an administrator ends it', async () => {
        await twin.setRates({ Print: 0.0001 })
        await restore(0n, 'MARK')
        await endThose()
        expect((await request()).items).toMatchObject([{ outcome: 'REFUSED', reason: 'POOL_IN_RECOVERY' }])
        const device = await TestDevice.join(twin)
        expect(await device.sync([topUpRequest(LINE, 0n, 1n)])).toMatchObject({
          grant: { accounts: [{ account: LINE, granted: 0n, exhausted: false }] },
        })
        await endThose()
        expect(await recovery()).toMatchObject({ unproven: 'MARK', waitingFor: [] })
        await override()
        expect((await request()).items).toMatchObject([{ outcome: 'GRANTED' }])
        await device.sync([topUpRequest(LINE, 0n, 1n)])
        expect(device.available(LINE)).toBe(1n)
      })

      it('sells unlimited tokens', async () => {
        await twin.setRates({ Print: 0.0001 })
        await twin.setLineItem('ACT-1', { quantity: 0n, overdraft: 'UNLIMITED' })
        await restore(0n, 'MARK')
        expect((await request()).items).toMatchObject([{ outcome: 'GRANTED' }])
      })
    })

    it('waits for every device that is enrolled, and neither for revoked nor for terminated ones', async () => {
      const attached = await TestDevice.join(twin)
      const [revoked, terminated] = [await TestDevice.join(twin), await TestDevice.join(twin)]
      const { deviceId } = await twin.enroll(await twin.enrollmentToken(), (await newDeviceKeys()).jwk)
      await revokeDevice(twin, revoked.id)
      await twin.changeDevice(terminated.id, { suspension: { state: 'TERMINATED', since: twin.time, by: 'admin' } })
      await restore(0n)
      const { waitingFor } = await recovery()
      expect(waitingFor.toSorted((a, b) => Number(b.epoch) - Number(a.epoch))).toEqual([
        { deviceId: attached.id, epoch: 1, status: 'ACTIVE' },
        { deviceId, epoch: null, status: null },
      ])
    })

    it('does not wait for an epoch that was replaced before the restore', async () => {
      const [one, two] = [await TestDevice.join(twin), await TestDevice.join(twin)]
      await one.sync([topUpRequest(LINE, 10n)])
      await one.attach()
      twin.time += 1
      await restore(0n)
      await two.attach()
      const of = ({ id }: TestDevice, epoch: number, status: string) => ({ deviceId: id, epoch, status })
      const { waitingFor } = await recovery()
      expect(waitingFor).toHaveLength(3)
      expect(waitingFor).toEqual(
        expect.arrayContaining([of(one, 2, 'ACTIVE'), of(two, 1, 'FENCED'), of(two, two.state.epoch, 'ACTIVE')]),
      )
    })

    it.each([
      ['a backup that is older than the time after which silence is settled', 12 * HOUR, 0, 15 * HOUR],
      ['a device that had been away for nearly that time at the backup', 30 * DAY, 29.5 * DAY, 15 * HOUR],
    ])('sells nothing twice and fences no device with %s', async (_, afterMs, away, age) => {
      const [device, other] = [await TestDevice.join(twin), await TestDevice.join(twin)]
      await device.sync([topUpRequest(LINE, 100n)])
      twin.time += away + HOUR
      const sealed = await device.seal([topUpRequest(LINE, 0n, 900n)])
      const answer = await forgottenAnswer(device, sealed, 900n)
      twin.time += age - HOUR
      await restore(1_000n)
      await twin.noteClock()
      const start = async () => {
        await twin.settle('CHARGED', afterMs)
        await endThose()
      }
      await start()
      await other.sync([topUpRequest(LINE, 0n, 900n)])
      expect(device.available(LINE)).toBe(900n)
      expect(other.available(LINE)).toBe(0n)
      expect(await recovery()).toMatchObject({ waitingFor: [{ deviceId: device.id, status: 'ACTIVE' }] })
      // Nor is anybody fenced for a silence that the backup only remembers when an administrator ends it.
      await override()
      await start()
      await send(device, sealed, [answer])
      expect((await device.sync()).outcome).toBe('MERGED')
    })

    it('settles devices that stay silent after the restore for the configured time', async () => {
      const device = await TestDevice.join(twin)
      await device.sync([topUpRequest(LINE, 100n)])
      twin.time += 100 * DAY
      await restore(0n)
      await twin.noteClock()
      twin.time += 30 * DAY
      expect(await twin.settle()).toBe(1)
      twin.time += 1
      expect(await twin.settle()).toBe(2)
      await endThose()
      expect(await recovery()).toMatchObject({ since: null, waitingFor: [] })
    })

    describe('restored while its clock is behind', () => {
      let start: number
      beforeEach(async () => {
        start = twin.time
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
      })

      it('settles no device before it trusts its clock, and counts from then', async () => {
        twin.time = start - 31 * DAY
        await restore(0n)
        twin.time = start + 100 * DAY
        expect(await twin.settle()).toBe(1)
        await twin.noteClock()
        twin.time += 30 * DAY
        expect(await twin.settle()).toBe(1)
        twin.time += 1
        expect(await twin.settle()).toBe(2)
      })

      it('counts from the time of its sales mark, if that is later', async () => {
        twin.time = start + 3 * DAY
        await restore(0n, null, start + 6 * DAY)
        await twin.noteClock()
        twin.time = start + 36 * DAY
        expect(await twin.settle()).toBe(1)
        twin.time += 2
        expect(await twin.settle()).toBe(2)
      })

      it('counts from its signed time, if that is later', async () => {
        const device = await TestDevice.join(twin)
        twin.time = start + 6 * DAY
        const sealed = await device.seal([topUpRequest(LINE, 100n)])
        const answer = await forgottenAnswer(device, sealed, 100n)
        twin.time = start + 3 * DAY
        await send(device, sealed, [answer])
        twin.time = start + 36 * DAY
        await device.sync()
        expect(await twin.settle()).toBe(1)
        twin.time += 1
        expect(await twin.settle()).toBe(2)
      })
    })

    it('counts silence from the first proof of forgotten data, without a declared restore', async () => {
      const [device, silent] = [await TestDevice.join(twin), await TestDevice.join(twin)]
      await silent.sync([topUpRequest(LINE, 100n)])
      const sealed = await device.seal([topUpRequest(LINE, 100n)])
      const answer = await forgottenAnswer(device, sealed, 100n)
      twin.time += 30 * DAY
      await send(device, sealed, [answer])
      twin.time += 1
      expect(await twin.settle()).toBe(1)
      expect(await recovery()).toMatchObject({ since: twin.time - 1 })
    })

    it('waits for all devices again when the backup was made during a recovery', async () => {
      await twin.setLineItem('ACT-2', { quantity: 1_000n })
      const other = lineAccount(INSTANCE, 'ACT-2', 0)
      const [one, silent, three] = [
        await TestDevice.join(twin),
        await TestDevice.join(twin),
        await TestDevice.join(twin),
      ]
      await one.sync([topUpRequest(LINE, 10n)])
      await silent.sync([topUpRequest(other, 10n)])
      twin.time += 1_000
      await restore(10n)
      twin.time += 1_000
      await one.sync([topUpRequest(LINE, 10n)])
      await endThose()
      // The backup is made here: it has forgotten what follows.
      twin.time += 1_000
      const sealed = await one.seal([topUpRequest(LINE, 900n)])
      const answer = await forgottenAnswer(one, sealed, 900n)
      twin.time += 60_000
      await restore(900n)
      await three.sync([topUpRequest(LINE, 900n)])
      expect(three.available(LINE)).toBeLessThanOrEqual(100n)
      expect((await recovery()).waitingFor.map(({ deviceId }) => deviceId)).toContain(one.id)
      await send(one, sealed, [answer])
      expect((await twin.pool(LINE)).grantedOut).toBeLessThanOrEqual(1_000n)
    })

    describe('reported to billing', () => {
      async function exported(after: bigint | null) {
        const order = { format: 'ndjson', tenantId: 't', instanceId: null, from: null, to: null, after } as const
        const { next, pieces } = await exportUsage({ store: twin.store, giveWay: () => undefined }, order)
        let text = ''
        for await (const piece of pieces) text += piece
        const lines = text.split('\n').filter((line) => line !== '')
        return { next, lines: lines.map((line) => JSON.parse(line) as Record<string, unknown>) }
      }
      async function use(device: TestDevice, times: number): Promise<void> {
        for (let n = 0; n < times; n += 1) device.charge(charge(1n))
        await device.sync()
      }

      it('refuses cursors of forgotten records, however much is written after, and names the cursor to continue with', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        await use(device, 2)
        const { next: backupEnd } = await exported(null)
        // The job had three more lines, which are not in the backup.
        const cursor = backupEnd + 3n
        twin.time += 1_000
        await restore(0n)
        const atOnce = await exported(backupEnd)
        expect(atOnce.lines).toEqual([])
        for (const times of [1, 2, 3]) {
          await use(device, times)
          await expect(exported(cursor)).rejects.toMatchObject({
            code: 'USAGE_FORGOTTEN',
            message: expect.stringContaining(`after=${backupEnd}.`) as string,
          })
        }
        const { lines, next } = await exported(backupEnd)
        expect(lines.map(({ entry }) => entry)).toEqual([3, 4, 5, 6, 7, 8])
        expect((await exported(atOnce.next)).lines).toEqual(lines)
        expect((await exported(next)).lines).toEqual([])
        for (const line of lines) expect(BigInt(line['cursor'] as string)).toBeGreaterThan(cursor)
        // The same backup again, a second later.
        twin.time += 1_000
        await restore(0n)
        await use(device, 1)
        await expect(exported(next + 1n)).rejects.toMatchObject({ code: 'USAGE_FORGOTTEN' })
        expect((await exported(next)).lines).toHaveLength(1)
      })

      it('refuses also the last cursor of a time that was far ahead, because another restore had come before', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        await use(device, 2)
        const { next: backupEnd } = await exported(null)
        await restore(0n)
        const { next: afterOne } = await exported(backupEnd)
        const cursor = afterOne + 2n * USAGE_FORGOTTEN_ROWS_MAX * USAGE_ROW_POSITIONS
        await restore(0n, null, 0, { position: cursor })
        await expect(exported(cursor)).rejects.toMatchObject({ code: 'USAGE_FORGOTTEN' })
        await use(device, 1)
        const named = { code: 'USAGE_FORGOTTEN', message: expect.stringContaining(`after=${backupEnd}.`) as string }
        for (const after of [cursor, afterOne]) await expect(exported(after)).rejects.toMatchObject(named)
        expect((await exported(backupEnd)).lines).toHaveLength(1)
      })

      it('passes positions by the time, not further with each node or start, so that the next restore passes them too', async () => {
        // PostgreSQL uses its own clock.
        const time = async () => (await twin.store.transaction(({ sweeps }) => sweeps.databaseTime())) ?? twin.time
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const from = await time()
        await restore(0n)
        const { next: first } = await exported(null)
        await use(device, 1)
        twin.time -= 5_000
        await restore(0n, null, 0, { isJoined: true })
        const { next: second } = await exported(null)
        twin.time += 10_000
        await restore(0n)
        const { next: third } = await exported(null)
        const byTime = BigInt((await time()) - from) * USAGE_ROWS_PER_MS * USAGE_ROW_POSITIONS
        expect(second).toBeGreaterThan(first)
        expect(third).toBeGreaterThan(second)
        expect(third - first).toBeLessThanOrEqual(byTime + USAGE_ROW_POSITIONS)
      })
    })

    it('gives its rules a revision above every one that it can have forgotten, also when the same backup is restored again', async () => {
      const revision = async () => (await twin.store.read((reader) => reader.policyRevisions.get(INSTANCE)))?.revision
      const known = await revision()
      for (const quantity of [900n, 800n, 700n]) await twin.setLineItem('ACT-1', { quantity })
      const newest = (await revision()) ?? 0
      expect(newest).toBe((known ?? 0) + 3)
      await restore(0n)
      expect(await revision()).toBeGreaterThan(Math.max(newest, twin.time))
    })

    it.each([
      ['has lost its ledger', 0],
      ['has an older ledger', 1],
    ])('gives a device that %s an epoch above every one that both have forgotten', async (_which, epoch) => {
      twin.terms = { ...twin.terms, attachesMax: 12 }
      const device = await TestDevice.join(twin)
      await device.attach()
      twin.time += 10 * HOUR
      await restore(0n)
      await twin.noteClock()
      twin.time += HOUR
      // Twelve an hour: the backup is of the first of eleven hours at most.
      device.state.epoch = epoch
      await device.attach()
      expect(device.state.epoch).toBe(2 + 11 * 12 + 1)
      await device.attach()
      expect(device.state.epoch).toBe(2 + 11 * 12 + 2)
    })

    it('detects a restore once, and names the device that proved it', async () => {
      const [one, two, three] = [await TestDevice.join(twin), await TestDevice.join(twin), await TestDevice.join(twin)]
      await two.sync([topUpRequest(LINE, 10n)])
      const revision = async () =>
        (await twin.store.read((reader) => reader.policyRevisions.get(INSTANCE)))?.revision ?? 0
      const known = await revision()
      const shown: { sealed: Sealed; answer: string }[] = []
      for (const device of [one, two]) {
        const sealed = await device.seal()
        shown.push({ sealed, answer: await forgottenAnswer(device, sealed, 300n) })
      }
      twin.time += 60_000
      // A segment that is ahead says so without proof: a stolen key could stop all grants with it.
      await send(two, await two.seal())
      expect(await recovery()).toMatchObject({ since: null, waitingFor: [] })
      expect([await revision(), twin.restored]).toEqual([known, []])

      const [first, second] = shown
      if (first === undefined || second === undefined) throw new Error('there are two')
      await send(one, first.sealed, [first.answer])
      expect(twin.restored).toEqual([{ deviceId: one.id, instanceIds: [INSTANCE] }])
      expect(await recovery()).toMatchObject({ since: twin.time })
      expect(await revision()).toBeGreaterThan(twin.time)
      twin.time += 1_000
      await three.sync([topUpRequest(LINE, 0n, 100n)])
      expect(three.available(LINE)).toBe(0n)
      // More of the same past is no news.
      await send(two, second.sealed, [second.answer])
      expect(twin.restored).toHaveLength(1)
      const { records } = await showAudit({ store: twin.store, giveWay: () => undefined }, {}, 100)
      const notices = records.filter(({ action }) => action === 'NOTICE_RESTORE')
      expect(notices).toMatchObject([{ by: CLOUD, deviceId: one.id }])
    })

    it('notices another restore after a recovery that began while its clock was ahead', async () => {
      const device = await TestDevice.join(twin)
      const ahead = twin.time + 365 * DAY
      await restore(0n, null, ahead)
      await device.sync()
      await endThose()
      expect(await recovery()).toMatchObject({ since: null })
      const sealed = await device.seal([topUpRequest(LINE, 100n)])
      const document = await forgottenAnswer(device, sealed, 100n)
      await send(device, sealed, [document])
      expect(await recovery()).toMatchObject({ unproven: 'MARK', waitingFor: [{ deviceId: device.id }] })
    })

    it('does not end a recovery that begins while an earlier one ends', async () => {
      const device = await TestDevice.join(twin)
      await restore(0n)
      await device.sync()
      const store: Parameters<typeof endRecoveries>[0] = {
        read: async (work) => {
          const read = await twin.store.read(work)
          await restore(0n, 'MARK')
          return read
        },
        transaction: (work) => twin.store.transaction(work),
      }
      await endRecoveries(store, twin.time)
      expect(await recovery()).toMatchObject({ unproven: 'MARK', waitingFor: [{ deviceId: device.id }] })
    })

    it.each<[string, bigint, readonly (readonly [bigint, string])[], 'MARK' | null]>([
      ['all of the grants', 100n, [[110n, LINE]], null],
      ['not all of the grants', 99n, [[110n, LINE]], 'MARK'],
      [
        'not the highest of the grants',
        60n,
        [
          [110n, LINE],
          [60n, LINE],
        ],
        'MARK',
      ],
      [
        'the grants of one account only',
        100n,
        [
          [110n, LINE],
          [5n, OTHER],
        ],
        'MARK',
      ],
    ])(
      'sells the rest while its sales mark counts what a clock ahead has signed: %s',
      async (_what, withheld, grants, unproven) => {
        await twin.setLineItem('ACT-2', { quantity: 1_000n })
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 10n)])
        twin.time += HOUR
        const sealed = await device.seal()
        const proofs: string[] = []
        for (const [granted, account] of grants)
          proofs.push(await forgottenAnswer(device, sealed, granted, false, account))
        twin.time -= HOUR
        await restore(10n + withheld)
        await twin.sync(device.id, sealed.document, proofs)
        expect(twin.restored).toHaveLength(1)
        expect(await recovery()).toMatchObject({ unproven })
      },
    )

    it('does not detect another restore from older rules once the device has reported', async () => {
      await restore(0n, null, twin.time + DAY)
      const device = await TestDevice.join(twin)
      await device.sync()
      const known = (await twin.store.read((reader) => reader.policyRevisions.get(INSTANCE)))?.revision ?? 0
      const newer = { instanceId: INSTANCE, revision: known + 1, issuedAt: twin.time }
      const rules = await signDocument('policy', JSON.stringify(newer), twin.keys.signer)
      await send(device, await device.seal(), [rules])
      expect(twin.restored).toEqual([])
      const revision = (await twin.store.read((reader) => reader.policyRevisions.get(INSTANCE)))?.revision
      expect(revision).toBeGreaterThan(known + 1)
    })

    it('detects a restore only by unknown rules that it has signed', async () => {
      const device = await TestDevice.join(twin)
      const other = '0b8a1a52-6f3e-4b53-a6a5-9a7f6a0d8d11'
      const rules = async (revision: number, instanceId = INSTANCE, signer = twin.keys.signer) =>
        signDocument('policy', JSON.stringify({ instanceId, revision, issuedAt: twin.time }), signer)
      const known = (await twin.store.read((reader) => reader.policyRevisions.get(INSTANCE)))?.revision ?? 0
      const nothing = [await rules(known), await rules(99, INSTANCE, device.keys.signer), await rules(99, other)]
      await send(device, await device.seal(), nothing)
      expect(twin.restored).toEqual([])
      await send(device, await device.seal(), [await rules(known + 1)])
      expect(twin.restored).toEqual([{ deviceId: device.id, instanceIds: [INSTANCE] }])
      const next = await twin.store.read((reader) => reader.policyRevisions.get(INSTANCE))
      expect(next?.revision).toBeGreaterThan(twin.time)
      // Also on a host whose clock is behind, and during a recovery.
      const ahead = twin.time + DAY
      twin.time += 1
      await send(device, await device.seal(), [await rules(ahead)])
      expect((await twin.store.read((reader) => reader.policyRevisions.get(INSTANCE)))?.revision).toBe(ahead + 1)
    })

    it('detects a restore by a response and rules that are reported together', async () => {
      const device = await TestDevice.join(twin)
      const sealed = await device.seal()
      const newer = { instanceId: INSTANCE, revision: 99, issuedAt: twin.time }
      const rules = await signDocument('policy', JSON.stringify(newer), twin.keys.signer)
      await send(device, sealed, [await forgottenAnswer(device, sealed, 100n), rules])
      expect(twin.restored).toEqual([{ deviceId: device.id, instanceIds: [INSTANCE] }])
    })

    it.each([
      ['behind', -60_000],
      ['ahead by a year until the restore', -365 * DAY],
    ])('waits for one contact of each device, also if its clock was %s', async (_what, correction) => {
      const [one, two] = [await TestDevice.join(twin), await TestDevice.join(twin)]
      await one.sync([topUpRequest(LINE, 10n)])
      await two.sync([topUpRequest(LINE, 10n)])
      const before = twin.time
      twin.time += correction
      await restore(20n, null, before)
      expect(await recovery()).toMatchObject({ waitingFor: [{}, {}] })
      await one.sync()
      await endThose()
      expect(await recovery()).toMatchObject({ waitingFor: [{ deviceId: two.id }] })
      await two.sync()
      await endThose()
      expect(await recovery()).toMatchObject({ since: null, waitingFor: [] })
    })

    it('waits until a device that has begun to send forgotten data has sent all of it', async () => {
      const [one, two] = [await TestDevice.join(twin), await TestDevice.join(twin)]
      await two.sync([topUpRequest(LINE, 10n)])
      const segments: { sealed: Sealed; answer: string }[] = []
      for (const granted of [10n, 900n]) {
        const sealed = await one.seal([topUpRequest(LINE, 10n)])
        segments.push({ sealed, answer: await forgottenAnswer(one, sealed, granted) })
      }
      twin.time += 1_000
      await restore(910n)
      const [first, second] = segments
      if (first === undefined || second === undefined) throw new Error('there are two')
      twin.time += 1_000
      await send(one, first.sealed, [first.answer])
      await two.sync([topUpRequest(LINE, 0n, 100n)])
      await endThose()
      expect(two.available(LINE)).toBe(100n)
      expect(await recovery()).toMatchObject({ waitingFor: [{ deviceId: one.id }] })
      await send(one, second.sealed, [second.answer])
      await one.sync()
      await endThose()
      expect(await recovery()).toMatchObject({ since: null, waitingFor: [] })
    })

    it('decides by the rules in force after a proof that it could not record', async () => {
      await restore(0n)
      const device = await TestDevice.join(twin)
      twin.time -= HOUR
      const lost = lineAccount(INSTANCE, 'ACT-9', 0)
      device.state.epoch = 4
      device.state.counters.set(lost, { granted: 9n, used: 0n, refunded: 0n, returned: 0n })
      device.charge({ lineItemId: 'ACT-9', accounts: [lost], amount: 9n })
      const { document } = await device.seal()
      const revisionNow = async () => twin.store.read(async (reader) => reader.policyRevisions.get(INSTANCE))
      const before = (await revisionNow())?.revision ?? 0
      const newer = { instanceId: INSTANCE, revision: before + 1, issuedAt: twin.time + 2 * HOUR }
      const rules = await signDocument('policy', JSON.stringify(newer), twin.keys.signer)
      await expect(twin.sync(device.id, document, [rules])).rejects.toMatchObject({ code: 'GRANTS_FORGOTTEN' })
      for (const quantity of [40n, 50n]) await twin.setLineItem('ACT-9', { quantity })
      expect(await revisionNow()).toMatchObject({ revision: before + 2 })
      const inForce = await twin.store.read((reader) => twin.policies.of(reader, INSTANCE))
      expect(inForce?.lineItems.get('ACT-9')).toMatchObject({ quantity: 50n })
    })

    it('does not wait for settled epochs', async () => {
      const [one, two] = [await TestDevice.join(twin), await TestDevice.join(twin)]
      await one.sync([topUpRequest(LINE, 10n)])
      await two.sync([topUpRequest(LINE, 10n)])
      twin.time += 1
      await restore(20n)
      await twin.noteClock()
      twin.time += 31 * DAY
      await one.sync()
      expect(await recovery()).toMatchObject({ waitingFor: [{ deviceId: two.id }] })
      await twin.settle()
      await endThose()
      expect(await recovery()).toMatchObject({ since: null, waitingFor: [] })
    })

    it('begins a recovery with the first proof of unknown data, in which it sells nothing', async () => {
      const device = await TestDevice.join(twin)
      const other = await TestDevice.join(twin)
      await other.sync([topUpRequest(LINE, 10n)])
      const sealed = await device.seal([topUpRequest(LINE, 100n)])
      const document = await forgottenAnswer(device, sealed, 100n)
      twin.time += 1_000
      await send(device, sealed, [document])
      const { since, waitingFor } = await recovery()
      expect(since).toBe(twin.time)
      // The device has more to say, or says with its next segment that it has not.
      expect(waitingFor.map(({ deviceId }) => deviceId).sort()).toEqual([device.id, other.id].sort())
    })
  })
}
