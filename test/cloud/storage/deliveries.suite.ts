// Entries of devices in any store: compressed, in the sequence of the usage records, each with its hash.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Delivery } from '../../../src/cloud/storage/device-records.ts'
import { USAGE_ROW_POSITIONS, type UsageRange, type UsageRecord } from '../../../src/cloud/storage/records.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { sumUsage } from '../../../src/cloud/usage/usage-of-entries.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { type EntryBodyWire, entryBody } from '../../../src/protocol/edge/sync.ts'
import { CHAIN_START, entryHash } from '../../../src/protocol/signing.ts'
import { newEpoch } from '../../../src/cloud/devices/epochs.ts'
import { device, usage } from './suite.ts'
import { usageIn } from '../usage/list-usage.ts'

const A = '64d2028c-ae87-4069-a624-66089d957ef9'
export const B = '0b9a2b4e-7b4e-4a52-9f5b-8d6a7c1e2f30'
export const DEVICE = 'device'

interface Draft {
  readonly instanceId?: string
  readonly at?: number
  readonly tokens?: bigint
}

function entryText(n: number, { instanceId = A, at = n, tokens = 1n }: Draft): string {
  const body: EntryBodyWire = {
    n,
    kind: 'access',
    at,
    earliest: at,
    latest: null,
    instanceId,
    policyRevision: 1,
    engine: 1,
    correlationId: `5c8ec4fd-f17f-4657-bf09-${String(n).padStart(12, '0')}`,
    requester: { type: 'user', value: 'Zoë \n' },
    items: [
      {
        item: 'Print',
        version: '',
        count: '1',
        outcome: 'GRANTED',
        total: String(tokens),
        parts: [{ lineItemId: 'L', rate: '1', actionId: null, charged: String(tokens) }],
      },
    ],
    postings: [{ account: lineAccount(instanceId, 'L', 0), amount: String(tokens) }],
  }
  // A device writes JSON as it likes.
  return JSON.stringify(body, null, n % 2 === 0 ? '\t' : undefined)
}

/** @param first number of the first entry */
export function delivery(first: number, drafts: readonly Draft[], change: Partial<Delivery> = {}): Delivery {
  const previousHash = change.previousHash ?? CHAIN_START
  let hash = previousHash
  const entries = drafts.map((draft, index) => {
    const n = first + index
    const text = entryText(n, draft)
    hash = entryHash(hash, text)
    return { n, hash, text, body: entryBody.parse(JSON.parse(text)) }
  })
  return {
    deviceId: DEVICE,
    epoch: 1,
    segment: first,
    branch: false,
    previousHash,
    entries,
    billedBefore: [],
    inputs: {
      writeTime: 7,
      accountIds: new Map([[A, 'customer']]),
      quantities: new Map([[`${A}/L`, 100n]]),
      used: new Map([[lineAccount(A, 'L', 0), 40n]]),
    },
    sums: sumUsage(entries.filter(({ n }) => change.billedBefore?.includes(n) !== true)),
    ...change,
  }
}

/** @param open an empty store */
export function deliveriesSuite(name: string, open: () => Promise<Store>): void {
  describe(`the deliveries of ${name}`, () => {
    let store: Store
    beforeEach(async () => {
      store = await open()
      await store.transaction(async (tx) => {
        await tx.edge.devices.insert(device(DEVICE))
        await tx.edge.epochs.insert({ ...newEpoch(DEVICE, 1, { now: 1, present: 1 }) })
      })
    })
    afterEach(() => store.close())

    const write = (...deliveries: readonly Delivery[]) =>
      store.transaction(async (tx) => {
        for (const each of deliveries) await tx.usage.deliver(each)
      })
    const everything: UsageRange = { after: 0n, upTo: 2n ** 62n, instanceId: null, from: null, to: null, limit: 100 }
    const range = (change: Partial<UsageRange> = {}) =>
      store.read((reader) => usageIn(reader, { ...everything, ...change }))
    const step = (change: Partial<UsageRange> = {}) =>
      store.read((reader) => reader.usage.range({ ...everything, ...change }))
    const entriesIn = async (change: Partial<UsageRange> = {}) =>
      (await range(change)).map(({ record: { source } }) => (source.kind === 'device' ? source.entry : source.kind))

    it('return the records of their entries with totals and quantities as of the merge', async () => {
      await write(delivery(1, [{ tokens: 3n }, { tokens: 4n }]))
      expect((await range()).map(({ record }) => record)).toMatchObject([
        { tokens: 3n, used: 43n, quantity: 100n, accountId: 'customer', requesterValue: 'Zoë \n', writeTime: 7 },
        { tokens: 4n, used: 47n, usageTime: 2, source: { kind: 'device', deviceId: DEVICE, epoch: 1, entry: 2 } },
      ])
    })

    it('keep the exact texts, from which the hashes of the chain follow', async () => {
      const first = delivery(1, [{}, {}, {}])
      const second = delivery(4, [{}], { previousHash: first.entries.at(-1)!.hash })
      await write(first, second)
      await store.read(async ({ edge: { entries } }) => {
        const all = [...first.entries, ...second.entries].map(({ n, hash, text }) => ({ n, hash, text, branch: false }))
        expect(await entries.of(DEVICE, 1)).toEqual(all)
        expect(await entries.hashInChain(DEVICE, 1, 4)).toBe(all[3]!.hash)
        expect(await entries.hashInChain(DEVICE, 1, 5)).toBeUndefined()
        expect(await entries.hashInChain(DEVICE, 2, 4)).toBeUndefined()
        const known = await entries.hashes(DEVICE, 1, 3, 4)
        expect(all.map(({ hash }) => known.has(hash))).toEqual([true, true, true, true])
        const none = await entries.hashes(DEVICE, 1, 5, 9)
        expect(all.map(({ hash }) => none.has(hash))).toEqual([false, false, false, false])
      })
    })

    it('keep the numbers and hashes of a branch apart from the chain', async () => {
      const chain = delivery(1, [{}, {}])
      const other = delivery(1, [{ tokens: 5n }, { tokens: 6n }, { tokens: 7n }], { branch: true })
      const kept = { ...other, entries: [other.entries[0]!, other.entries[2]!] }
      await write(chain, { ...kept, sums: { ...kept.sums, records: 2 } })
      await store.read(async ({ edge: { entries } }) => {
        expect(await entries.hashInChain(DEVICE, 1, 3)).toBeUndefined()
        const known = await entries.hashes(DEVICE, 1, 3, 9)
        expect(other.entries.map(({ hash }) => known.has(hash))).toEqual([true, false, true])
        expect(chain.entries.some(({ hash }) => known.has(hash))).toBe(false)
        expect((await entries.of(DEVICE, 1)).map(({ n, branch }) => [n, branch])).toEqual([
          [1, false],
          [1, true],
          [2, false],
          [3, true],
        ])
      })
      expect(await entriesIn()).toEqual([1, 2, 1, 3])
    })

    it('return no second record for an entry that was already billed', async () => {
      const all = delivery(1, [{}, {}, {}], { billedBefore: [2] })
      await write({ ...all, branch: true, entries: [all.entries[1]!], billedBefore: [] }, all)
      expect(await entriesIn()).toEqual([2, 1, 3])
      const found = await store.read(({ edge: { entries } }) => entries.of(DEVICE, 1))
      expect(found.map(({ n, branch }) => [n, branch])).toEqual([1, 2, 3].map((n) => [n, false]))
    })

    it('keep the sequence of writing, with one position for each record', async () => {
      await store.transaction(async (tx) => {
        await tx.usage.append([usage(1)])
        await tx.usage.deliver(delivery(1, [{}, {}]))
        await tx.usage.append([usage(2), usage(3)])
        await tx.usage.deliver(delivery(3, [{}]))
      })
      await store.transaction((tx) => tx.usage.append([usage(4)]))
      const all = await range()
      expect(await entriesIn()).toEqual(['one-off', 1, 2, 'one-off', 'one-off', 3, 'one-off'])
      const positions = all.map(({ position }) => position)
      expect(positions).toEqual([...new Set(positions)].sort((a, b) => (a < b ? -1 : 1)))
      expect(positions.at(-1)).toBe(await store.transaction((tx) => tx.usage.settled()))
      for (const [index, after] of positions.entries()) {
        expect(await range({ after })).toEqual(all.slice(index + 1))
        expect(await range({ upTo: after })).toEqual(all.slice(0, index + 1))
      }
    })

    it('return each record exactly once with any page size', async () => {
      await store.transaction(async (tx) => {
        for (let at = 0; at < 6; at += 1) {
          await tx.usage.deliver(delivery(1 + 3 * at, [{}, {}, {}]))
          await tx.usage.append([usage(1), usage(2)])
        }
      })
      const all = await range()
      expect(all).toHaveLength(30)
      for (const limit of [1, 2, 3, 4, 7, 29, 30, 31]) {
        const found = []
        for (let after = 0n; ;) {
          const { records, end } = await step({ after, limit })
          found.push(...records)
          if (end === everything.upTo) break
          after = end
        }
        expect(found).toEqual(all)
      }
    })

    it('are filtered and counted by instance and time for each record', async () => {
      await write(
        delivery(1, [{ at: 10 }, { at: 20, instanceId: B }, { at: 30 }]),
        delivery(4, [{ at: 25 }, { at: 26 }]),
        delivery(6, [{ at: 5, instanceId: B }]),
      )
      const [first = 0n, second = 0n] = (await range()).map(({ position }) => position)
      for (const [change, numbers] of [
        [{ instanceId: B }, [2, 6]],
        [{ instanceId: A }, [1, 3, 4, 5]],
        [{ from: 20 }, [2, 3, 4, 5]],
        [{ to: 25 }, [1, 2, 6]],
        [{ from: 20, to: 26, instanceId: A }, [4]],
        [{ limit: 1, from: 30 }, [3]],
        [{ limit: 1, to: 10 }, [6]],
        [{ upTo: second }, [1, 2]],
        [{ after: first, to: 26 }, [2, 4, 6]],
      ] as const) {
        expect([change, await entriesIn(change)]).toEqual([change, numbers])
        const counted = await store.read((reader) => reader.usage.count({ ...everything, ...change }))
        expect([change, counted]).toEqual([change, { records: numbers.length, end: { ...everything, ...change }.upTo }])
      }
    })

    it('are unpacked a few at a time if most belong to other instances', async () => {
      const shared = Array.from({ length: 600 }, (_, n) => ({ instanceId: n === 0 ? B : A }))
      await store.transaction((tx) => tx.usage.append([usage(1, { instanceId: 'other' })]))
      for (const first of [1, 601, 1_201, 1_801]) await write(delivery(first, shared))
      const [, first] = await range()
      const end = (number: bigint) => (first!.position / USAGE_ROW_POSITIONS + number) * USAGE_ROW_POSITIONS
      const others = { instanceId: 'nowhere' }
      const newest = (upTo: bigint | null) =>
        store.read((reader) => reader.usage.newest({ ...others, upTo, from: null, to: null, limit: 10 }))
      expect(await step(others)).toEqual({ records: [], end: end(2n) })
      expect(await step({ ...others, after: end(2n) })).toEqual({ records: [], end: end(4n) })
      expect(await newest(null)).toEqual({ records: [], rest: { upTo: end(2n), writtenBy: 7 } })
      expect(await newest(end(2n))).toEqual({ records: [], rest: { upTo: end(0n), writtenBy: 7 } })
      expect(await newest(end(0n))).toEqual({ records: [], rest: null })
      expect(await store.read((reader) => reader.usage.count({ ...everything, ...others }))).toEqual({
        ...{ records: 0, end: end(2n) },
      })
      expect(await range({ instanceId: B })).toHaveLength(4)
    })

    it('are found by device and by search text', async () => {
      await write(delivery(1, [{}, {}, {}]))
      const found = async (deviceId: string, number: number) => {
        const fits = ({ source }: UsageRecord): boolean => source.kind === 'device' && source.entry === number
        const wanted = { instanceId: null, upTo: null, from: null, to: null, limit: 10, search: { deviceId, fits } }
        const { records } = await store.read((reader) => reader.usage.newest(wanted))
        return records.map(({ record }) => record.source)
      }
      const [first] = await range()
      const { source } = first!.record
      if (source.kind !== 'device') throw new Error('the delivery is of no device')
      expect(await found(source.deviceId, 2)).toEqual([{ ...source, entry: 2 }])
      expect(await found('another', 2)).toEqual([])
    })

    it('never start twice at the same entry of a chain', async () => {
      await write(delivery(1, [{}]))
      await expect(write(delivery(1, [{}, {}]))).rejects.toThrow()
      await write(delivery(1, [{}], { branch: true }))
      await write(delivery(1, [{}], { branch: true }))
      expect(await entriesIn()).toEqual([1, 1, 1])
    })

    it('return the whole segment', async () => {
      const many = delivery(
        1,
        Array.from({ length: 1_000 }, () => ({})),
      )
      await write(many)
      expect((await step({ limit: 1 })).records).toHaveLength(1_000)
      expect(await store.read((reader) => reader.usage.count(everything))).toMatchObject({ records: 1_000 })
    })
  })
}
