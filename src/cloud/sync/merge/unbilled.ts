/** Entries that came with a segment, cannot be billed and are kept as evidence. Device and administrator are told of them. */
import type { AccountId } from '../../../core/accounts/account.ts'

export interface Unbilled {
  /** How many. */
  readonly entries: number
  /** For administrators. */
  readonly problem: string
}

/** Charges of a branch that are not billed. */
export interface BranchUnbilled {
  /** Entries that do not add up by themselves. */
  readonly unsound: number
  /** Entries of accounts that no rules have ever had. */
  readonly unknown: number
  /** Entries that use more than can have been used. */
  readonly implausible: number
  /** Of which they use it. */
  readonly accounts: ReadonlySet<AccountId>
}

/** What is to be told; null where everything is billed. */
export function unbilledOf({
  broken = 0,
  unreadable = 0,
  misplaced = 0,
  lost = 0,
  branch,
}: {
  readonly broken?: number
  readonly unreadable?: number
  readonly misplaced?: number
  readonly lost?: number
  readonly branch?: BranchUnbilled
}): Unbilled | null {
  const { unsound = 0, unknown = 0, implausible = 0, accounts = new Set<string>() } = branch ?? {}
  const reasons: readonly (readonly [count: number, why: string])[] = [
    [broken, 'their hash chain is broken'],
    [misplaced, 'they name an epoch that is not before the one that brings them'],
    [lost, 'they are among those that the cloud has lost and has billed by the counters of the device'],
    [unreadable, 'they cannot be read'],
    [unsound, 'they do not add up'],
    [unknown, 'they use accounts that no rules have ever had'],
    [implausible, `more than was granted and than copies can have used of ${[...accounts].join(', ')}`],
  ]
  const found = reasons.filter(([count]) => count > 0)
  if (found.length === 0) return null
  return {
    entries: found.reduce((sum, [count]) => sum + count, 0),
    problem: `Not billed: ${found.map(([count, why]) => `${count} entries (${why})`).join('; ')}.`,
  }
}

/** What the answer to the segment says of it. */
export function reportedOf(unbilled: Unbilled | null): { readonly unbilled?: number } {
  return unbilled === null || unbilled.entries === 0 ? {} : { unbilled: unbilled.entries }
}

export function together(a: Unbilled | null, b: Unbilled | null): Unbilled | null {
  if (a === null || b === null) return a ?? b
  return { entries: a.entries + b.entries, problem: `${a.problem} ${b.problem}` }
}
