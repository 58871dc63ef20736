import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { decideInTurn, decideOverPools, guessInTurn, refundPools } from '../../../src/cloud/policy/decide-over-pools.ts'
import { charge, newPool, withhold } from '../../../src/cloud/accounts/pool.ts'
import { type LoadedPolicy, Policies } from '../../../src/cloud/policy/load-policy.ts'
import { createRateTable } from '../../../src/cloud/service-api/change-rate-tables.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import { mapLineItem } from '../../../src/cloud/service-api/map-line-item.ts'
import { setConsumptionLimit } from '../../../src/cloud/service-api/set-consumption-limit.ts'
import type { Pool } from '../../../src/cloud/storage/records.ts'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import type { Store, Transaction } from '../../../src/cloud/storage/store.ts'
import { type AccountId, lineAccount, limitAccount } from '../../../src/core/accounts/account.ts'
import { decimal, wholeTokens } from '../../../src/core/pricing/amount.ts'
import type { Decision } from '../../../src/core/rules/decision.ts'
import type { ReservedItem } from '../../../src/core/sessions/session.ts'
import type { LineItemBody } from '../../../src/protocol/service/line-items.ts'

const NOW = Date.UTC(2026, 4, 6)
const DAY = 86_400_000
const ID = '64d2028c-ae87-4069-a624-66089d957ef9'
const A = lineAccount(ID, 'A', 0)
const B = lineAccount(ID, 'B', 0)

/** A store with an instance where `Print` costs a token, and line items A and B of these quantities. */
async function openStore(
  quantities: readonly number[],
  change: Partial<LineItemBody['attributes']> = {},
): Promise<Store> {
  const folder = mkdtempSync(join(tmpdir(), 'tallygate-decide-'))
  const store = openSqliteStore({ path: join(folder, 'twin.db'), check: false, onBroken: () => undefined })
  onTestFinished(async () => {
    await store.close()
    rmSync(folder, { recursive: true })
  })
  const items = [{ name: 'Print', version: '', rate: decimal('1') }]
  await createRateTable(store, { version: '1', effectiveFrom: NOW - DAY, items }, NOW)
  await createInstance(store, { id: ID, shortName: 's', accountId: 'customer' }, NOW)
  for (const [index, quantity] of quantities.entries()) {
    const body = {
      activationId: 'AB'.charAt(index),
      state: 'DEPLOYED' as const,
      quantity,
      start: NOW - DAY,
      end: NOW + (100 + index) * DAY,
      attributes: { elastic: true, ...change },
    }
    await mapLineItem(store, ID, body, NOW)
  }
  return store
}

function inTransaction<T>(store: Store, work: (tx: Transaction, loaded: LoadedPolicy) => Promise<T>): Promise<T> {
  const policies = new Policies({ max: 1, undecidedClock: 'refuse' })
  return store.transaction(async (tx) => {
    const loaded = await policies.lockShared(tx, ID, NOW)
    if (loaded === undefined) throw new Error('there is no such instance')
    return work(tx, loaded)
  })
}

const prints = (...counts: readonly string[]) =>
  ({
    request: {
      requester: { type: 'user', value: 'Lisa', dictionary: {} },
      items: counts.map((count) => ({ name: 'Print', version: '', count: decimal(count) })),
    },
    mode: 'BEST_EFFORT',
    now: NOW,
  }) as const

/** Per item: the reason of a refusal, or what each line item was charged. */
const gist = ({ items }: Decision): unknown =>
  items.map((item) => {
    if (item.outcome === 'REFUSED') return item.reason
    if (item.outcome === 'NOT_CHARGED') return item.outcome
    return item.shares.map(({ lineItemId, charged }) => `${lineItemId} ${charged}`)
  })

const reserved = (charged: bigint, ...accounts: readonly AccountId[]): ReservedItem => ({
  item: { name: 'Print', version: '', count: decimal('1'), metaData: null },
  shares: [{ lineItemId: 'A', accounts, charged }],
})

/** The same transaction, with other calls of its accounts. */
const withAccounts = (tx: Transaction, change: Partial<Transaction['accounts']>): Transaction => ({
  ...tx,
  accounts: { ...tx.accounts, ...change },
})

/** Another node opens this pool first, and charges it before this node can lock it. */
function overtaken(tx: Transaction, account: AccountId, amount: bigint): Transaction {
  let isOpen = false
  return withAccounts(tx, {
    open: async (wanted) => {
      const opened = await tx.accounts.open(wanted)
      const pool = opened.get(account) ?? (isOpen ? undefined : newPool(account, 10_000_000n))
      if (isOpen || pool === undefined) return opened
      isOpen = true
      const taken = charge(pool, amount)
      await tx.accounts.save([taken])
      return new Map([...opened, [account, taken]])
    },
  })
}

describe('a pool that does not exist yet', () => {
  it('is decided on again if another node has created and charged it meanwhile', async () => {
    const store = await openStore([10])
    const { decision, changed, before } = await inTransaction(store, (tx, loaded) =>
      decideOverPools(overtaken(tx, A, 7_000_000n), loaded, prints('3', '1')),
    )
    expect(gist(decision)).toEqual([['A 3000000'], 'INSUFFICIENT_TOKENS'])
    expect(before.get(A)?.charged).toBe(7_000_000n)
    expect(changed.map(({ account, charged }) => [account, charged])).toEqual([[A, 10_000_000n]])
  })

  it('is not decided on again if no other node was faster', async () => {
    const store = await openStore([10])
    let decisions = 0
    const settle = (decision: Decision): Decision => {
      decisions += 1
      return decision
    }
    await inTransaction(store, (tx, loaded) => decideInTurn(tx, [{ ...prints('1'), loaded, settle }]))
    expect(decisions).toBe(1)
  })

  it('is created also for a grant below the least amount: its record shows the use of others', async () => {
    const store = await openStore([10, 10])
    const totals = await inTransaction(store, async (tx, loaded) => {
      const { changed, before } = await decideOverPools(overtaken(tx, A, 4_000_000n), loaded, prints('0.0000001'))
      return { changed, before: [...before].map(([account, { charged }]) => [account, charged]) }
    })
    expect(totals).toEqual({ changed: [], before: [[A, 4_000_000n]] })
    const pools = await store.read((reader) => reader.accounts.ofLineItem(ID, 'B'))
    expect(pools).toEqual([])
  })

  it('is not created for an item that is refused', async () => {
    const store = await openStore([10])
    const { decision } = await inTransaction(store, (tx, loaded) => decideOverPools(tx, loaded, prints('11')))
    expect(gist(decision)).toEqual(['INSUFFICIENT_TOKENS'])
    expect(await store.read((reader) => reader.accounts.ofLineItem(ID, 'A'))).toEqual([])
  })

  it('of a limit is not created by a grant below the least amount, which counts towards no limit', async () => {
    const store = await openStore([10])
    const limit = { limit: wholeTokens(5), frequency: 'DAILY', nextReset: NOW + DAY } as const
    await setConsumptionLimit(store, { instanceId: ID, lineItemId: 'A' }, limit, NOW)
    const { decision } = await inTransaction(store, (tx, loaded) => decideOverPools(tx, loaded, prints('0.0000001')))
    expect(gist(decision)).toEqual([['A 0']])
    const pools = await store.read((reader) => reader.accounts.ofLineItem(ID, 'A'))
    expect(pools.map(({ account }) => account)).toEqual([A])
  })
})

describe('locks', () => {
  async function calls(store: Store, counts: readonly string[], lastSeen?: ReadonlyMap<AccountId, Pool>) {
    const [locks, reads]: [AccountId[][], AccountId[][]] = [[], []]
    let decisions = 0
    const { outcomes } = await inTransaction(store, async (tx, loaded) => {
      const watched = withAccounts(tx, {
        lock: async (accounts) => {
          locks.push([...accounts])
          return tx.accounts.lock(accounts)
        },
        get: async (accounts) => {
          reads.push([...accounts])
          return tx.accounts.get(accounts)
        },
      })
      const settle = (decision: Decision) => {
        decisions += 1
        return gist(decision)
      }
      const requests = counts.map((count) => ({ ...prints(count), loaded, settle }))
      const guess = lastSeen === undefined ? undefined : guessInTurn(requests, lastSeen)
      const decided = await decideInTurn(watched, requests, { guess })
      await tx.accounts.save(decided.changed)
      return decided
    })
    return {
      locks,
      reads,
      decisions,
      outcomes: outcomes.map((each) => (each.status === 'fulfilled' ? each.value : (each.reason as unknown))),
    }
  }

  it('are taken once, for the pools that the decision needs according to earlier reads', async () => {
    const store = await openStore([10, 5])
    expect(await calls(store, ['8'])).toMatchObject({ locks: [[A]], reads: [[A]] })
    expect(await calls(store, ['4'])).toMatchObject({
      locks: [[A, B]],
      reads: [[A], [B]],
      outcomes: [[['A 2000000', 'B 2000000']]],
    })
    expect(await calls(store, ['1'])).toMatchObject({ locks: [[A, B]], outcomes: [[['B 1000000']]] })
  })

  it('are taken without reading where the caller knows the pools, and again for one that it did not expect', async () => {
    const store = await openStore([10, 5])
    expect(await calls(store, ['8'], new Map())).toMatchObject({ locks: [[A]], reads: [] })
    expect(await calls(store, ['4'], new Map())).toMatchObject({
      locks: [[A], [B]],
      reads: [],
      outcomes: [[['A 2000000', 'B 2000000']]],
    })
  })

  it('are taken for decisions that stand if the pools are as they were, and are made again if not', async () => {
    const store = await openStore([10])
    const before = newPool(A, 10_000_000n)
    expect(await calls(store, ['4', '3'], new Map([[A, before]]))).toMatchObject({
      decisions: 2,
      outcomes: [[['A 4000000']], [['A 3000000']]],
    })
    expect(await calls(store, ['4'], new Map([[A, before]]))).toMatchObject({
      decisions: 2,
      outcomes: [['INSUFFICIENT_TOKENS']],
    })
    const pools = await store.read((reader) => reader.accounts.get([A]))
    expect(pools.get(A)?.charged).toBe(7_000_000n)
  })

  it('are expected by pools that were seen before, and a pool that was never seen is expected to be full', async () => {
    const store = await openStore([10, 5])
    const [unseen, emptyA] = await inTransaction(store, async (_tx, loaded) => {
      const requests = [{ ...prints('4'), loaded, settle: () => undefined }]
      const charged = charge(newPool(A, 10_000_000n), 8_000_000n)
      return [guessInTurn(requests, new Map()).consulted, guessInTurn(requests, new Map([[A, charged]])).consulted]
    })
    expect(unseen).toEqual(new Set([A]))
    expect(emptyA).toEqual(new Set([A, B]))
  })
})

describe('requests that are decided one after another', () => {
  it('see the charges of those before them, and one that fails charges nothing', async () => {
    const store = await openStore([10])
    const failing = () => {
      throw new Error('cannot be recorded')
    }
    const { outcomes, changed } = await inTransaction(store, (tx, loaded) =>
      decideInTurn(tx, [
        { ...prints('4'), loaded, settle: gist },
        { ...prints('6'), loaded, settle: failing },
        { ...prints('6'), loaded, settle: gist },
        { ...prints('1'), loaded, settle: gist },
      ]),
    )
    expect(outcomes).toEqual([
      { status: 'fulfilled', value: [['A 4000000']] },
      { status: 'rejected', reason: new Error('cannot be recorded') },
      { status: 'fulfilled', value: [['A 6000000']] },
      { status: 'fulfilled', value: ['INSUFFICIENT_TOKENS'] },
    ])
    expect(changed.map(({ charged }) => charged)).toEqual([10_000_000n])
  })

  it('change only the pools that they charge', async () => {
    const store = await openStore([1, 5])
    const { decision, changed, after } = await inTransaction(store, (tx, loaded) =>
      decideOverPools(tx, loaded, { ...prints('7', '0.5'), mode: 'BEST_EFFORT' }),
    )
    expect(gist(decision)).toEqual(['INSUFFICIENT_TOKENS', ['A 500000']])
    expect(changed.map(({ account }) => account)).toEqual([A])
    expect([...after.keys()].toSorted()).toEqual([A, B].toSorted())
  })

  it('fail with the cause', async () => {
    const store = await openStore([10])
    const { request } = prints('1')
    const items = [{ ...request.items[0]!, count: null as never }]
    const broken = { ...prints('1'), request: { ...request, items } }
    await expect(inTransaction(store, (tx, loaded) => decideOverPools(tx, loaded, broken))).rejects.toThrow(TypeError)
  })
})

describe('a refund', () => {
  it('is refunded before anything is charged, to each account once for each share', async () => {
    const store = await openStore([10])
    await setConsumptionLimit(
      store,
      { instanceId: ID, lineItemId: 'A' },
      { limit: wholeTokens(10), frequency: 'DAILY', nextReset: NOW + DAY },
      NOW,
    )
    const L = limitAccount(ID, 'A', { type: 'user', value: 'Lisa' }, 0)
    const decided = await inTransaction(store, async (tx, loaded) => {
      const first = await decideOverPools(tx, loaded, prints('8'))
      await tx.accounts.save(first.changed)
      const back = [reserved(3_000_000n, A, L), reserved(2_000_000n, A, L), reserved(0n, B)]
      const again = await decideOverPools(tx, loaded, prints('7'), back)
      await tx.accounts.save(again.changed)
      return again
    })
    expect(gist(decided.decision)).toEqual([['A 7000000']])
    expect([...decided.before].map(([account, { charged }]) => [account, charged]).toSorted()).toEqual(
      [
        [A, 3_000_000n],
        [L, 3_000_000n],
      ].toSorted(),
    )
    expect(decided.changed.map(({ charged }) => charged)).toEqual([10_000_000n, 10_000_000n])
  })

  it('is recorded and shown even if the request charges nothing', async () => {
    const store = await openStore([10])
    const { before, changed } = await inTransaction(store, async (tx, loaded) => {
      await tx.accounts.save((await decideOverPools(tx, loaded, prints('8'))).changed)
      return decideOverPools(tx, loaded, prints(), [reserved(8_000_000n, A)])
    })
    expect(before.get(A)?.charged).toBe(0n)
    expect(changed).toMatchObject([{ account: A, charged: 0n }])
  })

  it('without a request is refunded to each charged account', async () => {
    const store = await openStore([10, 10])
    const pools = await inTransaction(store, async (tx, loaded) => {
      await tx.accounts.save((await decideOverPools(tx, loaded, prints('8'))).changed)
      return refundPools(tx, [reserved(3_000_000n, A), reserved(2_000_000n, A), reserved(0n, B)])
    })
    expect(pools.map(({ account, charged }) => [account, charged])).toEqual([[A, 3_000_000n]])
  })
})

describe('a cloud that was restored from a backup', () => {
  const unproven = (loaded: LoadedPolicy): LoadedPolicy => ({ ...loaded, unproven: true })

  it('sells no limited tokens while earlier sales are unknown, and says why', async () => {
    const store = await openStore([10])
    const { decision } = await inTransaction(store, (tx, loaded) => decideOverPools(tx, unproven(loaded), prints('1')))
    expect(gist(decision)).toEqual(['POOL_IN_RECOVERY'])
  })

  it('still sells unlimited tokens', async () => {
    const store = await openStore([10], { overdraftType: 'Unlimited' })
    const { decision } = await inTransaction(store, (tx, loaded) => decideOverPools(tx, unproven(loaded), prints('99')))
    expect(gist(decision)).toEqual([['A 99000000']])
  })

  it('says that a request is more than unlimited tokens can count', async () => {
    const store = await openStore([10], { overdraftType: 'Unlimited' })
    const absurd = prints('1000000001')
    const { decision } = await inTransaction(store, (tx, loaded) => decideOverPools(tx, loaded, absurd))
    expect(gist(decision)).toEqual(['COUNTER_FULL'])
  })

  it('names the recovery as the reason only where tokens are withheld', async () => {
    const store = await openStore([10])
    const [withheld, empty] = await inTransaction(store, async (tx, loaded) => {
      await tx.accounts.open([{ account: A, cap: 10_000_000n }])
      const pool = charge(newPool(A, 10_000_000n), 1_000_000n)
      await tx.accounts.save([withhold(pool, 5_000_000n)])
      const first = await decideOverPools(tx, loaded, prints('9'))
      await tx.accounts.save([pool])
      return [first, await decideOverPools(tx, loaded, prints('10'))]
    })
    expect(gist(withheld.decision)).toEqual(['POOL_IN_RECOVERY'])
    expect(gist(empty.decision)).toEqual(['INSUFFICIENT_TOKENS'])
  })
})
