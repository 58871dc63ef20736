/** Adds up entries that are not billed, with the reasons. */
import type { AccountId } from '../../../core/accounts/account.ts'
import { counted } from '../../../core/accounts/in-words.ts'
import type { Unbilled } from '../merge-context.ts'

export interface BranchUnbilled {
  readonly unsound: number
  /** Their charges may be billed by another writer, or be missing. */
  readonly refunds: number
  readonly unknown: number
  readonly implausible: number
  readonly accounts: ReadonlySet<AccountId>
}

export function unbilledOf(
  counts: Partial<Record<'broken' | 'unreadable' | 'misplaced' | 'lost', number>> & {
    readonly branch?: BranchUnbilled
  },
): Unbilled | null {
  const { broken = 0, unreadable = 0, misplaced = 0, lost = 0, branch } = counts
  const { unsound = 0, refunds = 0, unknown = 0, implausible = 0, accounts = new Set<string>() } = branch ?? {}
  const reasons: readonly (readonly [count: number, why: string])[] = [
    [broken, 'broken hash chain'],
    [misplaced, 'of an epoch that is not before the current one'],
    [lost, 'lost by the cloud, and billed by the counters of the device'],
    [unreadable, 'unreadable'],
    [unsound, 'amounts that do not add up'],
    [unknown, 'accounts that no rules have ever had'],
    [implausible, `more than was granted and than copies can have used of ${[...accounts].join(', ')}`],
  ]
  const found = reasons.filter(([count]) => count > 0)
  const problems = [
    ...(found.length === 0
      ? []
      : [`Not billed: ${found.map(([count, why]) => `${counted(count, 'entry', 'entries')} (${why})`).join('; ')}.`]),
    ...(refunds === 0 ? [] : [`Not paid: ${counted(refunds, 'refund', 'refunds')}.`]),
  ]
  if (problems.length === 0) return null
  return { entries: found.reduce((sum, [count]) => sum + count, 0), problem: problems.join(' ') }
}

/** Refunds that are not paid are named in the evidence, but are no use that is not billed. */
export function withEntries(unbilled: Unbilled | null): Unbilled | null {
  return unbilled?.entries === 0 ? null : unbilled
}

export function reportedOf(unbilled: Unbilled | null): { readonly unbilled?: number } {
  return unbilled === null || unbilled.entries === 0 ? {} : { unbilled: unbilled.entries }
}

export function sumUnbilled(a: Unbilled | null, b: Unbilled | null): Unbilled | null {
  if (a === null || b === null) return a ?? b
  return { entries: a.entries + b.entries, problem: `${a.problem} ${b.problem}` }
}
