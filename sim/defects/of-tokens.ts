/** Defects that sell tokens twice, lose them, or keep them unavailable. */
import type { AccountId } from '../../src/core/accounts/account.ts'
import type { PoolBalances } from '../../src/agent/access/local-decisions.ts'
import type { AssembledAgent } from '../../src/agent/assemble.ts'
import type { Ledger } from '../../src/agent/ledger/ledger.ts'
import type { Delivery, DeviceAccountRecord } from '../../src/cloud/storage/device-records.ts'
import type { UsageRecord } from '../../src/cloud/storage/records.ts'
import { type CreateLoadedSyncs, LoadedSyncs, Unusual } from '../../src/cloud/sync/loaded-syncs.ts'
import type { SyncResult, OpenedSync } from '../../src/cloud/sync/receive-segment.ts'
import type { Transaction } from '../../src/cloud/storage/store.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import type { Defect } from './defects.ts'
import { type Delivered, type TwinDefects, instead } from './twin-defects.ts'
import { payloadOf } from './payload.ts'

const BALANCES_KEPT_MS = 20_000

/** Skips the bill of some epochs. */
function unbilled(
  tx: Transaction,
  isSkipped: (source: { readonly deviceId: string; readonly epoch: number }) => Promise<boolean>,
): Transaction {
  const append = async (records: readonly UsageRecord[]): Promise<void> => {
    const kept: UsageRecord[] = []
    for (const record of records) {
      const { source } = record
      if (source.kind !== 'device' || !(await isSkipped(source))) kept.push(record)
    }
    await tx.usage.append(kept)
  }
  const deliver = async (delivery: Delivery): Promise<void> => {
    const billedBefore = (await isSkipped(delivery)) ? delivery.entries.map(({ n }) => n) : delivery.billedBefore
    await tx.usage.deliver({ ...delivery, billedBefore })
  }
  return { ...tx, usage: { ...tx.usage, append, deliver } }
}

/** Skips the bill for reports of ended epochs. */
function billingLess(tx: Transaction): Transaction {
  return unbilled(tx, async ({ deviceId, epoch }) => {
    const device = await tx.edge.devices.get(deviceId)
    return device !== undefined && epoch < device.epoch
  })
}

/** A ledger that never limits an account once granted without limit. */
function keepUnlimited(ledger: Ledger, unlimited: Set<AccountId>): void {
  const prepareGrant = ledger.prepareGrant.bind(ledger)
  ledger.prepareRules = async () => undefined
  ledger.prepareGrant = async (grant) => {
    for (const { account, unlimited: isUnlimited } of grant.accounts) if (isUnlimited) unlimited.add(account)
    const isKept = ({ account }: { readonly account: AccountId }): boolean => unlimited.has(account)
    const { accounts } = await prepareGrant({ ...grant, accounts: grant.accounts.filter((each) => !isKept(each)) })
    const kept = grant.accounts.filter(isKept).map((each) => ({ ...each, unlimited: true }))
    return { ...grant, accounts: [...accounts, ...kept] }
  }
}

/** Neither settles nor closes an account that an epoch had without limit. */
function settlingByFlag(tx: Transaction, flagged: Set<string>): Transaction {
  const nameOf = ({ deviceId, epoch, account }: DeviceAccountRecord): string => `${deviceId} ${epoch} ${account}`
  const { deviceAccounts } = tx.edge
  return {
    ...tx,
    edge: {
      ...tx.edge,
      deviceAccounts: {
        ...deviceAccounts,
        save: async (records) => {
          for (const record of records) if (record.unlimited) flagged.add(nameOf(record))
          await deviceAccounts.save(records)
        },
        ofEpoch: async (...epoch) => {
          const records = await deviceAccounts.ofEpoch(...epoch)
          return new Map([...records].filter(([, record]) => !flagged.has(nameOf(record))))
        },
      },
    },
  }
}

const ALL_TOKENS = 10n ** 15n

/** In the transaction of a session that is due, all tokens are withheld. */
function renewingNothing(tx: Transaction): Transaction {
  const { accounts, sessions } = tx
  let isDue = false
  return {
    ...tx,
    sessions: {
      ...sessions,
      lockDue: async (now) => {
        const session = await sessions.lockDue(now)
        isDue = session !== undefined
        return session
      },
    },
    accounts: {
      ...accounts,
      lock: async (wanted) => {
        const pools = await accounts.lock(wanted)
        const withheld = isDue ? ALL_TOKENS : 0n
        return new Map([...pools].map(([account, pool]) => [account, { ...pool, withheld: pool.withheld + withheld }]))
      },
      save: (pools) => accounts.save(pools.map((pool) => ({ ...pool, withheld: pool.withheld % ALL_TOKENS }))),
    },
  }
}

/** Bills nothing of an epoch that two machines have written. */
function forksUnbilled(tx: Transaction): Transaction {
  return unbilled(tx, async ({ deviceId, epoch }) => (await tx.edge.epochs.get(deviceId, epoch))?.forked === true)
}

function forkedFor(tx: Transaction, delivered: ReadonlySet<string>): Transaction {
  const { epochs } = tx.edge
  return {
    ...tx,
    edge: {
      ...tx.edge,
      epochs: {
        ...epochs,
        get: async (deviceId, number) => {
          const epoch = await epochs.get(deviceId, number)
          const isDelivered = epoch !== undefined && delivered.has(`${deviceId} ${number}`)
          return isDelivered ? { ...epoch, forked: true } : epoch
        },
      },
    },
  }
}

function billingAsBranch(): Partial<TwinDefects> {
  const delivered = new Set<string>()
  return {
    operation: instead<Delivered>('sync', async ({ params, body: { segment } }, _twin, work) => {
      const { undeliveredRange } = payloadOf(segment) as { undeliveredRange?: { epoch: number } | null }
      const name = `${params.deviceId} ${undeliveredRange?.epoch ?? 0}`
      delivered.add(name)
      try {
        return await work()
      } finally {
        delivered.delete(name)
      }
    }),
    transaction: (tx) => forkedFor(tx, delivered),
  }
}

/** Each sync of a batch is decided as if it were the first one. */
const onStalePools: CreateLoadedSyncs = (...loaded) => {
  const decided: LoadedSyncs[] = []
  return {
    decide: (order) => {
      const alone = new LoadedSyncs(...loaded)
      decided.push(alone)
      return alone.decide(order)
    },
    write: async () => {
      for (const each of decided) await each.write()
    },
  }
}

class TraceKept extends LoadedSyncs {
  override async decide(order: OpenedSync): Promise<SyncResult> {
    try {
      return await super.decide(order)
    } catch (error) {
      if (error instanceof Unusual) this.keep()
      throw error
    }
  }
}

/** Answers requests for tokens from the last response of the cloud, for a while. */
function rememberWord({ link, clock }: AssembledAgent): void {
  const requestGrant = link.requestGrant.bind(link)
  let last: { readonly poolBalances: PoolBalances; readonly at: number } | null = null
  link.requestGrant = async (request, deadlineMs) => {
    const at = clock.sinceBoot()
    if (
      last !== null &&
      at - last.at < BALANCES_KEPT_MS &&
      request.accounts.every((each) => last?.poolBalances.has(each))
    )
      return last.poolBalances
    const poolBalances = await requestGrant(request, deadlineMs)
    if (poolBalances !== null) last = { poolBalances, at }
    return poolBalances
  }
}

export const TOKEN_DEFECTS: readonly Defect[] = [
  {
    name: 'unlimited-for-good',
    is: 'what was granted without a limit stays so on a device, whatever newer rules and grants say',
    always: ['overdraft'],
    device: () => {
      const unlimited = new Set<AccountId>()
      return { agent: ({ ledger }) => keepUnlimited(ledger, unlimited) }
    },
  },
  {
    name: 'settles-by-flag',
    is: 'what a silent device holds of an account that once had no limit is never settled',
    always: ['overdraft', 'wipe'],
    twin: () => {
      const flagged = new Set<string>()
      return { transaction: (tx) => settlingByFlag(tx, flagged) }
    },
  },
  {
    name: 'late-delivery-as-branch',
    is: 'what a device delivers late of an epoch that it gave up is billed as if two had written it, and closes nothing',
    always: ['refused-segments'],
    without: ['clone', 'restore'],
    twin: billingAsBranch,
  },
  {
    name: 'late-delivery-not-billed',
    is: 'what an epoch that is over delivers late is acknowledged and not billed',
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
    name: 'settles-without-limit',
    is: 'the twin settles any number of silent devices without the confirmation of an administrator',
    always: ['settlement-limit', 'wipe', 'partition'],
    twin: () => ({
      transaction: (tx) => {
        const settlementLoad: Transaction['edge']['epochs']['settlementLoad'] = async (...range) => {
          return { ...(await tx.edge.epochs.settlementLoad(...range)), due: 0, settled: 0 }
        }
        return { ...tx, edge: { ...tx.edge, epochs: { ...tx.edge.epochs, settlementLoad } } }
      },
    }),
  },
  {
    name: 'settles-by-clock-of-a-node',
    is: 'of several nodes, the one whose clock jumps gives up devices that the others have just heard of',
    always: ['node-clock'],
    without: ['twin-clock'],
    twin: () => ({ trustsClock: () => true }),
  },
  {
    name: 'confirms-time-only',
    is: 'a confirmed clock does not move the start of the silence of devices, which are given up at once',
    always: ['twin-clock', 'clock-confirmed'],
    twin: () => ({
      transaction: (tx) => {
        const epochs = { ...tx.edge.epochs, moveInactivity: async () => undefined }
        return { ...tx, edge: { ...tx.edge, epochs } }
      },
    }),
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
      journal: (journal) => ({ ...journal, seal: (order) => journal.seal({ ...order, returns: [] }) }),
    }),
  },
  {
    name: 'asks-for-nothing',
    is: 'a device that falls short asks for no more tokens',
    device: () => ({
      journal: (journal) => ({
        ...journal,
        seal: (order) => journal.seal({ ...order, topUpRequests: [], needs: [] }),
      }),
    }),
  },
  {
    name: 'copies-not-billed',
    is: 'what copies of a device deliver is acknowledged and not billed',
    always: ['clone'],
    twin: () => ({ transaction: (tx) => forksUnbilled(tx) }),
  },
  {
    name: 'remembers-word',
    is: 'a device refuses by what the cloud said of the pools 20 seconds ago, and does not ask again',
    device: () => ({ agent: rememberWord }),
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
  {
    name: 'refuses-rates',
    is: 'the twin takes the rates of an administrator for ones that it has',
    always: ['rates'],
    twin: () => ({
      transaction: (tx) => ({
        ...tx,
        rateTables: {
          ...tx.rateTables,
          get: async (series) => (await tx.rateTables.list()).find((table) => table.series === series),
        },
      }),
    }),
  },
  {
    name: 'refuses-syncs',
    is: 'the twin takes every fifth segment for a malformed one, until it is sent again',
    twin: () => {
      let syncs = 0
      return {
        operation: instead('sync', async (_call, _twin, work) => {
          syncs += 1
          if (syncs % 5 === 0) throw new CodedError('BAD_REQUEST', 'The segment cannot be read.')
          return work()
        }),
      }
    },
  },
  {
    name: 'refuses-keys',
    is: 'the twin refuses the next key of every device',
    always: ['rotate-key'],
    twin: () => ({
      operation: instead('announceDeviceKey', async () => {
        throw new CodedError('DEVICE_KEY_REFUSED', 'The next key is, or was, that of a device.')
      }),
    }),
  },
  {
    name: 'renews-nothing',
    is: 'the twin ends sessions at the end of their interval, as if no tokens were free',
    always: ['session-life'],
    twin: () => ({ transaction: renewingNothing }),
  },
  {
    name: 'any-token-enrolls-again',
    is: 'a device whose service was ended is served again with a token that was made before',
    always: ['re-enroll'],
    twin: () => ({
      transaction: (tx) => {
        const lock: Transaction['edge']['devices']['lock'] = async (deviceId) => {
          const device = await tx.edge.devices.lock(deviceId)
          const { suspension = null } = device ?? {}
          if (device === undefined || suspension === null) return device
          return { ...device, suspension: { ...suspension, since: 0 } }
        }
        return { ...tx, edge: { ...tx.edge, devices: { ...tx.edge.devices, lock } } }
      },
    }),
  },
  {
    name: 'imports-add-again',
    is: 'a repeated import adds all that is used at its source, not only what is new',
    always: ['import'],
    twin: () => ({
      transaction: (tx) => {
        const of: Transaction['importedUse']['of'] = async (accounts) => {
          const amounts = await tx.importedUse.of(accounts)
          return new Map([...amounts].map(([account]) => [account, 0n]))
        }
        return { ...tx, importedUse: { ...tx.importedUse, of } }
      },
    }),
  },
  {
    name: 'grants-from-the-reserve',
    is: 'devices are granted what a pool reserves for the twin',
    always: ['cloud-reserve'],
    twin: () => ({
      transaction: (tx) => {
        const cloudReserves = { ...tx.edge.cloudReserves, list: async () => [] }
        return { ...tx, edge: { ...tx.edge, cloudReserves } }
      },
    }),
  },
  {
    name: 'stale-pools-in-batch',
    is: 'a sync that shares a transaction is decided on the pools as they were before the others',
    always: ['twin-busy'],
    twin: () => ({ createLoadedSyncs: onStalePools }),
  },
  {
    name: 'unusual-leaves-a-trace',
    is: 'a sync that turns out to be unusual leaves writes in the shared transaction, and then has its own',
    always: ['twin-busy'],
    twin: () => ({ createLoadedSyncs: (...loaded) => new TraceKept(...loaded) }),
  },
]
