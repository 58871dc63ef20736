// What branches of one epoch may have spent above their grants, however it is delivered.
import fc from '../../../support/fast-check.ts'
import { expect, it } from 'vitest'
import { type AccountId, actionAccount, lineAccount } from '../../../../src/core/accounts/account.ts'
import { BranchOverspend } from '../../../../src/cloud/sync/merge/branch-overspend.ts'
import { type DeviceAccountRecord, newDeviceAccount } from '../../../../src/cloud/storage/device-records.ts'

const FIRST = lineAccount('i', 'A', 0)
const SECOND = lineAccount('i', 'A', 1)
const ACTION = actionAccount('i', 'A', 'a')
const REFUSED = lineAccount('i', 'B', 0)
const CAP = 40n

const amount = fc.bigInt({ min: 0n, max: 60n })
const posting = fc.record({ account: fc.constantFrom(FIRST, SECOND, ACTION, REFUSED), amount, aboveGrant: amount })
const deliveries = fc.array(fc.array(fc.array(posting, { maxLength: 4 }), { maxLength: 4 }), { maxLength: 6 })

it('is the overspend of each entry, at most its charge, up to one cap for the whole epoch', () => {
  fc.assert(
    fc.property(deliveries, (all) => {
      const records = new Map<AccountId, DeviceAccountRecord>()
      const honest = new Map<AccountId, bigint>()
      for (const entries of all) {
        const overspend = new BranchOverspend(records.values(), (instanceId, lineItemId) =>
          instanceId === 'i' && lineItemId === 'A' ? CAP : 0n,
        )
        const counted = new Map<AccountId, bigint>()
        for (const postings of entries) {
          for (const [index, each] of overspend.of(postings).entries()) {
            const { account, amount, aboveGrant } = postings[index]!
            expect(each <= amount && each <= aboveGrant).toBe(true)
            counted.set(account, (counted.get(account) ?? 0n) + each)
            const above = aboveGrant < amount ? aboveGrant : amount
            honest.set(account, (honest.get(account) ?? 0n) + above)
          }
          overspend.take(postings)
        }
        for (const [account, each] of counted) {
          const before = records.get(account) ?? newDeviceAccount('d', 1, account)
          records.set(account, { ...before, branchOverspend: before.branchOverspend + each })
        }
      }
      const total = (...accounts: AccountId[]) =>
        accounts.reduce((sum, account) => sum + (records.get(account)?.branchOverspend ?? 0n), 0n)
      const told = (...accounts: AccountId[]) =>
        accounts.reduce((sum, account) => sum + (honest.get(account) ?? 0n), 0n)
      const most = (said: bigint) => (said < CAP ? said : CAP)
      expect(total(FIRST, SECOND)).toBe(most(told(FIRST, SECOND)))
      expect(total(ACTION)).toBe(most(told(ACTION)))
      expect(total(REFUSED)).toBe(0n)
    }),
  )
})
