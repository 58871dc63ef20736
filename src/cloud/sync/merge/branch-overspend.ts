/** The offline policy's cap bounds all deliveries of an epoch together: a copy that has met the cloud is fenced. */
import { type AccountId, isLineAccount, lineItemKey, parseAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { OverspendCapOf } from '../../policy/rules-in-force.ts'
import type { OpenedEntry } from '../open-segment.ts'
import type { DeviceAccountRecord } from '../../storage/device-records.ts'

type Postings = OpenedEntry['body']['postings']

/** The posting's amount above the grant, at most the posting itself. */
export function aboveGrantOf({ amount, aboveGrant = 0n }: Postings[number]): Micro {
  return aboveGrant < amount ? aboveGrant : amount
}

export class BranchOverspend {
  readonly #caps: OverspendCapOf
  readonly #spent = new Map<string, Micro>()

  constructor(records: Iterable<DeviceAccountRecord>, caps: OverspendCapOf) {
    this.#caps = caps
    for (const { account, branchOverspend } of records) if (branchOverspend > 0n) this.#add(account, branchOverspend)
  }

  /** The amount of each posting that counts, in order. */
  of(postings: Postings): readonly Micro[] {
    const spent = new Map<string, Micro>()
    return postings.map((posting) => {
      const { account } = posting
      const key = keyOf(account)
      const before = spent.get(key) ?? this.#spent.get(key) ?? 0n
      const left = this.#capOf(account) - before
      const above = aboveGrantOf(posting)
      const counted = left <= 0n ? 0n : above < left ? above : left
      spent.set(key, before + counted)
      return counted
    })
  }

  take(postings: Postings): void {
    const counted = this.of(postings)
    for (const [index, { account }] of postings.entries()) this.#add(account, counted[index] ?? 0n)
  }

  #add(account: AccountId, amount: Micro): void {
    const key = keyOf(account)
    this.#spent.set(key, (this.#spent.get(key) ?? 0n) + amount)
  }

  #capOf(account: AccountId): Micro {
    const parsed = parseAccount(account)
    return parsed === undefined ? 0n : this.#caps(parsed.instanceId, parsed.lineItemId)
  }
}

function keyOf(account: AccountId): string {
  return isLineAccount(account) ? lineItemKey(account) : account
}
