// Pages of accounts are limited by the balances in them, too: an account has one for each epoch of each device.
import { expect, it } from 'vitest'
import { accountLedger } from '../../../src/cloud/accounts/account-ledger.ts'
import { newPool } from '../../../src/cloud/accounts/pool.ts'
import type { Reader, Store } from '../../../src/cloud/storage/store.ts'
import { type AccountId, lineAccount } from '../../../src/core/accounts/account.ts'

const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
const BALANCES = 6_000
const pools = [0, 1, 2, 3, 4].map((period) => newPool(lineAccount(INSTANCE, 'ACT-1', period), 1n))

it('a page ends early when its accounts have very many balances, and the next one continues', async () => {
  const read: AccountId[] = []
  const reader = {
    instances: { get: async () => ({ id: INSTANCE }) },
    accounts: { page: async (_id: string, offset: number, limit: number) => pools.slice(offset, offset + limit) },
    edge: {
      deviceAccounts: {
        countsOf: async (accounts: readonly AccountId[]) => new Map(accounts.map((account) => [account, BALANCES])),
        ofAccounts: async (accounts: readonly AccountId[]) => {
          read.push(...accounts)
          return []
        },
      },
    },
  } as unknown as Reader
  const store: Pick<Store, 'read'> = { read: (work) => work(reader) }
  const ends: number[] = []
  const shown: AccountId[] = []
  do {
    const { accounts, next } = await accountLedger({ store }, INSTANCE, ends.at(-1) ?? 0, 4)
    shown.push(...accounts.map(({ account }) => account))
    ends.push(next)
  } while (ends.at(-1) !== 0)
  expect(ends).toEqual([2, 4, 0])
  expect(shown).toEqual(pools.map(({ account }) => account))
  expect(read).toEqual(shown)
})
