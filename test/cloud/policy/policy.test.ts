import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { actionAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { decimal } from '../../../src/core/pricing/amount.ts'
import { periodAt } from '../../../src/core/rules/compile.ts'
import { setCloudReserve } from '../../../src/cloud/policy/cloud-reserve.ts'
import { TOLERANCE_MS } from '../../../src/core/rules/policy.ts'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import { appendActions, removeActions, replaceActions } from '../../../src/cloud/service-api/change-actions.ts'
import {
  createConditions,
  deleteConditions,
  patchConditions,
} from '../../../src/cloud/service-api/change-conditions.ts'
import { changeConfiguration } from '../../../src/cloud/service-api/change-configuration.ts'
import { createRateTable, deleteRateTable } from '../../../src/cloud/service-api/change-rate-tables.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import { deleteLineItem } from '../../../src/cloud/service-api/delete-line-item.ts'
import { Policies, reserveOf } from '../../../src/cloud/policy/load-policy.ts'
import { mapLineItem } from '../../../src/cloud/service-api/map-line-item.ts'
import { type RuleDeps, renewDuePolicy } from '../../../src/cloud/policy/bump-policy-revision.ts'
import { removeConsumptionLimit, setConsumptionLimit } from '../../../src/cloud/service-api/set-consumption-limit.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import type { LineItemBody } from '../../../src/protocol/service/line-items.ts'
import { policyOf, policyDocument, policyToWire } from '../../../src/protocol/edge/policy-document.ts'

const NOW = Date.UTC(2026, 4, 6)
const DAY = 86_400_000
const [ONE, TWO] = ['11111111-1111-4111-8111-111111111111', '22222222-2222-4222-8222-222222222222']

let folder: string
let store: Store
let deps: RuleDeps
let policies: Policies
let ids = 0
const newId = (): string => `00000000-0000-4000-8000-${String((ids += 1)).padStart(12, '0')}`

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'tallygate-policy-'))
  store = openSqliteStore({ path: join(folder, 'twin.db'), check: false, onBroken: () => undefined })
  deps = { store, newId }
  policies = new Policies({ max: 10, undecidedClock: 'allow' })
  for (const id of [ONE, TWO]) await createInstance(store, { id, shortName: 's', accountId: id }, NOW)
})
afterEach(async () => {
  await store.close()
  rmSync(folder, { recursive: true, force: true })
})

const lineItem = (change: Partial<LineItemBody> = {}, attributes: LineItemBody['attributes'] = {}): LineItemBody => ({
  activationId: 'A',
  state: 'DEPLOYED',
  quantity: 100,
  start: NOW - DAY,
  end: NOW + 400 * DAY,
  attributes: { elastic: true, ...attributes },
  ...change,
})

const revisionOf = async (id: string): Promise<number | undefined> =>
  (await store.read((reader) => reader.policyRevisions.get(id)))?.revision

/** Change notifications that wait, and then no more. */
const notifications = () =>
  store.transaction(async (tx) => {
    const messages = await tx.outbox.claim(1000, NOW, NOW)
    await tx.outbox.remove(messages.map(({ id }) => id))
    return messages.map(({ notification }) =>
      notification.kind === 'policy' ? `${notification.instanceId} ${notification.revision}` : notification.kind,
    )
  })

describe('every change of the rules', () => {
  it('raises the revision of its instance by one, and leaves a change notification', async () => {
    expect(await notifications()).toEqual([`${ONE} 1`, `${TWO} 1`])
    const place = { instanceId: ONE, lineItemId: 'A' }
    const condition = { operator: 'IN', property: 'p', values: ['v'] } as const
    const changes: (() => Promise<unknown>)[] = [
      () => mapLineItem(store, ONE, lineItem(), NOW),
      () => mapLineItem(store, ONE, lineItem({ quantity: 5 }), NOW),
      () => createConditions(deps, ONE, [condition], NOW),
      () => patchConditions(deps, ONE, [condition], NOW),
      () => appendActions(deps, place, [{ action: 'ALLOW' }], NOW),
      () => replaceActions(deps, place, [], NOW),
      () => removeActions(store, place, NOW),
      () => deleteConditions(store, ONE, NOW),
      () => setConsumptionLimit(store, place, { limit: 5n, frequency: 'DAILY', nextReset: NOW + 1 }, NOW),
      () => removeConsumptionLimit(store, place, NOW),
      () => mapLineItem(store, ONE, lineItem({ state: 'OBSOLETE' }), NOW),
      () => deleteLineItem(store, ONE, 'A', NOW),
    ]
    for (const [index, change] of changes.entries()) {
      await change()
      expect(await revisionOf(ONE)).toBe(index + 2)
      expect(await notifications()).toEqual([`${ONE} ${index + 2}`])
    }
    expect(await revisionOf(TWO)).toBe(1)
  })

  it('that all instances share bumps the revision of each', async () => {
    const body = { version: '1', effectiveFrom: NOW + 1, items: [{ name: 'P', version: '', rate: decimal(1) }] }
    await createRateTable(store, body, NOW)
    await deleteRateTable(store, '', '1', NOW)
    await changeConfiguration(store, [{ name: 'timezone.tolerant', value: 'true' }], 'k', NOW)
    await changeConfiguration(store, [{ name: 'session.charge.period', value: 'PT2H' }], 'k', NOW)
    expect([await revisionOf(ONE), await revisionOf(TWO)]).toEqual([5, 5])
    expect(await notifications()).toHaveLength(2)
  })

  it('that leaves them as they are does not bump the revision', async () => {
    const condition = { operator: 'IN', property: 'p', values: ['v'] } as const
    await createConditions(deps, ONE, [condition], NOW)
    await notifications()
    const [stored] = await store.read((reader) => reader.conditions.list(ONE))
    await patchConditions(deps, ONE, [{ ...condition, id: stored?.id }], NOW)
    await mapLineItem(store, ONE, lineItem({ state: 'OBSOLETE' }), NOW)
    await expect(deleteRateTable(store, 'no', '1', NOW)).rejects.toMatchObject({ code: 'NOT_FOUND' })
    await changeConfiguration(store, [{ name: 'timezone.tolerant', value: 'false' }], 'k', NOW)
    await changeConfiguration(store, [{ name: 'session.charge.period', value: 'PT1H' }], 'k', NOW)
    expect(await revisionOf(ONE)).toBe(2)
    expect(await notifications()).toEqual([])
  })
})

describe('the policy of an instance', () => {
  const load = async (id = ONE, now = NOW) => {
    const loaded = await store.transaction((tx) => policies.lockShared(tx, id, now))
    if (loaded === undefined) throw new Error('there is no policy')
    return loaded
  }

  it('contains the configuration in the form that devices accept', async () => {
    await mapLineItem(
      store,
      ONE,
      lineItem({}, { rateTableSeries: 'S', overdraftType: 'Number', overdraftLimit: 7 }),
      NOW,
    )
    await mapLineItem(store, ONE, lineItem({ activationId: 'B' }, { overdraftType: 'Unlimited' }), NOW)
    const condition = {
      name: 'c',
      operator: 'NOT',
      condition: { operator: 'IN', property: 'p', values: ['v'] },
    } as const
    const [made] = await createConditions(deps, ONE, [condition], NOW)
    const place = { instanceId: ONE, lineItemId: 'A' }
    await appendActions(deps, place, [{ action: 'ALLOW', conditionId: made?.id, allocation: 5_000_000n }], NOW)
    await setConsumptionLimit(
      store,
      { instanceId: ONE, lineItemId: 'B' },
      { limit: 9n, frequency: 'DAILY', nextReset: NOW + 1 },
      NOW,
    )
    const items = [{ name: 'P', version: '1', rate: decimal('0.125') }]
    await createRateTable(store, { series: 'S', version: '1', effectiveFrom: 0, items }, NOW)
    const { policy, revision, accountId } = await load()
    expect([revision, accountId, policy.revision]).toEqual([7, ONE, 7])
    expect(policy.lineItems).toMatchObject([
      {
        id: 'A',
        rateTableSeries: 'S',
        quantity: 100_000_000n,
        overdraft: 7_000_000n,
        actions: [{ effect: 'ALLOW', conditionId: made?.id, allocation: 5_000_000n }],
        consumptionLimit: null,
      },
      { id: 'B', rateTableSeries: '', overdraft: 'UNLIMITED', actions: [], consumptionLimit: { limit: 9n } },
    ])
    const terms = {
      instanceName: 'Test',
      issuedAt: NOW,
      usableForMs: 1,
      grantHorizonMs: 1,
      trustedKeys: [{ kty: 'OKP', crv: 'Ed25519', x: 'x' } as const],
    }
    const wire: unknown = JSON.parse(JSON.stringify(policyToWire(policy, terms)))
    const received = policyOf(policyDocument.parse(wire))
    expect(received.lineItems).toEqual(policy.lineItems)
    expect(received.rateTables).toEqual(policy.rateTables)
    expect(received.conditions).toMatchObject([{ id: made?.id, name: 'c', operator: 'NOT' }])
  })

  it('tolerates time zones only if that is configured', async () => {
    await changeConfiguration(store, [{ name: 'session.charge.period', value: 'PT2H' }], 'k', NOW)
    expect((await load()).policy.timezoneTolerant).toBe(false)
    await changeConfiguration(store, [{ name: 'timezone.tolerant', value: 'true' }], 'k', NOW)
    expect((await load()).policy.timezoneTolerant).toBe(true)
    await changeConfiguration(store, [{ name: 'timezone.tolerant', value: 'false' }], 'k', NOW)
    expect((await load()).policy.timezoneTolerant).toBe(false)
  })

  it('counts imported use towards the reserve of a line item in the period of its revision only', async () => {
    await mapLineItem(store, ONE, lineItem({}, { resetFrequency: 'DAILY' }), NOW)
    await mapLineItem(store, ONE, lineItem({ activationId: 'B' }), NOW)
    const { policy } = await load()
    const later = NOW + 2 * DAY
    const [earlier, current] = [NOW, later].map((at) => {
      const period = periodAt(policy.lineItems[0]?.periods ?? [], at)
      return lineAccount(ONE, 'A', period?.index ?? NaN)
    }) as [string, string]
    const other = lineAccount(ONE, 'B', policy.lineItems[1]?.periods[0]?.index ?? NaN)
    const use = [earlier, current, other].map((account, index) => [account, BigInt(index + 1)] as const)
    await store.transaction(async (tx) => {
      await tx.accounts.open(use.map(([account]) => ({ account, cap: 100n })))
      await tx.importedUse.save(new Map(use))
    })
    const reserve = (tokens: bigint) =>
      setCloudReserve({ store, policies, now: () => later }, { instanceId: ONE, lineItemId: 'A', tokens })
    await reserve(5n)
    const loaded = await load(ONE, later)
    expect(loaded.importedUse).toEqual(new Map([[current, 2n]]))
    const accounts = [earlier, current, other, actionAccount(ONE, 'A', 'x')]
    expect(accounts.map((account) => reserveOf(account, loaded))).toEqual([5n, 7n, 0n, 0n])
    await reserve(0n)
    expect(reserveOf(current, await load(ONE, later))).toBe(0n)
  })

  it('is compiled once for each revision', async () => {
    await mapLineItem(store, ONE, lineItem(), NOW)
    const first = await load()
    expect(await load()).toBe(first)
    await mapLineItem(store, ONE, lineItem({ quantity: 5 }), NOW)
    const second = await load()
    expect(second).not.toBe(first)
    expect(second.lineItems.get('A')?.quantity).toBe(5_000_000n)
  })

  it('is not kept when the transaction that carried its calendar on was rolled back', async () => {
    await mapLineItem(store, ONE, lineItem({}, { resetFrequency: 'DAILY' }), NOW)
    const later = NOW + 40 * DAY
    const rolledBack = store.transaction(async (tx) => {
      expect((await policies.lockShared(tx, ONE, later))?.revision).toBe(3)
      throw new Error('on purpose')
    })
    await expect(rolledBack).rejects.toThrow('on purpose')
    await mapLineItem(store, ONE, lineItem({ quantity: 5 }), NOW)
    const loaded = await load()
    expect([loaded.revision, loaded.lineItems.get('A')?.quantity]).toEqual([3, 5_000_000n])
  })

  it('is bumped once when its calendar is due, though another node has loaded it before', async () => {
    const other = new Policies({ max: 10, undecidedClock: 'allow' })
    await mapLineItem(store, ONE, lineItem({}, { resetFrequency: 'DAILY' }), NOW)
    await load()
    const later = NOW + 40 * DAY
    const byOther = await store.transaction((tx) => other.lockSomeShared(tx, [ONE], later))
    expect([byOther.get(ONE)?.revision, (await load(ONE, later)).revision]).toEqual([3, 3])
  })

  it('has one revision in a transaction that carries its calendar on, however often it is loaded there', async () => {
    await mapLineItem(store, ONE, lineItem({}, { resetFrequency: 'DAILY' }), NOW)
    await load()
    const later = NOW + 40 * DAY
    const revisions = await store.transaction(async (tx) => {
      const first = await policies.lockShared(tx, ONE, later)
      const all = await policies.lockSomeShared(tx, [TWO, ONE], later)
      return [first, all.get(ONE), all.get(TWO), await policies.of(tx, ONE)].map((loaded) => loaded?.revision)
    })
    expect(revisions).toEqual([3, 3, 1, 3])
    expect((await load(ONE, later)).revision).toBe(3)
  })

  it.each([5, 500])(
    'caps the present period at %i tokens that were set while the clock was ahead',
    async (quantity) => {
      const daily = { resetFrequency: 'DAILY' } as const
      await mapLineItem(store, ONE, lineItem({}, daily), NOW)
      const { lineItems } = await load()
      const present = periodAt(lineItems.get('A')?.periods ?? [], NOW)?.index
      const account = lineAccount(ONE, 'A', present ?? NaN)
      await store.transaction((tx) => tx.accounts.open([{ account, cap: 100_000_000n }]))
      await mapLineItem(store, ONE, lineItem({ quantity }, daily), NOW + 50 * DAY)
      const { bumpedAt } = await load()
      const pools = await store.read((reader) => reader.accounts.get([account]))
      expect([bumpedAt, pools.get(account)?.capTarget]).toEqual([NOW, BigInt(quantity) * 1_000_000n])
    },
  )

  it('does not exist for an unknown instance', async () => {
    const unknown = '33333333-3333-4333-8333-333333333333'
    const [one, all, read] = await store.transaction(async (tx) => [
      await policies.lockShared(tx, unknown, NOW),
      await policies.lockSomeShared(tx, [unknown, TWO], NOW),
      await policies.of(tx, unknown),
    ])
    expect([one, [...(all as ReadonlyMap<string, unknown>).keys()], read]).toEqual([undefined, [TWO], undefined])
  })

  it('leaves out rate tables that were superseded long ago, and keeps the future ones', async () => {
    const items = [{ name: 'P', version: '', rate: decimal(1) }]
    // Each series by itself, in whatever sequence its tables were created.
    for (const [version, days, series] of [
      ['current', -10, ''],
      ['old', -90, ''],
      ['before', -60, ''],
      ['of another series', -80, 'S'],
      ['next', 10, ''],
    ] as const) {
      await createRateTable(store, { series, version, effectiveFrom: NOW + days * DAY, items }, NOW)
    }
    const versions = (await load()).policy.rateTables.map(({ version }) => version)
    expect(versions).toEqual(['current', 'before', 'of another series', 'next'])
  })

  it('forgets the instance that was used longest ago when there are too many', async () => {
    policies = new Policies({ max: 1, undecidedClock: 'allow' })
    const one = await load(ONE)
    await load(TWO)
    expect(await load(ONE)).not.toBe(one)
  })

  it('has its calendars extended before they end, by any request', async () => {
    await mapLineItem(store, ONE, lineItem({}, { resetFrequency: 'DAILY' }), NOW)
    await mapLineItem(store, TWO, lineItem({}, { resetFrequency: 'YEARLY' }), NOW)
    const later = NOW + 32 * DAY
    expect(await store.transaction((tx) => renewDuePolicy(tx, NOW + 20 * DAY))).toBe(false)
    expect(await store.transaction((tx) => renewDuePolicy(tx, later))).toBe(true)
    expect(await store.transaction((tx) => renewDuePolicy(tx, later))).toBe(false)
    expect([await revisionOf(ONE), await revisionOf(TWO)]).toEqual([3, 2])
    const { policy } = await load(ONE, later)
    expect(policy.lineItems[0]?.periods.at(-1)?.until).toBeGreaterThan(later + 30 * DAY)
  })

  it('has its calendars listed again after a clock was ahead by more than a day', async () => {
    await mapLineItem(store, ONE, lineItem({}, { resetFrequency: 'DAILY' }), NOW)
    const ahead = await load(ONE, NOW + 300 * DAY)
    expect(periodAt(ahead.policy.lineItems[0]?.periods ?? [], NOW)).toBeUndefined()
    const again = await load()
    expect([ahead.revision, again.revision, again.bumpedAt]).toEqual([3, 4, NOW])
    expect(periodAt(again.policy.lineItems[0]?.periods ?? [], NOW)).toMatchObject({ index: 0, from: null })
  })

  it('does not go back in time with the clock of another node, which is a day behind', async () => {
    await mapLineItem(store, ONE, lineItem(), NOW)
    await mapLineItem(store, ONE, lineItem({ quantity: 5 }), NOW - DAY)
    expect(await load(ONE, NOW - DAY)).toMatchObject({ revision: 3, bumpedAt: NOW })
  })

  it('has its calendars due with the first one of its line items and limits', async () => {
    const dueAt = async () => (await store.read((reader) => reader.policyRevisions.get(ONE)))?.calendarDue ?? null
    const dueWith = async (activationId: string, resetFrequency?: 'DAILY' | 'MONTHLY', end = NOW + 400 * DAY) => {
      await mapLineItem(store, ONE, lineItem({ activationId, end }, { resetFrequency }), NOW)
      return dueAt()
    }
    const daily = NOW + 31 * DAY
    expect(await dueWith('A')).toBeNull()
    expect(await dueWith('B', 'DAILY', daily - TOLERANCE_MS - 1)).toBeNull()
    expect(await dueWith('B', 'DAILY', daily - TOLERANCE_MS)).toBe(daily)
    expect([await dueWith('A', 'MONTHLY'), await dueWith('C', 'MONTHLY'), await dueWith('D')]).toEqual([
      daily,
      daily,
      daily,
    ])
    const place = { instanceId: ONE, lineItemId: 'D' }
    await setConsumptionLimit(store, place, { limit: 5n, frequency: 'DAILY', nextReset: NOW + 1 }, NOW)
    expect(await dueAt()).toBe(NOW + 1 + 30 * DAY)
    await removeConsumptionLimit(store, place, NOW)
    expect(await dueAt()).toBe(daily)
  })

  it('is not renewed for a line item that is over', async () => {
    await mapLineItem(store, ONE, lineItem({ end: NOW + 10 * DAY }, { resetFrequency: 'DAILY' }), NOW)
    expect((await store.read((reader) => reader.policyRevisions.get(ONE)))?.calendarDue).toBeNull()
    await mapLineItem(store, ONE, lineItem({}, { resetFrequency: 'DAILY' }), NOW)
    expect((await store.read((reader) => reader.policyRevisions.get(ONE)))?.calendarDue).not.toBeNull()
    await mapLineItem(store, ONE, lineItem({ state: 'OBSOLETE' }, { resetFrequency: 'DAILY' }), NOW)
    expect((await store.read((reader) => reader.policyRevisions.get(ONE)))?.calendarDue).toBeNull()
  })
})
