// The pages of the usage report over any store: each record once, in a fixed place, with exact values.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { decimal } from '../../../src/core/pricing/amount.ts'
import { newSession } from '../../../src/core/sessions/session.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import type { UsageRecord } from '../../../src/cloud/storage/records.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { reportUsage } from '../../../src/cloud/usage/report-usage.ts'
import { USAGE_COLUMNS } from '../../../src/protocol/service/usage-export.ts'
import { REPORT_PAGE_RECORDS } from '../../../src/protocol/service/usage-report.ts'

const DAY = 86_400_000
const NOW = Date.UTC(2026, 4, 6, 7, 8, 9)

type Row = Readonly<Record<string, unknown>>

/** @param open an empty store */
export function reportUsageSuite(name: string, open: () => Promise<Store>): void {
  describe(name, () => {
    let store: Store
    let instanceId: string
    beforeEach(async () => {
      store = await open()
      instanceId = randomUUID()
      await createInstance(store, { id: instanceId, shortName: 's', accountId: 'customer' }, NOW)
    })
    afterEach(() => store.close())

    const record = (change: Partial<UsageRecord> = {}): UsageRecord => ({
      correlationId: 'c',
      usageTime: NOW,
      writeTime: NOW,
      requesterType: 'user',
      requesterValue: 'LisaBarry',
      accountId: 'customer',
      instanceId,
      activationId: 'ACT-1',
      quantity: 100_000_000n,
      used: 1_500_000n,
      item: 'Print',
      version: '1.0',
      count: decimal('0.5'),
      rate: decimal('3'),
      operation: 'REQUEST',
      status: 'GRANTED',
      tokens: 1_500_000n,
      source: { kind: 'one-off' },
      metaData: null,
      ...change,
    })
    const write = (...records: readonly UsageRecord[]) => store.transaction((tx) => tx.usage.append(records))
    const textOf = async (change: Partial<Parameters<typeof reportUsage>[1]> = {}): Promise<string> => {
      const options = { tenantId: 'maker', instanceId: null, pastDays: 1, pageNumber: 1, now: NOW, ...change }
      let text = ''
      for await (const piece of await reportUsage({ store, giveWay: async () => undefined }, options)) text += piece
      return text
    }
    const rows = async (change: Parameters<typeof textOf>[0] = {}): Promise<readonly Row[]> =>
      (JSON.parse(await textOf(change)) as { readonly data: readonly Row[] }).data

    it('returns an empty list if there are no records', async () => {
      expect(await textOf()).toBe('{"data":[]}')
    })

    it('returns the fields of the export and of usage reporters for a one-off request', async () => {
      await write(record())
      const [row] = await rows()
      expect(Object.keys(row!)).toEqual([
        ...USAGE_COLUMNS.map(([, key]) => key),
        'itemQuantity',
        'meterQuantity',
        'meterCost',
        'overdraftCount',
        'requestResponse',
        'sessionState',
      ])
      expect(row).toMatchObject({
        accountId: 'customer',
        consumerId: 'LisaBarry',
        mappedEntitledCount: 100,
        used: 1.5,
        usageTime: NOW,
        itemQuantity: 0.5,
        meterQuantity: 1.5,
        meterCost: 3,
        overdraftCount: 0,
        requestResponse: '1001',
        sessionState: null,
      })
    })

    it('writes every digit of an amount', async () => {
      const rate = decimal('0.1234567890123456789')
      await write(record({ tokens: 9_007_199_254_740_993n, used: 9_223_372_036_854_775_807n, rate }))
      const text = await textOf()
      expect(text).toContain('"meterQuantity":9007199254.740993,')
      expect(text).toContain('"used":9223372036854.775807,')
      expect(text).toContain('"meterCost":0.1234567890123456789,')
    })

    it('counts the overdraft above the quantity', async () => {
      await write(record({ used: 100_000_000n }), record({ used: 100_000_001n, tokens: 1n }))
      expect((await rows()).map(({ overdraftCount }) => overdraftCount)).toEqual([0, 0.000001])
    })

    it('shows requests that were refused without a line item, with their status code', async () => {
      const nothing = { activationId: null, quantity: null, used: null, tokens: 0n } as const
      const { rate: _, ...refused } = record({ ...nothing, status: 'INSUFFICIENT_TOKENS' })
      await write(refused, { ...refused, status: 'DENIED_BY_RULE' }, { ...refused, status: 'NOT_CHARGED' })
      expect(await rows()).toMatchObject(
        ['2002', '2003', '1002'].map((requestResponse) => ({
          requestResponse,
          activationId: null,
          used: null,
          meterQuantity: 0,
          meterCost: null,
          overdraftCount: null,
        })),
      )
    })

    it('shows sessions with their present state, and refunds as negative amounts', async () => {
      const session = newSession({ id: randomUUID(), instanceId, deviceId: null }, NOW)
      await store.transaction((tx) => tx.sessions.insert(session))
      const source = { kind: 'session', sessionId: session.id } as const
      const gone = { kind: 'session', sessionId: randomUUID() } as const
      await write(
        record({ source, operation: 'AUTOMATIC_CHARGE' }),
        record({ source, operation: 'REFUND', status: 'REFUNDED', tokens: -500_000n, used: 1_000_000n }),
        record({ source: gone }),
      )
      expect(await rows()).toMatchObject([
        { sessionState: 'IDLE', sessionId: session.id, meterQuantity: 1.5, requestResponse: '1001' },
        { sessionState: 'IDLE', meterQuantity: -0.5, requestResponse: '1001' },
        { sessionState: null, sessionId: gone.sessionId },
      ])
    })

    it('shows the session of an entry of a device', async () => {
      const session = newSession({ id: randomUUID(), instanceId, deviceId: null }, NOW)
      await store.transaction((tx) => tx.sessions.insert(session))
      await write(record({ source: { kind: 'device', deviceId: 'd', epoch: 2, entry: 7, sessionId: session.id } }))
      expect(await rows()).toMatchObject([{ deviceId: 'd', entry: 7, sessionId: session.id, sessionState: 'IDLE' }])
    })

    it('shows entries of devices, also those without a request', async () => {
      const source = { kind: 'device', deviceId: 'd', epoch: 2, entry: 7 } as const
      const { rate: _, ...burnt } = record({ source, operation: 'BURN', status: 'BURNED', item: '', version: '' })
      const unreported: UsageRecord = { ...burnt, operation: 'SETTLEMENT', status: 'PRESUMED' }
      await write(record({ source }), burnt, unreported)
      expect(await rows()).toMatchObject([
        { deviceId: 'd', epoch: 2, entry: 7, requestResponse: '1001', sessionState: null },
        { operation: 'BURN', requestResponse: null, meterCost: null, meterQuantity: 1.5 },
        { operation: 'SETTLEMENT', requestResponse: null },
      ])
    })

    it('returns the next pages after a restore that leaves a gap in the row numbers', async () => {
      await write(record())
      await store.transaction((tx) => tx.usage.passForgotten(1n << 61n))
      await write(record({ item: 'Scan' }))
      expect((await rows()).map(({ item }) => item)).toEqual(['Print', 'Scan'])
      expect(await rows({ pageNumber: 2 })).toEqual([])
    })

    it('starts each day at midnight UTC', async () => {
      const midnight = NOW - (NOW % DAY)
      await write(...[-1, 0].map((ms) => record({ usageTime: midnight - DAY + ms, item: String(ms) })))
      expect((await rows()).map(({ item }) => item)).toEqual(['0'])
      expect(await rows({ pastDays: 2 })).toHaveLength(2)
    })

    it('refuses days with archived usage, unless only a clock that was years ahead put usage there', async () => {
      await write(record())
      const [year, upTo] = [365 * DAY, await store.transaction((tx) => tx.usage.settled())]
      await store.transaction((tx) =>
        tx.usageArchives.record({
          ...{ after: 0n, upTo, records: 2, latestUse: NOW - 10 * DAY, archivedAt: NOW },
          ...{ usedAhead: { from: NOW + year, to: NOW + year }, place: '/archive', manifest: 'm', sha256: '' },
        }),
      )
      await rows({ pastDays: 9 })
      await expect(rows({ pastDays: 10 })).rejects.toMatchObject({ code: 'USAGE_ARCHIVED' })
      await expect(rows({ now: NOW + year })).rejects.toMatchObject({ code: 'USAGE_ARCHIVED' })
      await rows({ now: NOW + year + 2 * DAY })
    })

    it('filters by instance, and refuses an unknown one', async () => {
      await write(record(), record({ instanceId: 'another' }))
      expect(await rows({ instanceId })).toHaveLength(1)
      await expect(textOf({ instanceId: randomUUID() })).rejects.toMatchObject({ code: 'NOT_FOUND' })
    })

    it('returns each record once over all pages while more records are written', async () => {
      const count = REPORT_PAGE_RECORDS + 700
      const old = record({ usageTime: 0 })
      for (let n = 0; n < count; n += 1_000) {
        const numbers = Array.from({ length: Math.min(1_000, count - n) }, (_, index) => n + index)
        await write(...numbers.map((item) => record({ item: String(item) })), old)
      }
      const first = await rows({ pageNumber: 1 })
      await write(...Array.from({ length: 10 }, (_, n) => record({ item: `late ${n}` })))
      const second = await rows({ pageNumber: 2 })
      expect(first).toHaveLength(REPORT_PAGE_RECORDS)
      expect([...first, ...second].map(({ item }) => item)).toEqual([
        ...Array.from({ length: count }, (_, n) => String(n)),
        ...Array.from({ length: 10 }, (_, n) => `late ${n}`),
      ])
      expect(await rows({ pageNumber: 3 })).toEqual([])
      expect(await rows({ pageNumber: 999_999_999 })).toEqual([])
    }, 60_000)
  })
}
