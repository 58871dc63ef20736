// Imports of instances over any store: repeatable, atomic, and no use is lost, doubled or lowered by surprise.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { MICRO_MAX, wholeTokens } from '../../../src/core/pricing/amount.ts'
import { actionAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { charge, grantOut, withhold } from '../../../src/cloud/accounts/pool.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import { importInstance } from '../../../src/cloud/service-api/import-instance.ts'
import { mapLineItem } from '../../../src/cloud/service-api/map-line-item.ts'
import { listLineItems } from '../../../src/cloud/service-api/show-line-items.ts'
import type { Pool } from '../../../src/cloud/storage/records.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { type ImportResult, type ImportWire, importBody } from '../../../src/protocol/edge/import.ts'

const NOW = Date.UTC(2026, 4, 6)
const ALWAYS = { start: 0, end: 253_402_300_799_999 }

type Change = Partial<ImportWire> & { readonly used?: string }

/** @param open an empty store; `another` a second node over the same one */
export function importInstanceSuite(
  name: string,
  open: () => Promise<{ readonly store: Store; readonly another: () => Promise<Store> }>,
): void {
  describe(name, () => {
    let store: Store
    let another: () => Promise<Store>
    let id: string
    beforeEach(async () => {
      ;({ store, another } = await open())
      id = randomUUID()
    })
    afterEach(() => store.close())

    const condition = randomUUID()
    const [allow, deny] = [randomUUID(), randomUUID()]
    const lineItem = (change: object = {}) => ({
      ...{ activationId: 'ACT-1', state: 'DEPLOYED', quantity: 100, ...ALWAYS },
      attributes: { elastic: true },
      ...change,
    })
    const wire = ({ used = '44000000', ...change }: Change = {}): ImportWire => ({
      source: 'https://source.example/dm',
      ...{ apply: true, addUsed: false, lowerUsed: false },
      instance: { shortName: 'Plant', accountId: 'acme', defaultInstance: true },
      conditions: [
        {
          id: condition,
          operator: 'AND',
          conditions: [{ operator: 'IN', property: 'department', values: ['sales'] }],
        },
      ],
      lineItems: [
        {
          lineItem: lineItem(),
          used,
          actions: [
            { id: allow, conditionId: condition, action: 'ALLOW', allocation: 50, used: '30500000' },
            { id: deny, action: 'DENY' },
          ],
        },
      ],
      ...change,
    })
    const send = (change: Change = {}, over = store): Promise<ImportResult> =>
      importInstance({ store: over, newId: randomUUID }, id, importBody.parse(wire(change)), NOW)
    const only = (over: object, change: Change = {}): Change => ({
      lineItems: [{ ...wire(change).lineItems[0]!, ...over }],
    })
    const poolOf = async (account = lineAccount(id, 'ACT-1', 0)): Promise<Pool | undefined> =>
      store.read(async (reader) => (await reader.accounts.get([account])).get(account))
    const usedNow = async (): Promise<bigint> =>
      (await store.read((reader) => listLineItems(reader, id, NOW))).find(({ record }) => record.id === 'ACT-1')!.used
    const spend = (tokens: number, how: (pool: Pool, amount: bigint) => Pool = charge) =>
      store.transaction(async (tx) => {
        const pools = await tx.accounts.open([{ account: lineAccount(id, 'ACT-1', 0), cap: wholeTokens(100) }])
        await tx.accounts.save([...pools.values()].map((pool) => how(pool, wholeTokens(tokens))))
      })
    const audit = async () => (await store.read((reader) => reader.edge.audit.list({ instanceId: id }, 100))).records

    it('takes over everything with its ids, and changes nothing the second time', async () => {
      const first = await send()
      expect(first).toMatchObject({ applied: true, conflicts: [], notes: [] })
      expect(first.changes.map(({ object, field }) => `${object}: ${field}`)).toEqual([
        'instance: new',
        `condition ${condition}: new`,
        'line item ACT-1: new',
        'line item ACT-1: actions',
        'line item ACT-1: used',
        `action ${allow} of ACT-1: used`,
      ])
      const state = await store.read(async (reader) => ({
        instance: await reader.instances.get(id),
        actions: await reader.actions.of(id, 'ACT-1'),
        conditions: await reader.conditions.list(id),
        revision: await reader.policyRevisions.get(id),
      }))
      expect(state.instance).toMatchObject({ shortName: 'Plant', accountId: 'acme', defaultInstance: true })
      expect(state.actions.map((action) => action.id)).toEqual([allow, deny])
      expect(state.conditions.map((each) => each.id)).toEqual([condition])
      expect(await usedNow()).toBe(44_000_000n)
      expect(await poolOf()).toMatchObject({ charged: 44_000_000n, sold: 44_000_000n, capInForce: 100_000_000n })
      expect(await poolOf(actionAccount(id, 'ACT-1', allow))).toMatchObject({
        charged: 30_500_000n,
        capTarget: 50_000_000n,
      })
      const rows = await audit()
      expect(await send()).toEqual({ applied: true, changes: [], notes: [], conflicts: [] })
      expect(await audit()).toEqual(rows)
      expect(await store.read((reader) => reader.policyRevisions.get(id))).toEqual(state.revision)
    })

    it('raises the revision of the rules for a new name, which they contain', async () => {
      await send()
      const before = await store.read((reader) => reader.policyRevisions.get(id))
      await send({ instance: { shortName: 'Plant 7', accountId: 'acme', defaultInstance: true } })
      const after = await store.read((reader) => reader.policyRevisions.get(id))
      expect(after!.revision).toBe(before!.revision + 1)
    })

    it('records who imported which use, and from where', async () => {
      await send()
      expect(
        (await audit()).map(({ action, lineItemId, detail }) => [action, lineItemId, JSON.parse(detail!) as unknown]),
      ).toEqual([
        ['IMPORT_USE', 'ACT-1', { source: 'https://source.example/dm', actionId: allow, before: '0', after: '30.5' }],
        ['IMPORT_USE', 'ACT-1', { source: 'https://source.example/dm', actionId: null, before: '0', after: '44' }],
        ['IMPORT_INSTANCE', null, expect.objectContaining({ source: 'https://source.example/dm', accountId: 'acme' })],
      ])
    })

    it('only compares without apply', async () => {
      const planned = await send({ apply: false })
      expect(planned).toMatchObject({ applied: false, conflicts: [] })
      expect(await store.read((reader) => reader.instances.get(id))).toBeUndefined()
      expect((await send()).changes).toEqual(planned.changes)
      expect(await send({ apply: false })).toMatchObject({ applied: false, changes: [] })
    })

    it('adds later use of the source to use that this service has had since', async () => {
      await send()
      await spend(7)
      expect(await send()).toMatchObject({ changes: [] })
      const { changes } = await send({ used: '46000000' })
      expect(changes).toEqual([{ object: 'line item ACT-1', field: 'used', before: '51', after: '53' }])
      expect(await usedNow()).toBe(53_000_000n)
    })

    it('adds to use from before the first import only when that is permitted', async () => {
      await createInstance(store, { id, shortName: 'Plant', accountId: 'acme' }, NOW)
      await mapLineItem(store, id, { ...lineItem(), attributes: { elastic: true }, state: 'DEPLOYED' }, NOW)
      await spend(5)
      const refused = await send()
      expect(refused).toMatchObject({ applied: false, conflicts: [expect.stringContaining('--add-used')] })
      expect(await usedNow()).toBe(5_000_000n)
      expect(await store.read((reader) => reader.conditions.list(id))).toEqual([])
      expect(await send({ addUsed: true })).toMatchObject({ applied: true })
      expect(await usedNow()).toBe(49_000_000n)
      expect(await send()).toMatchObject({ changes: [], conflicts: [] })
    })

    it('imports no use twice when it starts at zero', async () => {
      await send({ used: '0' })
      await spend(5)
      expect(await send({ used: '2000000' })).toMatchObject({ applied: true, conflicts: [] })
      expect(await usedNow()).toBe(7_000_000n)
    })

    it('lowers imported use only when that is permitted, and never the use of this service', async () => {
      await send()
      await spend(7)
      const lower = { used: '40000000' }
      expect(await send(lower)).toMatchObject({ applied: false, conflicts: [expect.stringContaining('--lower-used')] })
      expect(await usedNow()).toBe(51_000_000n)
      expect(await send({ ...lower, lowerUsed: true })).toMatchObject({ applied: true })
      expect(await usedNow()).toBe(47_000_000n)
      await send({ used: '0', lowerUsed: true })
      expect(await usedNow()).toBe(7_000_000n)
    })

    it('takes over use beyond the quantity, and sells nothing more', async () => {
      await send({ used: '150000000' })
      expect(await poolOf()).toMatchObject({ charged: 150_000_000n, capTarget: 100_000_000n, capInForce: 150_000_000n })
    })

    it('reports that devices have tokens', async () => {
      await send({ used: '0' })
      await spend(80, grantOut)
      const { notes, applied } = await send({ used: '30000000' })
      expect(applied).toBe(true)
      expect(notes).toEqual([expect.stringContaining('devices have tokens for 10 more than')])
      expect(await poolOf()).toMatchObject({ charged: 30_000_000n, grantedOut: 80_000_000n, capInForce: 110_000_000n })
    })

    it('refuses use that its counters cannot hold', async () => {
      await send({ used: '0' })
      await spend(80, grantOut)
      expect(await send({ used: String(MICRO_MAX) })).toMatchObject({
        applied: false,
        conflicts: [expect.stringContaining('more than this service can count')],
      })
    })

    it('updates terms and rules from the source', async () => {
      await send()
      const { changes } = await send(
        only({
          lineItem: lineItem({ state: 'INACTIVE', quantity: 200, end: 9_223_372_036_854_775_807 }),
          actions: [{ id: allow, conditionId: condition, action: 'ALLOW', allocation: 60, used: '30500000' }],
        }),
      )
      expect(changes.map(({ field, before, after }) => [field, before, after])).toEqual([
        ['state', 'DEPLOYED', 'INACTIVE'],
        ['quantity', '100', '200'],
        ['end', 'none', '9223372036854775807'],
        ['actions', expect.stringContaining('DENY'), expect.not.stringContaining('DENY')],
      ])
      expect(await poolOf()).toMatchObject({ charged: 44_000_000n, capTarget: 200_000_000n })
    })

    it('distinguishes a line item that has ended or not begun from one without limits', async () => {
      const last = ALWAYS.end
      const set = async (times: { readonly start: number; readonly end: number }) => {
        const { changes } = await send(only({ lineItem: lineItem(times) }))
        const shown = changes.map(({ field, before, after }) => [field, before, after])
        const record = await store.read((reader) => reader.lineItems.get(id, 'ACT-1'))
        return { shown, start: record?.start, end: record?.end }
      }
      await send()
      expect(await set({ start: 0, end: 0 })).toEqual({
        shown: [['end', 'none', '1970-01-01T00:00:00.000Z']],
        ...{ start: 0, end: 0 },
      })
      expect(await set({ start: last, end: last })).toEqual({
        shown: [
          ['start', 'none', '9999-12-31T23:59:59.999Z'],
          ['end', '1970-01-01T00:00:00.000Z', 'none'],
        ],
        ...{ start: last, end: last },
      })
      expect((await set(ALWAYS)).start).toBe(0)
    })

    it('does not remove an action with use unless that is permitted', async () => {
      await send()
      const without = only({ actions: [] })
      expect(await send(without)).toMatchObject({ applied: false, conflicts: [expect.stringContaining(allow)] })
      expect(await send({ ...without, lowerUsed: true })).toMatchObject({ applied: true, conflicts: [] })
    })

    describe('after a restore', () => {
      const tokensOf = async () => {
        const pool = await poolOf()
        return [pool!.charged, pool!.withheld].map((amount) => amount / 1_000_000n)
      }
      beforeEach(async () => {
        await send({ used: '10000000' })
        await spend(40, (pool, amount) => withhold(pool, pool.sold + amount))
      })

      it('counts use that the backup lacks once, and reports it', async () => {
        expect(await send({ used: '40000000' })).toMatchObject({
          applied: true,
          notes: [expect.stringContaining('for which 40 tokens are withheld')],
        })
        expect(await tokensOf()).toEqual([40n, 10n])
        expect(await send({ used: '70000000' })).toMatchObject({ notes: [expect.stringContaining('10 tokens')] })
        expect(await tokensOf()).toEqual([70n, 0n])
        expect(await send({ used: '80000000' })).toMatchObject({ notes: [] })
      })

      it('adds different use when that is permitted', async () => {
        expect(await send({ used: '40000000', addUsed: true })).toMatchObject({ applied: true, notes: [] })
        expect(await tokensOf()).toEqual([40n, 40n])
      })
    })

    it('counts the use of a removed action again only when that is permitted', async () => {
      await send()
      await send({ ...only({ actions: [] }), lowerUsed: true })
      expect(await send()).toMatchObject({
        applied: false,
        conflicts: [expect.stringMatching(/was removed here with 30\.5 tokens of use.*--add-used/)],
      })
      expect(await send({ addUsed: true })).toMatchObject({ applied: true, conflicts: [] })
      expect(await poolOf(actionAccount(id, 'ACT-1', allow))).toMatchObject({ charged: 30_500_000n })
    })

    it('keeps objects that only this service has, and reports them', async () => {
      await send()
      await mapLineItem(
        store,
        id,
        { ...lineItem({ activationId: 'OWN' }), attributes: {}, activationId: 'OWN', state: 'DEPLOYED' },
        NOW,
      )
      const result = await send({
        conditions: [],
        ...only({ actions: [{ id: deny, action: 'DENY' }] }),
        lowerUsed: true,
      })
      expect(result).toMatchObject({ applied: true })
      expect(result.notes).toEqual([
        'A line item exists only here and stays: OWN.',
        `A condition exists only here and stays: ${condition}.`,
      ])
    })

    it.each([
      [
        'another account',
        { instance: { shortName: 'Plant', accountId: 'other', defaultInstance: true } },
        'account acme here',
      ],
      ['an unknown condition', { conditions: [], lineItems: [{ lineItem: {}, actions: [] }] }, '$: required property'],
      [
        'a line item twice',
        {
          lineItems: [0, 1].map(() => ({
            lineItem: { activationId: 'X', state: 'OBSOLETE', quantity: 1, ...ALWAYS, attributes: {} },
            actions: [],
          })),
        },
        'listed twice',
      ],
    ] as const)('refuses %s as a whole', async (_, change, words) => {
      await send()
      const before = await audit()
      const result = await send({ ...(change as Change), instance: wire(change as Change).instance })
      expect(result.applied).toBe(false)
      expect(result.conflicts.join('\n')).toContain(words)
      expect(await audit()).toEqual(before)
    })

    it('refuses to revive an obsolete line item', async () => {
      await send(only({ lineItem: lineItem({ state: 'OBSOLETE' }) }))
      expect(await send()).toMatchObject({ applied: false, conflicts: [expect.stringContaining('OBSOLETE here')] })
    })

    it('leaves the default instance of an account as it is', async () => {
      await createInstance(store, { id: randomUUID(), shortName: 'First', accountId: 'acme' }, NOW)
      expect((await send()).notes).toEqual([expect.stringContaining('default instance')])
      expect(await store.read((reader) => reader.instances.get(id))).toMatchObject({ defaultInstance: false })
    })

    it('takes over each use once when two imports run at once', async () => {
      const other = await another()
      try {
        const results = await Promise.all([send({}, store), send({}, other), send({}, store), send({}, other)])
        expect(results.filter(({ changes }) => changes.length > 0)).toHaveLength(1)
        expect(await usedNow()).toBe(44_000_000n)
      } finally {
        await other.close()
      }
    })
  })
}
