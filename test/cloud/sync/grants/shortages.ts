// Shortages: of the cloud's own requests, with the terms that hold where a test sets no others, and the tables of notes.
import { expect } from 'vitest'
import type { Returnable, Shortage } from '../../../../src/cloud/storage/device-records.ts'
import { CloudShortages } from '../../../../src/cloud/sync/grants/cloud-shortages.ts'

export function cloudShortages(): CloudShortages {
  return new CloudShortages({ syncEveryMs: 300_000, grantHorizonMs: 86_400_000 })
}

export const NOW = 360_000_000

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
          of: async (accounts: readonly string[], noted: unknown) => {
            expect(noted).toEqual({ since: NOW - 3_600_000, until: NOW })
            return this.known.filter(({ account }) => accounts.includes(account))
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
