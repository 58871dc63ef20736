/** Deliberate defects by which tokens are sold twice, lost, stuck or withheld. */
import type { UsageRecord } from '../../src/cloud/app/records.ts'
import type { Transaction } from '../../src/cloud/app/store.ts'
import type { Defect } from './defects.ts'
import { whole } from './of-device.ts'

/** The bill without what devices report of incarnations that are over. */
function billingLess(tx: Transaction): Transaction {
  const append = async (records: readonly UsageRecord[]): Promise<void> => {
    const kept: UsageRecord[] = []
    for (const record of records) {
      const { source } = record
      const device = source.kind === 'device' ? await tx.edge.devices.get(source.deviceId) : undefined
      const isLate = source.kind === 'device' && device !== undefined && source.incarnation < device.incarnation
      if (!isLate) kept.push(record)
    }
    await tx.usage.append(kept)
  }
  return { ...tx, usage: { ...tx.usage, append } }
}

export const TOKEN_DEFECTS: readonly Defect[] = [
  {
    name: 'late-delivery-not-billed',
    is: 'what an incarnation that is over delivers late is acknowledged and not billed',
    always: ['wipe', 'weather'],
    twin: () => ({ transaction: (tx) => billingLess(tx) }),
  },
  {
    name: 'period-number-again',
    is: 'a line item whose reset frequency changes uses numbers of periods that devices know for another time',
    always: ['frequency'],
    twin: () => ({
      transaction: (tx) => ({
        ...tx,
        lineItems: {
          ...tx.lineItems,
          update: (record) => {
            const { calendar } = record
            return tx.lineItems.update({ ...record, calendar: { ...calendar, next: calendar.first + 1 } })
          },
        },
      }),
    }),
  },
  {
    name: 'settles-by-any-clock',
    is: 'a twin whose clock jumps gives up devices that it has just heard of',
    always: ['twin-clock'],
    twin: () => ({ trustsClock: () => true }),
  },
  {
    name: 'salvage-without-log',
    is: 'what was answered ahead of the disk is lost with a damaged ledger',
    always: ['damage', 'death-after-answer'],
    device: () => ({ salvages: () => undefined }),
  },
  {
    name: 'returns-nothing',
    is: 'a device that gives tokens up does not say so',
    always: ['quantity'],
    device: () => ({
      journal: (journal) => ({ ...whole(journal), seal: (order) => journal.seal({ ...order, returns: [] }) }),
    }),
  },
  {
    name: 'asks-for-nothing',
    is: 'a device that falls short asks for no more tokens',
    device: () => ({
      journal: (journal) => ({ ...whole(journal), seal: (order) => journal.seal({ ...order, wants: [], needs: [] }) }),
    }),
  },
  {
    name: 'recalls-nothing',
    is: 'where tokens are short, the twin asks no device to give back what it can spare',
    twin: () => ({
      transaction: (tx) => ({
        ...tx,
        edge: { ...tx.edge, shortages: { ...tx.edge.shortages, save: async () => undefined } },
      }),
    }),
  },
]
