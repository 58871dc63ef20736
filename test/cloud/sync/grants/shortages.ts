// Shortages: of the cloud's own requests, with the terms that hold where a test sets no others, and the tables of notes.
import { expect } from 'vitest'
import type { Returnable, ShortTimes, Shortage } from '../../../../src/cloud/storage/device-records.ts'
import { shortagesOf } from '../../../../sim/sharing/shortages-of.ts'
import type { Store } from '../../../../src/cloud/storage/store.ts'
import type { AccountId } from '../../../../src/core/accounts/account.ts'
import { CloudShortages } from '../../../../src/cloud/sync/grants/cloud-shortages.ts'

export function cloudShortages(): CloudShortages {
  return new CloudShortages({ syncEveryMs: 300_000, grantHorizonMs: 86_400_000 })
}

export const NOW = 360_000_000

/** Shortages of an account in a real store, under these names, whenever they were noted. */
export function shortagesIn(
  store: Pick<Store, 'read'>,
  account: AccountId,
  names: readonly string[],
): Promise<readonly Shortage[]> {
  const always = { since: 0, until: Number.MAX_SAFE_INTEGER, shortSince: 0 }
  return store.read(async ({ edge }) => {
    const found: Shortage[] = []
    for (const who of names) {
      const own = (await edge.shortages.of([account], always, who)).get(account)?.own
      if (own !== undefined) found.push(own)
    }
    return found
  })
}

/** The part of a transaction that shortages are read from and noted in. */
export class ShortageTables {
  readonly saved: Shortage[] = []
  readonly notified: string[] = []
  appended = 0
  asked: readonly unknown[] = []
  known: readonly Shortage[] = []
  /** What the others have of each account that was asked for. */
  returnable: Returnable = { inContact: 0n, all: 0n }
  returnableOf: readonly string[] = []
  readonly others: readonly { readonly deviceId: string; readonly available: bigint }[]

  constructor(...available: readonly bigint[]) {
    this.others = available.map((each, index) => ({ deviceId: `d${index}`, available: each }))
  }

  get tx() {
    return {
      outbox: {
        append: async (notifications: readonly { readonly kind: string }[], at: number) => {
          expect(at).toBe(NOW)
          this.appended += 1
          for (const each of notifications) {
            expect(each).toMatchObject({ kind: 'device', reason: 'sync' })
            this.notified.push((each as unknown as { readonly deviceId: string }).deviceId)
          }
        },
      },
      edge: {
        shortages: {
          of: async (accounts: readonly string[], times: ShortTimes, who: string) => {
            expect(times).toMatchObject({ since: NOW - 3_600_000, until: NOW })
            const ofOne = (account: string) => this.known.filter((shortage) => shortage.account === account)
            return new Map(accounts.map((account) => [account, shortagesOf(ofOne(account), times, who)]))
          },
          save: async (noted: Shortage) => void this.saved.push(noted),
        },
        deviceAccounts: {
          availableOfOthers: async (...asked: readonly unknown[]) => {
            this.asked = asked
            return this.others
          },
          returnable: async (accounts: readonly string[], ...asked: readonly unknown[]) => {
            this.asked = asked
            this.returnableOf = accounts
            return new Map(accounts.map((account) => [account, this.returnable]))
          },
        },
      },
    }
  }
}
