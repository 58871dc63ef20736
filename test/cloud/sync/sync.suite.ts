// What the twin does with segments, for every store.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ENGINE } from '../../../src/core/engine.ts'
import { renewDuePolicy } from '../../../src/cloud/policy/bump-policy-revision.ts'
import { signedPolicy } from '../../../src/cloud/devices/policy-document.ts'
import { setConsumptionLimit } from '../../../src/cloud/service-api/set-consumption-limit.ts'
import { changeConfiguration } from '../../../src/cloud/service-api/change-configuration.ts'
import { actionAccount, limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { METERED_MAX } from '../../../src/core/accounts/grant.ts'
import { formatMicro } from '../../../src/core/pricing/amount.ts'
import type { Action } from '../../../src/core/rules/policy.ts'
import type { SegmentWire } from '../../../src/protocol/edge/sync.ts'
import { attachAnswer } from '../../../src/protocol/edge/attach.ts'
import { CHAIN_START, entryHash, openDocument } from '../../../src/protocol/signing.ts'
import {
  EPOCHS_FORGOTTEN_MAX,
  EVIDENCE_BYTES_MAX,
  EVIDENCE_OF_DEVICE_BYTES_MAX,
  EVIDENCE_OF_DEVICE_SEGMENTS_MAX,
  EVIDENCE_SEGMENTS_MAX,
} from '../../../src/cloud/devices/limits.ts'
import { newDeviceAccount } from '../../../src/cloud/storage/device-records.ts'
import { releaseDevice, revokeDevice } from '../../../src/cloud/devices/devices.ts'
import { DAY, INSTANCE, START, type Twin } from './twin.ts'
import { successorOf } from './successor.ts'
import { TestDevice, assertSegment, newDeviceKeys, topUpRequest } from './test-device.ts'
import { listUsage } from '../usage/list-usage.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const OTHER_INSTANCE = '0b8a1a52-6f3e-4b53-a6a5-9a7f6a0d8d11'

/** @param open a twin with nothing in it but the instance */
export function syncSuite(name: string, open: () => Promise<Twin>): void {
  describe(name, () => {
    let twin: Twin
    beforeEach(async () => {
      twin = await open()
      await twin.setLineItem('ACT-1', { quantity: 1_000n })
    })
    afterEach(async () => twin[Symbol.asyncDispose]())

    const charge = (amount: bigint) => ({ lineItemId: 'ACT-1', accounts: [LINE], amount })

    const usage = async () => (await twin.store.read((reader) => listUsage(reader, { limit: 100 }))).records

    const epoch = (device: TestDevice, number = device.state.epoch) =>
      twin.store.read((reader) => reader.edge.epochs.get(device.id, number))

    const evidence = (device: TestDevice) => twin.store.read((reader) => reader.edge.evidence.of(device.id, 100))

    async function send(device: TestDevice, payload: SegmentWire) {
      return twin.sync(device.id, (await device.sealAs(payload)).document)
    }

    describe('the engine of the cloud', () => {
      const olderEngine = async (): Promise<void> =>
        twin.store.transaction(async (tx) => {
          const revision = await tx.policyRevisions.lock(INSTANCE)
          await tx.policyRevisions.save({ ...revision!, engine: ENGINE.version - 1 })
        })
      const revision = () => twin.store.read((reader) => reader.policyRevisions.get(INSTANCE))

      it('issues all rules again after an upgrade, once, and names the new revision to devices', async () => {
        const device = await TestDevice.join(twin)
        const before = (await revision())!.revision
        await olderEngine()
        for (let times = 0; times < 2; times += 1) {
          expect(await device.sync()).toMatchObject({
            outcome: 'MERGED',
            policies: [{ instanceId: INSTANCE, revision: before + 1 }],
          })
        }
        expect(await revision()).toMatchObject({ revision: before + 1, engine: ENGINE.version })
        await olderEngine()
        const renew = () => twin.store.transaction((tx) => renewDuePolicy(tx, twin.now()))
        expect([await renew(), await renew()]).toEqual([true, false])
        expect(await revision()).toMatchObject({ revision: before + 2, engine: ENGINE.version })
      })

      it('does not change rules that a node with a newer engine issued', async () => {
        const device = await TestDevice.join(twin)
        const known = (await revision())!
        await twin.store.transaction((tx) => tx.policyRevisions.save({ ...known, engine: ENGINE.version + 1 }))
        await device.sync()
        expect(await revision()).toMatchObject({ revision: known.revision, engine: ENGINE.version + 1 })
      })

      it('is named in the rules, which are refused to an agent if either side is too old', async () => {
        const { store, keys, policies, terms, now } = twin
        const cloud = { store, keys, policies, terms, now, engine: { version: 4, oldest: 3 } }
        const policy = (version: number, oldest: number, known: number | null = null) =>
          signedPolicy(cloud, INSTANCE, (revision) => revision === known, { version, oldest })
        const issued = await policy(3, 1)
        const text = await openDocument('policy', issued!.document, twin.keys.trusted[0].publicKey)
        expect(JSON.parse(text ?? '')).toMatchObject({ engine: 4, oldestEngine: 3 })
        expect(await policy(6, 4, issued!.revision)).toBeNull()
        for (const known of [null, issued!.revision]) {
          await expect(policy(2, 1, known)).rejects.toMatchObject({
            code: 'AGENT_ENGINE_OLD',
            details: { agent: 2, cloud: 4, needed: 3 },
          })
          await expect(policy(6, 5, known)).rejects.toMatchObject({
            code: 'CLOUD_ENGINE_OLD',
            details: { agent: 6, cloud: 4, needed: 5 },
          })
        }
      })
    })

    describe('a merged segment', () => {
      it('gets a grant, and its usage is billed for each line item', async () => {
        const device = await TestDevice.join(twin)
        const first = await device.sync([topUpRequest(LINE, 100n)])
        expect(first).toMatchObject({
          outcome: 'MERGED',
          seq: 1,
          grant: { accounts: [{ account: LINE, granted: 100n }] },
        })
        expect(device.charge(charge(30n))).toBe(true)
        expect(device.charge(charge(80n))).toBe(false)
        await device.sync()
        expect(await twin.pool(LINE)).toMatchObject({ charged: 0n, grantedOut: 100n, billedByDevices: 30n })
        expect(await usage()).toMatchObject([
          {
            status: 'GRANT_EXHAUSTED',
            tokens: 0n,
            activationId: null,
            used: null,
            source: { kind: 'device', entry: 2 },
          },
          { status: 'GRANTED', tokens: 30n, activationId: 'ACT-1', used: 30n, quantity: 1_000n, accountId: 'customer' },
        ])
        expect(twin.heartbeats).toEqual([device.id, device.id])
      })

      it('bills a refund against its charge', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(30n))
        device.refund(charge(10n))
        await device.sync()
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 20n })
        expect((await usage())[0]).toMatchObject({ status: 'REFUNDED', tokens: -10n, used: 20n })
      })

      it('is billed as recorded, whichever engine versions decided in the epoch', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        for (const engine of [1, 7, 2]) {
          device.engine = engine
          device.charge(charge(10n))
        }
        expect(await device.sync()).toMatchObject({ outcome: 'MERGED' })
        expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 30n })
        expect((await usage()).map(({ status, tokens }) => [status, tokens])).toEqual(Array(3).fill(['GRANTED', 10n]))
        expect(await evidence(device)).toEqual([])
      })

      it('gets the first response byte for byte when it is sent again', async () => {
        const device = await TestDevice.join(twin)
        const sealed = await device.seal([topUpRequest(LINE, 100n)])
        const first = await twin.sync(device.id, sealed.document)
        twin.time += 60_000
        const second = await twin.sync(device.id, sealed.document)
        expect(first).toMatchObject({ accepted: true })
        expect(second).toEqual(first)
        expect((await twin.pool(LINE)).grantedOut).toBe(100n)
      })

      it('gets no second grant when a late copy of it arrives', async () => {
        const device = await TestDevice.join(twin)
        const early = await device.seal([topUpRequest(LINE, 100n)])
        await device.sync()
        await device.sync([topUpRequest(LINE, 200n)])
        const late = await twin.sync(device.id, early.document)
        if (!late.accepted) throw new Error(late.problem)
        expect(await device.accept(late.answer)).toMatchObject({ outcome: 'KNOWN', seq: 2 })
        expect((await twin.pool(LINE)).grantedOut).toBe(200n)
      })

      it('counts as contact of its epoch, even if it is repeated, known, or ahead of the cloud', async () => {
        const device = await TestDevice.join(twin)
        const early = await device.seal()
        await device.sync()
        const last = await device.seal()
        await device.sync()
        const ahead = await device.sealAs({ ...device.payload(), seq: 9 })
        for (const { document } of [last, early, ahead]) {
          twin.time += DAY
          expect(await twin.sync(device.id, document)).toMatchObject({ accepted: true })
          expect(await epoch(device)).toMatchObject({ quietSince: twin.time })
        }
      })

      it('returns the tokens that the device gives up', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(30n))
        device.giveBack(LINE)
        await device.sync()
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 30n, billedByDevices: 30n })
      })

      it('deletes the document and the response of the previous one, and keeps its hash', async () => {
        const device = await TestDevice.join(twin)
        const first = await device.seal()
        await device.sync()
        await device.sync()
        const segments = await twin.store.read(async (reader) => [
          await reader.edge.segments.get(device.id, 1, 1),
          await reader.edge.segments.get(device.id, 1, 2),
        ])
        expect(segments[0]).toMatchObject({ hash: first.hash, signed: null })
        expect(segments[1]?.signed?.answer).toEqual(expect.any(String))
      })

      it('names the newest policy and the time of the next sync', async () => {
        const device = await TestDevice.join(twin)
        const answer = await device.sync()
        expect(answer).toMatchObject({
          policies: [{ instanceId: INSTANCE, revision: 2 }],
          nextSyncMs: 300_000,
          directives: [],
          time: START,
        })
        expect(await twin.device(device.id)).toMatchObject({
          lastSyncAt: START,
          appliedPolicies: [{ instanceId: INSTANCE, revision: 1 }],
        })
      })
    })

    describe('a grant', () => {
      it('opens an account for each new requester, and the sync reports how many', async () => {
        const limit = { limit: 5_000_000n, frequency: 'DAILY', nextReset: twin.time + DAY } as const
        await setConsumptionLimit(twin.store, { instanceId: INSTANCE, lineItemId: 'ACT-1' }, limit, twin.time)
        const device = await TestDevice.join(twin)
        const opened = async (...requesters: readonly string[]) => {
          const accounts = requesters.map((value) => limitAccount(INSTANCE, 'ACT-1', { type: 'user', value }, 0))
          const { document } = await device.seal(accounts.map((account) => topUpRequest(account, 1n)))
          const merged = await twin.sync(device.id, document)
          if (merged.accepted) await device.accept(merged.answer)
          return twin.openedPools
        }
        expect(await opened('ada', 'ben')).toBe(2)
        expect(await opened('ada', 'ben', 'eve')).toBe(1)
        expect(await opened('ada', 'ben', 'eve')).toBe(0)
      })

      it('gives in advance at most a fair share of the unspent tokens while other devices are active', async () => {
        const devices = [await TestDevice.join(twin), await TestDevice.join(twin)] as const
        for (const device of devices) await device.sync()
        await devices[0].sync([topUpRequest(LINE, 10_000n)])
        await devices[0].sync([topUpRequest(LINE, 10_000n)])
        expect(devices[0].available(LINE)).toBe(500n)
        await devices[1].sync([topUpRequest(LINE, 10_000n)])
        expect(devices[1].available(LINE)).toBe(500n)
      })

      it('gives all available tokens to a device if no other has synced within the horizon', async () => {
        const devices = [await TestDevice.join(twin), await TestDevice.join(twin)] as const
        for (const device of devices) await device.sync()
        twin.time += DAY + 1
        await devices[0].sync([topUpRequest(LINE, 10_000n)])
        expect(devices[0].available(LINE)).toBe(1_000n)
      })

      it('gives a waiting request its full need beyond the fair share, or nothing, and reports an empty pool', async () => {
        const devices = [await TestDevice.join(twin), await TestDevice.join(twin)] as const
        for (const device of devices) await device.sync()
        await devices[0].sync([topUpRequest(LINE, 0n, 900n)])
        expect(devices[0].available(LINE)).toBe(900n)
        expect(devices[0].state.exhausted.has(LINE)).toBe(false)
        await devices[1].sync([topUpRequest(LINE, 0n, 200n)])
        expect(devices[1].available(LINE)).toBe(0n)
        await devices[1].sync([topUpRequest(LINE, 0n, 100n)])
        expect(devices[1].available(LINE)).toBe(100n)
        expect(devices[1].state.exhausted.has(LINE)).toBe(true)
      })

      it('reports the part that may be overdraft: unspent tokens beyond the quantity', async () => {
        await twin.setLineItem('ACT-1', { quantity: 1_000n, overdraft: 500n })
        const devices = [await TestDevice.join(twin), await TestDevice.join(twin)] as const
        for (const device of devices) await device.sync()
        const overdraft = async (device: TestDevice, atLeast: bigint): Promise<bigint | undefined> => {
          const answer = await device.sync([topUpRequest(LINE, 0n, atLeast)])
          return answer.outcome === 'MERGED' ? answer.grant?.accounts[0]?.overdraft : undefined
        }
        expect(await overdraft(devices[0], 900n)).toBeUndefined()
        expect(await overdraft(devices[1], 100n)).toBeUndefined()
        expect(await overdraft(devices[1], 400n)).toBe(300n)
        expect(await overdraft(devices[1], 600n)).toBe(500n)
        expect(devices[1].charge(charge(450n))).toBe(true)
        expect(await overdraft(devices[1], 1n)).toBe(150n)
        expect(devices[1].charge(charge(150n))).toBe(true)
        expect(await overdraft(devices[1], 1n)).toBeUndefined()
        // Who spends last spends the overdraft, and that may be the other one.
        expect(await overdraft(devices[0], 1n)).toBe(500n)
      })

      it('never promises tokens that the cloud has charged itself', async () => {
        const device = await TestDevice.join(twin)
        await twin.chargeDirectly(LINE, 990n)
        await device.sync([topUpRequest(LINE, 100n)])
        expect(device.available(LINE)).toBe(10n)
      })

      it('has a higher term after each merge, even after the twin forgot the last ones', async () => {
        const device = await TestDevice.join(twin)
        const terms: number[] = []
        for (let n = 0; n < 3; n++) {
          const answer = await device.sync()
          if (answer.outcome === 'MERGED') terms.push(answer.grant?.term ?? 0)
        }
        expect(terms).toEqual([START, START + 1, START + 2])
      })

      it('ends with the last line item that could be spent', async () => {
        await twin.setLineItem('ACT-1', { quantity: 1_000n, end: START + 1_000 })
        const device = await TestDevice.join(twin)
        expect(await device.sync()).toMatchObject({ grant: { lifetimeMs: 1_000, expiresAt: START + 1_000 } })
      })

      it('continues for 12 hours after the end where the tenant tolerates time zones, and no longer', async () => {
        await twin.setLineItem('ACT-1', { quantity: 1_000n, end: START + 1_000 })
        await changeConfiguration(twin.store, [{ name: 'timezone.tolerant', value: 'true' }], 'admin', START)
        const device = await TestDevice.join(twin)
        twin.time = START + 1_000 + DAY / 2
        await device.sync([topUpRequest(LINE, 10n)])
        expect(device.available(LINE)).toBe(10n)
        twin.time += 1
        await device.sync([topUpRequest(LINE, 20n)])
        expect(device.available(LINE)).toBe(10n)
      })

      it('lasts until 12 hours after the last end where the tenant tolerates time zones', async () => {
        await twin.setLineItem('ACT-1', { quantity: 1_000n, end: START + 1_000 })
        const device = await TestDevice.join(twin)
        expect(await device.sync([topUpRequest(LINE, 10n)])).toMatchObject({ grant: { lifetimeMs: 1_000 } })
        await changeConfiguration(twin.store, [{ name: 'timezone.tolerant', value: 'true' }], 'admin', START)
        expect(await device.sync()).toMatchObject({
          grant: { lifetimeMs: 1_000 + DAY / 2, expiresAt: START + 1_000 + DAY / 2 },
        })
      })

      it('is not for a line item that has ended', async () => {
        await twin.setLineItem('ACT-1', { quantity: 1_000n, end: START + 1_000 })
        const device = await TestDevice.join(twin)
        twin.time = START + 1_001
        await device.sync([topUpRequest(LINE, 10n)])
        expect(device.available(LINE)).toBe(0n)
      })

      it('lasts as long as the setting says', async () => {
        const device = await TestDevice.join(twin)
        expect(await device.sync()).toMatchObject({ grant: { lifetimeMs: 7 * DAY, expiresAt: START + 7 * DAY } })
      })

      it('is unlimited if the overdraft is, and the counters follow the use', async () => {
        await twin.setLineItem('ACT-1', { quantity: 10n, overdraft: 'UNLIMITED' })
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        expect(device.charge(charge(5_000n))).toBe(true)
        await device.sync([topUpRequest(LINE, 100n)])
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 5_000n, billedByDevices: 5_000n, capTarget: null })
      })

      it('is limited again once the overdraft has a limit, which the device receives without a request', async () => {
        await twin.setLineItem('ACT-1', { quantity: 10n, overdraft: 'UNLIMITED' })
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(500n))
        await twin.setLineItem('ACT-1', { quantity: 1_000n })
        await device.sync()
        expect(device.state.unlimited.has(LINE)).toBe(false)
        expect(device.counters(LINE)).toMatchObject({ granted: 500n, used: 500n })
        await device.sync([topUpRequest(LINE, 100n)])
        expect(device.available(LINE)).toBe(100n)
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 600n, billedByDevices: 500n })
      })

      it('names a bounded number of accounts with a new limit, and the others with the next segments', async () => {
        const device = await TestDevice.join(twin)
        const accounts = Array.from({ length: 2_001 }, (_, n) => lineAccount(INSTANCE, 'ACT-1', n))
        await twin.store.transaction(async (tx) => {
          await tx.edge.devices.lock(device.id)
          await tx.accounts.open(accounts.map((account) => ({ account, cap: 1_000n })))
          const without = { unlimited: true, metered: true, wasMetered: true }
          await tx.edge.deviceAccounts.save(
            accounts.map((account) => ({ ...newDeviceAccount(device.id, 1, account), ...without })),
          )
        })
        for (const account of accounts) device.state.unlimited.add(account)
        const sizes: number[] = []
        while (device.state.unlimited.size > 0 && sizes.length < 5) {
          const answer = await device.sync()
          if (answer.outcome !== 'MERGED') throw new Error(answer.outcome)
          sizes.push(answer.grant?.accounts.length ?? 0)
        }
        expect(sizes).toEqual([1_000, 1_000, 1])
      })

      it('counts use before the device knew of the limit as granted, however many segments report it', async () => {
        await twin.setLineItem('ACT-1', { quantity: 10n, overdraft: 'UNLIMITED' })
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        await twin.setLineItem('ACT-1', { quantity: 1_000n })
        const early = await device.seal()
        for (let n = 0; n < 3; n += 1) device.charge(charge(50n))
        const answer = await twin.sync(device.id, early.document)
        await device.accept(answer.accepted ? answer.answer : '')
        const metered = async () =>
          (await twin.store.read((reader) => reader.edge.deviceAccounts.get(device.id, 1, [LINE]))).get(LINE)?.metered
        for (const told of [50n, 100n, 150n]) {
          expect(await metered()).toBe(true)
          const sealed = await device.seal([], false, 1)
          const taken = await twin.sync(device.id, sealed.document)
          await device.accept(taken.accepted ? taken.answer : '')
          expect(device.counters(LINE).granted).toBe(told)
        }
        expect(await metered()).toBe(false)
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 150n, billedByDevices: 150n })
      })

      it('refuses use above the grant once the device has the limit', async () => {
        await twin.setLineItem('ACT-1', { quantity: 10n, overdraft: 'UNLIMITED' })
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        await twin.setLineItem('ACT-1', { quantity: 1_000n })
        await device.sync()
        await device.sync()
        device.state.unlimited.add(LINE)
        device.charge(charge(50n))
        const { document } = await device.seal()
        expect(await twin.sync(device.id, document)).toMatchObject({
          accepted: false,
          details: { problem: 'MORE_SPENT_THAN_GRANTED' },
        })
      })

      const action: Action = {
        id: '5b1f43d9-4f44-4f05-9df5-0d87e43c0a11',
        name: null,
        conditionId: null,
        effect: 'ALLOW',
        allocation: 50n,
      }

      it('covers the allocation of an action', async () => {
        await twin.setLineItem('ACT-1', { quantity: 1_000n, actions: [action] })
        const account = actionAccount(INSTANCE, 'ACT-1', action.id)
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n), topUpRequest(account, 100n)])
        expect([device.available(LINE), device.available(account)]).toEqual([100n, 50n])
        expect(device.charge({ lineItemId: 'ACT-1', accounts: [LINE, account], amount: 40n })).toBe(true)
        await device.sync()
        expect((await twin.pool(account)).billedByDevices).toBe(40n)
      })

      const nowhere: [string, string][] = [
        ['a line item that there is not', lineAccount(INSTANCE, 'ACT-9', 0)],
        ['a period that is neither this one nor the next', lineAccount(INSTANCE, 'ACT-1', 2)],
        ['an action that there is not', actionAccount(INSTANCE, 'ACT-1', action.id)],
        ['a consumption limit that is not set', limitAccount(INSTANCE, 'ACT-1', { type: 'user', value: 'x' }, 0)],
        ['another instance', lineAccount(OTHER_INSTANCE, 'ACT-1', 0)],
        ['a text that is no account', 'nonsense'],
      ]
      it.each(nowhere)('is never given for %s', async (_name, account) => {
        const device = await TestDevice.join(twin)
        const answer = await device.sync([topUpRequest(account, 10n, 10n), topUpRequest(LINE, 10n)])
        expect(answer.outcome === 'MERGED' && answer.grant?.accounts.map((granted) => granted.account)).toEqual([LINE])
        expect((await twin.store.read((reader) => reader.accounts.get([account]))).size).toBe(0)
      })

      it('is never given for a line item that is not deployed or has ended', async () => {
        const device = await TestDevice.join(twin)
        await twin.setLineItem('ACT-1', { quantity: 1_000n, state: 'INACTIVE' })
        await device.sync([topUpRequest(LINE, 10n)])
        await twin.setLineItem('ACT-1', { quantity: 1_000n, end: START + 1_000 })
        twin.time = START + 1_001
        await device.sync([topUpRequest(LINE, 10n)])
        expect(device.available(LINE)).toBe(0n)
      })
    })

    describe('a device that is asked to return tokens', () => {
      it('gets no grant until it has returned all tokens', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        await releaseDevice({ store: twin.store, now: twin.now }, device.id)
        const answer = await device.sync([topUpRequest(LINE, 200n)])
        // A request that waits for these tokens is not refused: it may have them in the next round.
        const told = { grant: { accounts: [{ account: LINE, exhausted: false, available: 900n }] } }
        expect(answer).toMatchObject({ directives: ['release'], ...told })
        expect(device.available(LINE)).toBe(100n)
        device.giveBack(LINE)
        expect(await device.sync([topUpRequest(LINE, 50n)])).toMatchObject({ directives: [] })
        expect(device.available(LINE)).toBe(50n)
        expect(await twin.device(device.id)).toMatchObject({ releaseRequested: false })
        expect((await twin.pool(LINE)).grantedOut).toBe(50n)
      })

      it('is asked to return limited tokens, and no metered ones', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        await twin.setLineItem('ACT-1', { quantity: 10n, overdraft: 'UNLIMITED' })
        await device.sync([topUpRequest(LINE, 100n)])
        await releaseDevice({ store: twin.store, now: twin.now }, device.id)
        expect(await device.sync()).toMatchObject({ directives: ['release'] })
        device.giveBack(LINE)
        expect(device.charge(charge(500n))).toBe(true)
        expect(await device.sync()).toMatchObject({ directives: [] })
        expect(await twin.device(device.id)).toMatchObject({ releaseRequested: false })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 500n, billedByDevices: 500n })
      })

      it('must return outstanding tokens above a lowered cap', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 500n)])
        await twin.setLineItem('ACT-1', { quantity: 100n })
        expect(await twin.pool(LINE)).toMatchObject({ capTarget: 100n, capInForce: 500n })
        expect(await device.sync()).toMatchObject({ directives: [], releases: [{ account: LINE, keep: 100n }] })
        device.giveBack(LINE, 100n)
        expect(await device.sync([topUpRequest(LINE, 500n)])).toMatchObject({ releases: [] })
        expect(device.available(LINE)).toBe(100n)
        expect(await twin.pool(LINE)).toMatchObject({ capTarget: 100n, capInForce: 100n, grantedOut: 100n })
      })

      it('must return tokens that the charges of the cloud need under a lowered cap', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 500n)])
        await twin.chargeDirectly(LINE, 300n)
        await twin.setLineItem('ACT-1', { quantity: 700n })
        expect(await device.sync()).toMatchObject({ releases: [{ account: LINE, keep: 400n }] })
        device.giveBack(LINE, 400n)
        expect(await device.sync()).toMatchObject({ releases: [] })
      })

      it('must return all tokens of an account if more were spent than a lowered cap allows', async () => {
        const [rich, poor] = [await TestDevice.join(twin), await TestDevice.join(twin)]
        await rich.sync([topUpRequest(LINE, 500n)])
        await poor.sync([topUpRequest(LINE, 50n)])
        expect(rich.charge(charge(400n))).toBe(true)
        await twin.setLineItem('ACT-1', { quantity: 100n })
        expect(await rich.sync()).toMatchObject({ releases: [{ account: LINE, keep: 0n }] })
        expect(await poor.sync()).toMatchObject({ releases: [{ account: LINE, keep: 0n }] })
      })

      it('is granted other accounts while one is above its lowered cap', async () => {
        const other = lineAccount(INSTANCE, 'ACT-2', 0)
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 500n)])
        await twin.setLineItem('ACT-1', { quantity: 100n })
        await twin.setLineItem('ACT-2', { quantity: 1_000n })
        await device.sync([topUpRequest(other, 0n, 300n)])
        expect([device.available(LINE), device.available(other)]).toEqual([500n, 300n])
      })
    })

    describe('attaching', () => {
      it('is not refused because of attaches recorded while the clock was far ahead', async () => {
        twin.terms = { ...twin.terms, attachesMax: 2 }
        const device = await TestDevice.join(twin)
        twin.time += 31 * DAY
        await device.attach()
        await device.attach()
        twin.time -= 31 * DAY
        await device.attach()
        await expect(device.attach()).rejects.toMatchObject({ code: 'ATTACH_TOO_OFTEN' })
      })

      it('is refused for a while if it happens too often, except for a repeated attempt', async () => {
        twin.terms = { ...twin.terms, attachesMax: 2 }
        const device = await TestDevice.join(twin)
        twin.time += 1_000
        const nonce = 'the second attach'
        await device.attach(nonce)
        await expect(device.attach()).rejects.toMatchObject({
          code: 'ATTACH_TOO_OFTEN',
          message: `This device has attached 2 times within an hour, and may attach again at ${new Date(twin.time + 3_599_000).toISOString()}.`,
          details: { retryAfterMs: 3_599_000 },
        })
        await expect(twin.attach(device.id, nonce)).resolves.toEqual(expect.any(String))
        twin.time += 3_599_000
        await device.attach()
        expect(device.state.epoch).toBe(3)
      })

      it('gives an epoch above every earlier one of the device, even if the twin has forgotten some', async () => {
        const device = await TestDevice.join(twin)
        device.state.epoch = 7
        await device.attach()
        expect(device.state.epoch).toBe(8)
        await twin.attach(device.id, 'an implausible number', 2 * EPOCHS_FORGOTTEN_MAX)
        expect(await twin.device(device.id)).toMatchObject({ epoch: 9 })
      })
    })

    describe('the answer to an attach', () => {
      const answerTo = async (device: TestDevice, above: number, acknowledged: number) => {
        const document = await twin.attach(device.id, randomUUID(), above, acknowledged)
        const { publicKey } = twin.keys.trusted[0]
        return attachAnswer.parse(JSON.parse((await openDocument('attach-answer', document, publicKey)) ?? ''))
      }

      it('requests nothing if the cloud has the whole previous epoch', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(10n))
        await device.sync()
        expect(await answerTo(device, 1, 2)).toMatchObject({ epoch: 2, restored: null })
        expect(await epoch(device, 1)).toMatchObject({ grantsForgotten: false })
        expect(await answerTo(device, 0, 0)).toMatchObject({ epoch: 3, restored: null })
      })

      it('requests earlier segments if the cloud lacks some, and names its last entry', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(10n))
        await device.sync()
        const { lastEntry, entryHead } = device.state
        const asked = { lastEntry, entryHead }
        expect(await answerTo(device, 1, 5)).toMatchObject({ restored: asked })
        expect(await epoch(device, 1)).toMatchObject({ grantsForgotten: true, status: 'FENCED' })
        // Also an epoch that it has relearned from its own segments alone.
        expect(await answerTo(device, 1, 2)).toMatchObject({ restored: asked })
        const nothing = { lastEntry: 0, entryHead: CHAIN_START }
        expect(await answerTo(device, 9, 0)).toMatchObject({ epoch: 10, restored: nothing })
      })
    })

    describe('a receipt', () => {
      it('names the segment, its entries and their retention time', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(1n))
        device.charge(charge(2n))
        const answer = await device.sync()
        expect(answer).toMatchObject({
          receipt: {
            epoch: 1,
            seq: 2,
            hash: device.state.hash,
            entries: { from: 1, to: 2, head: device.state.entryHead },
            retainUntil: START + 7 * DAY,
          },
        })
        expect(await device.sync([], true)).toMatchObject({ receipt: { seq: 3, entries: { from: 3, to: 2 } } })
      })
    })

    describe('a fenced epoch', () => {
      it('is billed for late entries, gets no grant, and keeps returned tokens reserved', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const old = device.copy()
        await device.attach()
        old.charge(charge(30n))
        old.giveBack(LINE)
        expect(await old.sync([topUpRequest(LINE, 500n)])).toMatchObject({
          outcome: 'FENCED',
          seq: 2,
          hash: old.state.hash,
          forked: false,
          closed: false,
        })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 30n })
      })

      it('is closed exactly by its final segment', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const old = device.copy()
        await device.attach()
        old.charge(charge(30n))
        const answer = await old.sync([], true)
        expect(answer).toMatchObject({ outcome: 'FENCED', closed: true })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 30n, billedByDevices: 30n })
        expect(await epoch(old)).toMatchObject({ status: 'CLOSED' })
      })

      it('gets the same response byte for byte when its final segment is sent again', async () => {
        const device = await TestDevice.join(twin)
        const sealed = await device.seal([], true)
        const first = await twin.sync(device.id, sealed.document)
        expect(await twin.sync(device.id, sealed.document)).toEqual(first)
      })

      it('is followed by the next epoch, and every token is accounted for', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(10n))
        await twin.attach(device.id, 'a nonce of another device')
        await device.beginAgain()
        expect(device.state.epoch).toBe(3)
        await device.sync([topUpRequest(LINE, 50n)])
        expect(device.available(LINE)).toBe(50n)
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 60n, billedByDevices: 10n })
      })
    })

    describe('two writers on one chain', () => {
      it('are detected and both billed, and neither is locked out', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const clone = device.copy()
        device.charge(charge(60n))
        clone.charge(charge(70n))
        await device.sync()
        const other = await clone.seal()
        expect(await clone.sync()).toMatchObject({ outcome: 'FENCED', forked: true, closed: false, seq: 2 })
        // 130 spent of 100 granted: the overspend of the copy is out, and shown.
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 130n, billedByDevices: 130n, capInForce: 1_000n })
        expect(await evidence(clone)).toMatchObject([
          { kind: 'FORK', seq: 2, hash: other.hash, document: other.document, recordedHash: device.state.hash },
        ])
        expect((await evidence(clone))[0]?.recordedDocument).toEqual(expect.any(String))

        device.charge(charge(5n))
        expect(await device.sync()).toMatchObject({ outcome: 'FENCED', forked: true })
        expect((await twin.pool(LINE)).billedByDevices).toBe(135n)
        await clone.beginAgain()
        await device.beginAgain()
        expect([clone.state.epoch, device.state.epoch]).toEqual([2, 3])
      })

      it('cannot release the granted tokens of each other', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const clone = device.copy()
        await device.sync()
        await clone.sync()
        await device.sync([], true)
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 0n })
      })

      it('bill an entry that both have reported once', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(20n))
        const restored = device.copy()
        await device.sync()
        // The same entry in another segment, as after a restored backup, then one of its own.
        restored.charge(charge(7n))
        expect(await restored.sync()).toMatchObject({ outcome: 'FENCED', forked: true })
        expect((await twin.pool(LINE)).billedByDevices).toBe(27n)
        const entries = await twin.store.read((reader) => reader.edge.entries.of(device.id, 1))
        expect(entries.map(({ n, branch }) => [n, branch])).toEqual([
          [1, false],
          [2, true],
        ])
        expect(await usage()).toHaveLength(2)
      })

      it('bill entries once that both had in their backlog, in any order of reports', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        for (const amount of [1n, 2n, 4n, 8n]) device.charge(charge(amount))
        const clone = device.copy()
        const say = async (writer: TestDevice, entriesMax: number) => {
          const sealed = await writer.seal([], false, entriesMax)
          const taken = await twin.sync(writer.id, sealed.document)
          if (!taken.accepted) throw new Error(taken.problem)
          return writer.accept(taken.answer)
        }
        await say(device, 2)
        expect((await twin.pool(LINE)).billedByDevices).toBe(3n)
        // The copy reports the third entry first, as part of a branch; then the chain comes to it as well.
        expect(await say(clone, 3)).toMatchObject({ forked: true })
        expect((await twin.pool(LINE)).billedByDevices).toBe(7n)
        expect(await say(device, 2)).toMatchObject({ outcome: 'FENCED', seq: 3, forked: true })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 15n })
        const entries = await twin.store.read((reader) => reader.edge.entries.of(device.id, 1))
        expect(entries.map(({ n, branch }) => [n, branch])).toEqual([1, 2, 3, 4].map((n) => [n, false]))
        expect((await usage()).map(({ tokens }) => tokens)).toEqual([8n, 4n, 2n, 1n])
        const records = await twin.store.read((reader) => reader.edge.deviceAccounts.ofDevice(device.id))
        expect(records).toMatchObject([{ used: 15n, branchUsed: 0n }])
      })

      it('are not billed for implausible numbers, which would use up the tokens of others', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const clone = device.copy()
        await device.sync()
        clone.state.counters.set(LINE, { granted: 5_000n, used: 0n, refunded: 0n, returned: 0n })
        clone.charge(charge(2_001n))
        expect(await clone.sync()).toMatchObject({ outcome: 'FENCED', forked: true })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 0n })
        expect(await evidence(clone)).toHaveLength(1)
      })

      it('are billed once for a segment that is sent twice', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const clone = device.copy()
        await device.sync()
        clone.charge(charge(10n))
        const sealed = await clone.seal()
        await twin.sync(clone.id, sealed.document)
        await twin.sync(clone.id, sealed.document)
        expect((await twin.pool(LINE)).billedByDevices).toBe(10n)
        expect(await evidence(clone)).toHaveLength(1)
      })

      it('count as contact each time, also when the epoch was fenced before', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const clone = device.copy()
        await device.sync()
        for (const amount of [10n, 20n]) {
          twin.time += DAY
          const other = clone.copy()
          other.charge(charge(amount))
          expect(await other.sync()).toMatchObject({ outcome: 'FENCED', forked: true })
          expect(await epoch(device)).toMatchObject({ fenceReason: 'FORKED', quietSince: twin.time })
          expect(await twin.device(device.id)).toMatchObject({ lastSyncAt: twin.time })
        }
      })

      it('prove forgotten grants only with a segment that follows one that the cloud lacks', async () => {
        const device = await TestDevice.join(twin)
        const clone = device.copy()
        await device.sync([topUpRequest(LINE, 100n)])
        clone.charge(charge(0n))
        expect(await clone.sync()).toMatchObject({ outcome: 'FENCED', forked: true })
        expect(await epoch(device)).toMatchObject({ grantsForgotten: false })
        const { hash } = device.state
        device.state.hash = entryHash(hash, 'a segment that the cloud lacks')
        await device.sync()
        expect(await epoch(device)).toMatchObject({ grantsForgotten: true })
        const [newest] = (await evidence(device)).toSorted((a, b) => b.seq - a.seq)
        expect(newest).toMatchObject({ seq: 2, recordedHash: hash, recordedDocument: expect.any(String) as string })
      })

      it('leave the grants forgotten that the cloud has forgotten before', async () => {
        const device = await TestDevice.join(twin)
        const clone = device.copy()
        await send(device, { ...device.payload(), seq: 9 })
        await device.sync()
        clone.charge(charge(0n))
        expect(await clone.sync()).toMatchObject({ outcome: 'FENCED', forked: true })
        expect(await epoch(device)).toMatchObject({ grantsForgotten: true })
      })

      it('are not billed entries with a broken chain, which stay evidence', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const clone = device.copy()
        await device.sync()
        clone.charge(charge(10n))
        const payload = clone.payload()
        const { entries } = payload
        const taken = await send(clone, { ...payload, entries: { ...entries, head: entryHash(entries.head, 'other') } })
        expect(taken).toMatchObject({ accepted: true, unbilled: { entries: 1 } })
        expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 0n })
        expect(await evidence(clone)).toMatchObject([
          { kind: 'FORK', problem: expect.stringContaining('broken hash chain') as string },
        ])
      })

      it('are detected when a restored device sends a different segment with an old number', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const backup = device.copy()
        for (let n = 0; n < 3; n++) await device.sync()
        expect(await backup.sync()).toMatchObject({ outcome: 'FENCED', forked: true, seq: 4 })
      })

      it('are detected by a segment after the final one', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const clone = device.copy()
        await device.sync([], true)
        clone.charge(charge(10n))
        expect(await clone.sync()).toMatchObject({ outcome: 'FENCED', forked: true })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 10n, billedByDevices: 10n })
      })

      it('get no refund that the other may have already received', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(50n))
        await device.sync()
        const clone = device.copy()
        device.refund(charge(50n))
        clone.refund(charge(50n))
        await device.sync()
        expect(await clone.sync()).not.toHaveProperty('unbilled')
        expect((await twin.pool(LINE)).billedByDevices).toBe(0n)
        expect(await evidence(clone)).toMatchObject([{ kind: 'FORK', problem: 'Not paid: 1 refund.' }])
      })

      it('never sell the same tokens to a third', async () => {
        const device = await TestDevice.join(twin)
        const third = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 900n)])
        const clone = device.copy()
        device.charge(charge(900n))
        clone.charge(charge(900n))
        await device.sync()
        await clone.sync()
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 1_800n, capTarget: 1_000n, capInForce: 1_800n })
        await third.sync([topUpRequest(LINE, 100n, 100n)])
        expect(third.available(LINE)).toBe(0n)
      })
    })

    describe('a twin that was restored from a backup', () => {
      it('asks for the segments that it has forgotten, and bills them when they come', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        const documents: string[] = []
        const forgotten = async () => {
          const sealed = await device.seal()
          documents.push(sealed.document)
          device.state.unacknowledged = null
        }
        device.charge(charge(10n))
        await forgotten()
        device.charge(charge(20n))
        await forgotten()
        const behind = await twin.sync(device.id, documents[1]!)
        if (!behind.accepted) throw new Error(behind.problem)
        expect(await device.accept(behind.answer)).toMatchObject({ outcome: 'BEHIND', seq: 1 })
        for (const document of documents) expect(await twin.sync(device.id, document)).toMatchObject({ accepted: true })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 30n })
      })

      it('bills every segment of an epoch whose number it has given to a copy since, once', async () => {
        const device = await TestDevice.join(twin)
        const clone = device.copy()
        device.state.counters.set(LINE, { granted: 100n, used: 0n, refunded: 0n, returned: 0n })
        const forgotten: string[] = []
        for (const amount of [1n, 2n, 4n, 8n, 16n]) {
          device.charge(charge(amount))
          forgotten.push((await device.seal()).document)
          device.state.unacknowledged = null
        }
        await clone.sync([topUpRequest(LINE, 100n)])
        clone.charge(charge(32n))
        await clone.sync()
        for (const document of [...forgotten, ...forgotten]) {
          const taken = await twin.sync(device.id, document)
          if (!taken.accepted) throw new Error(taken.problem)
          expect(await device.accept(taken.answer)).toMatchObject({ outcome: 'FENCED', forked: true, seq: 2 })
        }
        expect((await twin.pool(LINE)).billedByDevices).toBe(63n)
        expect(await epoch(device)).toMatchObject({ forked: true, grantsForgotten: true, lastSeq: 2 })
      })

      it('accepts use of forgotten grants in a forgotten epoch', async () => {
        const device = await TestDevice.join(twin)
        device.state.epoch = 5
        device.state.counters.set(LINE, { granted: 80n, used: 0n, refunded: 0n, returned: 0n })
        device.charge(charge(80n))
        expect(await device.sync([topUpRequest(LINE, 10n)])).toMatchObject({ outcome: 'MERGED', epoch: 5 })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 90n, billedByDevices: 80n })
        expect(await epoch(device, 1)).toMatchObject({ status: 'FENCED' })
        expect(await twin.device(device.id)).toMatchObject({ epoch: 5 })
      })

      it.each([
        [EPOCHS_FORGOTTEN_MAX, true],
        [EPOCHS_FORGOTTEN_MAX + 1, false],
      ])('with an epoch %i above the newest one that it knows, believes it: %s', async (more, accepted) => {
        const device = await TestDevice.join(twin)
        device.state.epoch += more
        expect(await send(device, { ...device.payload(), seq: 2 })).toMatchObject({ accepted })
        expect((await epoch(device)) !== undefined).toBe(accepted)
        expect(await twin.device(device.id)).toMatchObject({ epoch: accepted ? 1 + more : 1 })
      })

      it('restores a forgotten epoch as fenced if it knows a later one', async () => {
        const device = await TestDevice.join(twin)
        device.state.epoch = 5
        const late = device.copy()
        await device.sync()
        late.state.epoch = 3
        late.state.counters.set(LINE, { granted: 80n, used: 0n, refunded: 0n, returned: 0n })
        late.charge(charge(80n))
        expect(await late.sync()).toMatchObject({ outcome: 'FENCED', epoch: 3, forked: false })
        const known = { status: 'FENCED', fenceReason: 'SUPERSEDED', grantsForgotten: true, lastSeq: 1 }
        expect(await epoch(device, 3)).toMatchObject(known)
        expect(await epoch(device, 5)).toMatchObject({ status: 'ACTIVE' })
        expect(await twin.device(device.id)).toMatchObject({ epoch: 5 })
      })

      it('refuses more use than the account can have granted, and leaves the device unchanged', async () => {
        const device = await TestDevice.join(twin)
        await device.sync()
        const sealed = await device.seal()
        device.state.unacknowledged = null
        device.state.counters.set(LINE, { granted: 9_000n, used: 0n, refunded: 0n, returned: 0n })
        device.charge(charge(2_001n))
        const late = await device.seal()
        await twin.sync(device.id, late.document)
        await twin.sync(device.id, sealed.document)
        await expect(twin.sync(device.id, late.document)).rejects.toMatchObject({
          code: 'GRANTS_FORGOTTEN',
          httpStatus: 503,
        })
        expect(await epoch(device)).toMatchObject({ status: 'ACTIVE', rejected: false, lastSeq: 2 })
        // Once the administrator has entered again what was changed since the backup, it is billed.
        await twin.setLineItem('ACT-1', { quantity: 2_000n })
        expect(await twin.sync(device.id, late.document)).toMatchObject({ accepted: true })
        expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 2_001n })
      })

      it('refuses an implausibly high epoch', async () => {
        const device = await TestDevice.join(twin)
        device.state.epoch = Number.MAX_SAFE_INTEGER
        const sealed = await device.seal()
        expect(await twin.sync(device.id, sealed.document)).toMatchObject({ accepted: false })
      })
    })

    describe('a segment with wrong contents', () => {
      it('is refused with another signature', async () => {
        const device = await TestDevice.join(twin)
        const stranger = await newDeviceKeys()
        const sealed = await device.sealAs(device.payload(), stranger.signer)
        expect(await twin.sync(device.id, sealed.document)).toMatchObject({
          accepted: false,
          problem: 'The segment is not signed by this device.',
        })
        expect(await epoch(device)).toMatchObject({ status: 'ACTIVE', rejected: false })
      })

      it('is refused when it is of another device', async () => {
        const [device, other] = [await TestDevice.join(twin), await TestDevice.join(twin)]
        expect(await send(device, { ...device.payload(), deviceId: other.id })).toMatchObject({ accepted: false })
      })

      const honest = async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(30n))
        const payload = device.payload()
        assertSegment(payload)
        return { device, payload }
      }

      type Lie = (payload: SegmentWire) => SegmentWire
      const counted = (change: Partial<SegmentWire['counters'][number]>): Lie => {
        return (payload) => ({ ...payload, counters: payload.counters.map((counter) => ({ ...counter, ...change })) })
      }
      const lies: [string, Lie][] = [
        ['counts less than its entries', counted({ used: '29' })],
        ['counts more than its entries', counted({ used: '31' })],
        ['has refunded what no entry refunds', counted({ refunded: '1' })],
        ['returns more than it has', counted({ returned: '71' })],
        ['names no counter for its entries', (payload) => ({ ...payload, counters: [] })],
        ['names a counter twice', (payload) => ({ ...payload, counters: [...payload.counters, ...payload.counters] })],
        ['names an account of another instance', counted({ account: lineAccount(OTHER_INSTANCE, 'ACT-1', 0) })],
        ['names an invalid account', counted({ account: 'line/x' })],
        ['leaves out an entry', (payload) => ({ ...payload, entries: { ...payload.entries, bodies: [] } })],
        ['numbers its entries anew', (payload) => ({ ...payload, entries: { ...payload.entries, first: 7 } })],
        [
          'continues another chain of entries',
          (payload) => ({ ...payload, entries: { ...payload.entries, previousHash: 'a'.repeat(64) } }),
        ],
        ['ends in another head', (payload) => ({ ...payload, entries: { ...payload.entries, head: 'a'.repeat(64) } })],
      ]
      it.each(lies)('changes no balance and fences the epoch when it %s', async (_name, lie) => {
        const { device, payload } = await honest()
        const lied = lie(payload)
        const answer = await send(device, lied)
        expect(answer).toMatchObject({ accepted: false })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 0n })
        expect(await epoch(device)).toMatchObject({
          status: 'FENCED',
          fenceReason: 'REJECTED',
          rejected: true,
          lastSeq: 1,
        })
        expect(await evidence(device)).toMatchObject([{ kind: 'REJECTED', seq: 2 }])
        expect(await usage()).toEqual([])
        // The honest one still counts, and earns nothing any more.
        expect(await send(device, payload)).toMatchObject({ accepted: true })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 30n })
      })

      const malformed: [string, (payload: SegmentWire) => unknown][] = [
        ['is empty', () => ({})],
        ['is no object', () => 7],
        ['has a field that there is not', (payload) => ({ ...payload, more: 1 })],
        ['has a negative counter', counted({ used: '-1' })],
        ['has a counter beyond 64 bits', counted({ used: '9223372036854775808' })],
        [
          'has a counter that is no text',
          (payload) => ({ ...payload, counters: [{ ...payload.counters[0], used: 1 }] }),
        ],
        ['has the number 0', (payload) => ({ ...payload, seq: 0 })],
        ['has a number beyond what is exact', (payload) => ({ ...payload, seq: 2 ** 53 })],
        ['has an entry that is no JSON', (payload) => ({ ...payload, entries: { ...payload.entries, bodies: ['{'] } })],
        ['has an entry without a form', (payload) => ({ ...payload, entries: { ...payload.entries, bodies: ['{}'] } })],
        [
          'has an entry with a count that is no number',
          (payload) => ({
            ...payload,
            entries: {
              ...payload.entries,
              bodies: payload.entries.bodies.map((body) => body.replace('"count":"1"', '"count":"many"')),
            },
          }),
        ],
        [
          'has more entries than a segment may have',
          (payload) => ({ ...payload, entries: { ...payload.entries, bodies: Array<string>(1_001).fill('{}') } }),
        ],
        [
          'wants more accounts than a segment may name',
          (payload) => ({
            ...payload,
            topUpRequests: Array(20_001).fill({ account: LINE, atLeast: '0', wanted: '1' }),
          }),
        ],
      ]
      it.each(malformed)('is refused and changes nothing when it %s', async (_name, change) => {
        const { device, payload } = await honest()
        expect(await send(device, change(payload) as SegmentWire)).toMatchObject({ accepted: false })
        expect(await epoch(device)).toMatchObject({ status: 'ACTIVE', lastSeq: 1 })
        expect(await send(device, payload)).toMatchObject({ accepted: true })
      })

      it('is refused when its metered use is absurd, so that use of other devices is billed', async () => {
        await twin.setLineItem('ACT-1', { quantity: 10n, overdraft: 'UNLIMITED' })
        const spend = async (amount: bigint, known?: TestDevice) => {
          const device = known ?? (await TestDevice.join(twin))
          await device.sync([topUpRequest(LINE, 1n)])
          device.record({
            kind: 'access',
            items: [
              {
                item: 'x',
                version: '',
                count: '1',
                outcome: 'GRANTED',
                total: String(amount),
                parts: [{ lineItemId: 'ACT-1', rate: '1', actionId: null, charged: String(amount) }],
              },
            ],
            postings: [{ account: LINE, amount: String(amount) }],
          })
          device.state.counters.set(LINE, { granted: 0n, used: amount, refunded: 0n, returned: 0n })
          device.state.changed.add(LINE)
          return send(device, device.payload())
        }
        const problem = 'MORE_SPENT_THAN_GRANTED'
        for (const absurd of [2n ** 63n - 1n, METERED_MAX + 1n])
          expect(await spend(absurd)).toMatchObject({ accepted: false, details: { problem } })
        expect(await spend(50n)).toMatchObject({ accepted: true })
        expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 50n })
        const beyond = { accepted: false, details: { problem: 'AMOUNT_IMPLAUSIBLE' } }
        // Not one device in many epochs.
        const device = await TestDevice.join(twin)
        for (let n = 0; n < 4; n += 1) {
          expect(await spend(METERED_MAX, device)).toMatchObject({ accepted: true })
          await device.attach()
        }
        expect(await spend(METERED_MAX, device)).toMatchObject(beyond)
        // The counter of the pool has space for several devices that have used as much as they can.
        for (let n = 4; n < 15; n += 1) expect(await spend(METERED_MAX)).toMatchObject({ accepted: true })
        expect(await spend(METERED_MAX)).toMatchObject(beyond)
      })
    })

    describe('the undelivered range', () => {
      async function successor(old: TestDevice) {
        const { deliver } = await successorOf(old)
        return {
          deliver: (undeliveredRange: SegmentWire['undeliveredRange']) =>
            deliver(undeliveredRange, [topUpRequest(LINE, 10n)]),
        }
      }

      it('of a restored device is billed against its old epoch, beside the use of the other history', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(20n))
        await device.sync()
        const restored = device.copy()
        device.charge(charge(60n))
        await device.sync()
        restored.charge(charge(70n))
        const { deliver } = await successor(restored)
        // The first entry was acknowledged before the backup was taken: it is known by its hash, and billed no second time.
        expect(await deliver(restored.undeliveredRange())).toMatchObject({ outcome: 'MERGED', epoch: 2 })
        expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 150n, grantedOut: 160n, capInForce: 1_000n })
        const records = await twin.store.read((reader) => reader.edge.deviceAccounts.ofDevice(device.id))
        expect(records).toMatchObject([
          { epoch: 1, granted: 100n, used: 80n, branchUsed: 70n },
          { epoch: 2, granted: 10n, used: 0n, branchUsed: 0n },
        ])
        const entries = await twin.store.read((reader) => reader.edge.entries.of(device.id, 1))
        expect(entries.map(({ n, branch }) => [n, branch])).toEqual([
          [1, false],
          [2, false],
          [2, true],
        ])
        expect((await usage())[0]).toMatchObject({ tokens: 70n, source: { epoch: 1, entry: 2 } })
        expect(await evidence(device)).toMatchObject([{ kind: 'UNDELIVERED_RANGE', epoch: 1, problem: null }])
      })

      it('is billed once, however often, from any copy and in any parts it arrives', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        for (const amount of [1n, 2n, 4n, 8n]) device.charge(charge(amount))
        const third = device.copy()
        const one = await successor(device)
        await one.deliver(device.undeliveredRange(1, 2))
        await one.deliver(device.undeliveredRange(2, 4))
        const two = await successor(third)
        third.charge(charge(16n))
        await two.deliver(third.undeliveredRange(1, 5))
        await two.deliver(device.undeliveredRange())
        expect((await twin.pool(LINE)).billedByDevices).toBe(31n)
        expect((await usage()).map(({ tokens }) => tokens)).toEqual([16n, 8n, 4n, 2n, 1n])
      })

      it('becomes part of the chain when the chain reaches the same entries', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        for (const amount of [1n, 2n]) device.charge(charge(amount))
        const { deliver } = await successor(device)
        await deliver(device.undeliveredRange(1, 1))
        expect(await device.sync([], true)).toMatchObject({ outcome: 'FENCED', closed: true })
        expect((await twin.pool(LINE)).billedByDevices).toBe(3n)
        const records = await twin.store.read((reader) => reader.edge.deviceAccounts.ofDevice(device.id))
        expect(records[0]).toMatchObject({ used: 3n, branchUsed: 0n, returned: 97n })
      })

      it('never makes the cloud refuse its segment: contradictions are kept as evidence, unbilled', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        for (const amount of [1n, 2n]) device.charge(charge(amount))
        const { deliver } = await successor(device)
        const whole = device.undeliveredRange()
        const broken = { ...whole, entries: { ...whole.entries, head: 'a'.repeat(64) } }
        expect(await deliver(broken)).toMatchObject({ outcome: 'MERGED' })
        const unreadable = { ...device.undeliveredRange(1, 1) }
        const bodies = ['{"n":1}']
        const head = entryHash(CHAIN_START, '{"n":1}')
        const strange = { ...unreadable, entries: { first: 1, previousHash: CHAIN_START, head, bodies } }
        expect(await deliver(strange)).toMatchObject({ outcome: 'MERGED' })
        expect((await twin.pool(LINE)).billedByDevices).toBe(0n)
        const problems = (await evidence(device)).map(({ problem }) => problem)
        expect(problems.toSorted()).toEqual([
          'Not billed: 1 entry (unreadable).',
          'Not billed: 2 entries (broken hash chain).',
        ])
        await deliver(whole)
        expect((await twin.pool(LINE)).billedByDevices).toBe(3n)
      })

      it('of an epoch that is not before this one is kept as evidence, unbilled', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(5n))
        const { deliver } = await successor(device)
        expect(await deliver({ ...device.undeliveredRange(), epoch: 2 })).toMatchObject({ unbilled: 1 })
        expect(await deliver({ ...device.undeliveredRange(), epoch: 9 })).toMatchObject({ unbilled: 1 })
        expect((await twin.pool(LINE)).billedByDevices).toBe(0n)
        const problem = 'Not billed: 1 entry (of an epoch that is not before the current one).'
        expect(await evidence(device)).toMatchObject([{ problem }, { problem }])
      })
    })

    describe('a segment that was refused', () => {
      it('gets a signed answer, and its entries are billed as an undelivered range, with the next epoch', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge(charge(5n))
        const lie = { ...device.payload(), counters: [{ account: LINE, used: '4', refunded: '0', returned: '0' }] }
        const sealed = await device.sealAs(lie)
        const refused = await twin.sync(device.id, sealed.document)
        expect(refused).toMatchObject({ accepted: false, answer: expect.any(String) as string })
        if (refused.accepted || refused.answer === undefined) throw new Error('it was taken')
        expect(await device.accept(refused.answer)).toMatchObject({
          outcome: 'REJECTED',
          hash: sealed.hash,
          problem: 'COUNTERS_DO_NOT_FIT_ENTRIES',
        })
        const old = device.copy()
        await device.attach()
        const again = await device.sealAs({ ...device.payload(), undeliveredRange: old.undeliveredRange() })
        expect(await twin.sync(device.id, again.document)).toMatchObject({ accepted: true })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n, billedByDevices: 5n })
      })
    })

    it('of an invented allocation creates no account', async () => {
      const device = await TestDevice.join(twin)
      await device.sync([topUpRequest(LINE, 100n)])
      const invented = actionAccount(INSTANCE, 'ACT-1', 'invented')
      device.state.unlimited.add(invented)
      const both = { ...charge(5n), accounts: [LINE, invented] }
      device.charge(both)
      device.refund(both)
      const refused = await twin.sync(device.id, (await device.seal()).document)
      const details = { problem: 'MORE_SPENT_THAN_GRANTED', account: invented }
      expect(refused).toMatchObject({ accepted: false, details })
      const records = await twin.store.read((reader) => reader.edge.deviceAccounts.ofDevice(device.id))
      expect(records.map(({ account }) => account)).toEqual([LINE])
      expect(await twin.store.read((reader) => reader.accounts.get([invented]))).toEqual(new Map())
    })

    describe('use above the grants, after an edit of the ledger', () => {
      const overspent = async (amounts: readonly bigint[]) => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 950n)])
        device.state.unlimited.add(LINE)
        for (const amount of amounts) expect(device.charge(charge(amount))).toBe(true)
        const refused = await twin.sync(device.id, (await device.seal()).document)
        expect(refused).toMatchObject({ accepted: false, details: { problem: 'MORE_SPENT_THAN_GRANTED' } })
        return device
      }

      it.each([
        ['many small charges', Array.from({ length: 100 }, () => 70n)],
        ['few large ones', Array.from({ length: 10 }, () => 704n)],
        ['one', [7_040n]],
      ])('is billed up to the grant at once and shown; %s that follow never bill it twice', async (_what, amounts) => {
        const device = await overspent(amounts)
        const sum = amounts.reduce((all, each) => all + each, 0n)
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 950n, billedByDevices: 950n })
        const tokens = formatMicro(sum)
        expect(await evidence(device)).toMatchObject([
          { problem: `MORE_SPENT_THAN_GRANTED: ${tokens} tokens used of 0.00095 granted of ${LINE}.` },
        ])
        expect(await epoch(device)).toMatchObject({ status: 'FENCED', fenceReason: 'REJECTED', settlement: 'CHARGED' })
        const { deliver } = await successorOf(device)
        await deliver(device.undeliveredRange(1, amounts.length, true))
        const [first = 0n] = amounts
        // What copies could have used is billed by its entries, in whole entries.
        const billed = first > 1_950n ? 950n : (1_960n / first) * first
        const { billedByDevices } = await twin.pool(LINE)
        expect(billedByDevices).toBe(billed > 950n ? billed : 950n)
        const lines = (await usage()).reduce((all, { tokens: each }) => all + each, 0n)
        expect(lines).toBe(billedByDevices)
        twin.time += 31 * DAY
        await twin.settle()
        expect((await twin.pool(LINE)).billedByDevices).toBe(billedByDevices)
      })
    })

    describe('evidence against one epoch', () => {
      /** As if so much had been kept before. */
      const keep = (device: TestDevice, segments: number, bytes: number) =>
        twin.store.transaction(async (tx) => {
          for (let n = 0; n < segments; n += 1) {
            await tx.edge.evidence.keep({
              deviceId: device.id,
              epoch: 1,
              kind: 'REJECTED',
              seq: 1,
              hash: `kept-${n}`,
              recordedHash: null,
              recordedDocument: null,
              problem: null,
              document: 'x'.repeat(bytes),
              receivedAt: START - 1,
            })
          }
        })
      const kept = (device: TestDevice, number = 1) =>
        twin.store.read((reader) => reader.edge.evidence.size(device.id, number))

      it.each([
        ['segments', EVIDENCE_SEGMENTS_MAX - 1, 1],
        ['bytes', 4, EVIDENCE_BYTES_MAX / 4 - 250],
      ])('has a limit of %s: the first is kept, and each is answered all the same', async (_what, segments, bytes) => {
        const device = await TestDevice.join(twin)
        await keep(device, segments, bytes)
        const sent: string[] = []
        for (let n = 0; n < 3; n += 1) {
          const lie = { ...device.payload(), counters: [{ account: LINE, used: '4', refunded: '0', returned: '0' }] }
          const sealed = await device.sealAs(lie)
          sent.push(sealed.hash)
          const refused = await twin.sync(device.id, sealed.document)
          if (refused.accepted || refused.answer === undefined) throw new Error('it was taken')
          expect(await device.accept(refused.answer)).toMatchObject({ outcome: 'REJECTED', hash: sealed.hash })
        }
        expect(await kept(device)).toMatchObject({ segments: segments + 1 })
        expect((await kept(device)).bytes).toBeLessThanOrEqual(EVIDENCE_BYTES_MAX)
        expect((await evidence(device)).map(({ hash }) => hash)).toContain(sent[0])
      })

      it.each([
        ['segments', EVIDENCE_OF_DEVICE_SEGMENTS_MAX, 1],
        ['bytes', 4, EVIDENCE_OF_DEVICE_BYTES_MAX / 4],
      ])('has a limit of %s for all epochs of the device together', async (_what, segments, bytes) => {
        const device = await TestDevice.join(twin)
        await keep(device, segments, bytes)
        await device.attach()
        const lie = { ...device.payload(), counters: [{ account: LINE, used: '4', refunded: '0', returned: '0' }] }
        const refused = await twin.sync(device.id, (await device.sealAs(lie)).document)
        if (refused.accepted || refused.answer === undefined) throw new Error('it was taken')
        expect(await device.accept(refused.answer)).toMatchObject({ outcome: 'REJECTED' })
        expect(await kept(device, device.state.epoch)).toMatchObject({ segments: 0 })
      })

      it('does not count evidence of other epochs, and reports unbilled entries that it does not keep', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        await keep(device, EVIDENCE_SEGMENTS_MAX, 1)
        device.charge(charge(5n))
        const { next, deliver } = await successorOf(device)
        const undeliveredRange = device.undeliveredRange()
        expect(
          await deliver({ ...undeliveredRange, entries: { ...undeliveredRange.entries, head: CHAIN_START } }),
        ).toMatchObject({
          outcome: 'MERGED',
          unbilled: 1,
        })
        expect(await kept(device)).toMatchObject({ segments: EVIDENCE_SEGMENTS_MAX })
        expect(await deliver({ ...undeliveredRange, epoch: next.state.epoch })).toMatchObject({ unbilled: 1 })
        expect(await kept(device, next.state.epoch)).toMatchObject({ segments: 1 })
      })
    })

    describe('a revoked device', () => {
      it('gets no response, and its tokens stay reserved', async () => {
        const device = await TestDevice.join(twin)
        await device.sync([topUpRequest(LINE, 100n)])
        await revokeDevice(twin, device.id)
        await expect(device.sync()).rejects.toMatchObject({ code: 'DEVICE_REVOKED' })
        await expect(device.attach()).rejects.toMatchObject({ code: 'DEVICE_REVOKED' })
        expect(await twin.pool(LINE)).toMatchObject({ grantedOut: 100n })
        expect(await epoch(device)).toMatchObject({ status: 'FENCED', fenceReason: 'REVOKED' })
      })
    })
  })
}
