/**
 * How the cloud processes reported segments. No counter ever falls, and the billed amount rises by exactly what the
 * ledger entries add up to.
 */
import { type AccountId, type ParsedAccount, type Posting, parseAccount } from '../accounts/account.ts'
import type { Micro } from '../pricing/amount.ts'
import { type Counters, METERED_MAX, NO_COUNTERS, impossible, available, sumPostings } from '../accounts/grant.ts'

export interface EpochState {
  /** FENCED: no grants or returns, but late segments are billed. CLOSED: the final segment is merged. */
  readonly status: 'ACTIVE' | 'FENCED' | 'CLOSED'
  readonly lastSeq: number
  /** Hash of the last merged segment; initially the chain start. */
  readonly lastHash: string
  readonly lastEntry: number
  /** Hash of the last merged entry; initially the chain start. */
  readonly entryHead: string
  readonly carriedOn: boolean
  /** Two writers have continued it. */
  readonly forked: boolean
}

export interface SegmentHeader {
  readonly seq: number
  readonly hash: string
  readonly previousHash: string
}

export type MergeOutcome =
  | { readonly kind: 'MERGE'; readonly mayGrant: boolean }
  | { readonly kind: 'REPEAT' }
  | { readonly kind: 'KNOWN' }
  | { readonly kind: 'BEHIND' }
  /** Two writers continued one chain (a copy, or a restored backup): keep the evidence, fence, bill both branches. */
  | { readonly kind: 'FORK' }

/**
 * Classifies a segment. Rows are tried from the top.
 * | seq        | hash, previousHash                | entries     | status                | outcome          |
 * |------------|-----------------------------------|-------------|-----------------------|------------------|
 * | = last     | hash is the one on record         | any         | any                   | REPEAT           |
 * | < last     | hash is the one on record         | any         | any                   | KNOWN            |
 * | <= last    | another hash                      | any         | any                   | FORK             |
 * | > last + 1 | any                               | any         | any, forked           | FORK             |
 * | = last + 1 | previousHash is the last hash     | nothing new | CLOSED by a later one | MERGE, no grants |
 * | > last + 1 | any                               | nothing new | CLOSED by a later one | BEHIND           |
 * | > last     | any                               | any         | CLOSED                | FORK             |
 * | > last + 1 | any                               | any         | ACTIVE, FENCED        | BEHIND           |
 * | = last + 1 | previousHash is not the last hash | any         | ACTIVE, FENCED        | FORK             |
 * | = last + 1 | previousHash is the last hash     | contradict  | ACTIVE, FENCED        | FORK             |
 * | = last + 1 | previousHash is the last hash     | other       | ACTIVE                | MERGE, grants    |
 * | = last + 1 | previousHash is the last hash     | other       | FENCED                | MERGE, no grants |
 *
 * @param recordedHash hash of the merged segment with the same seq; null: none
 * @param entries how the segment's entries fit the merged chain
 */
export function classifySegment(
  state: EpochState,
  segment: SegmentHeader,
  recordedHash: string | null,
  entries: ChainFit,
): MergeOutcome {
  if (segment.seq <= state.lastSeq) {
    if (segment.hash !== recordedHash) return { kind: 'FORK' }
    return { kind: segment.seq === state.lastSeq ? 'REPEAT' : 'KNOWN' }
  }
  const isFar = segment.seq > state.lastSeq + 1
  // The cloud has lost segments of one of the writers, and cannot ask for those of the other.
  if (isFar && state.forked) return { kind: 'FORK' }
  const follows = !isFar && segment.previousHash === state.lastHash
  if (state.status === 'CLOSED') {
    if (!state.carriedOn || !saysNothingNew(entries)) return { kind: 'FORK' }
    if (isFar) return { kind: 'BEHIND' }
    return follows ? { kind: 'MERGE', mayGrant: false } : { kind: 'FORK' }
  }
  if (isFar) return { kind: 'BEHIND' }
  if (!follows || entries.kind === 'CONTRADICTS') return { kind: 'FORK' }
  return { kind: 'MERGE', mayGrant: state.status === 'ACTIVE' }
}

function saysNothingNew(entries: ChainFit): boolean {
  return entries.kind === 'LOST' || (entries.kind === 'CONTINUES' && entries.fresh === 0)
}

export type ChainFit =
  /** The first `known` entries are in the chain; the next `fresh` ones continue it. */
  | { readonly kind: 'CONTINUES'; readonly known: number; readonly fresh: number }
  /** The range ends where the cloud has lost its entries, so they cannot be compared. */
  | { readonly kind: 'LOST' }
  /** The range starts after the chain's end, or after another hash. */
  | { readonly kind: 'DETACHED' }
  /** The chain has other content under the same numbers: two writers. */
  | { readonly kind: 'CONTRADICTS' }

export type EntryRange = Pick<ReceivedSegment, 'firstEntry' | 'entriesPreviousHash' | 'entryHashes'>

export function lastOf({ firstEntry, entryHashes }: EntryRange): number {
  return firstEntry + entryHashes.length - 1
}

/** Compares one hash, which covers all earlier entries. @param recorded of the range's last number; undefined: lost */
export function fitChain(
  { lastEntry, entryHead }: Pick<EpochState, 'lastEntry' | 'entryHead'>,
  range: EntryRange,
  recorded: string | undefined,
): ChainFit {
  const { firstEntry, entriesPreviousHash, entryHashes } = range
  if (firstEntry > lastEntry + 1) return { kind: 'DETACHED' }
  const n = Math.min(lastOf(range), lastEntry)
  const known = n - firstEntry + 1
  const claimed = known === 0 ? entriesPreviousHash : entryHashes[known - 1]
  const merged = n === lastEntry ? entryHead : recorded
  if (claimed === merged) return { kind: 'CONTINUES', known, fresh: entryHashes.length - known }
  if (merged === undefined) return { kind: 'LOST' }
  return { kind: firstEntry > lastEntry ? 'DETACHED' : 'CONTRADICTS' }
}

export function withoutKnown(segment: ReceivedSegment, known: number): ReceivedSegment {
  return {
    ...segment,
    firstEntry: segment.firstEntry + known,
    entriesPreviousHash: known === 0 ? segment.entriesPreviousHash : (segment.entryHashes[known - 1] ?? ''),
    entries: segment.entries.slice(known),
    entryHashes: segment.entryHashes.slice(known),
  }
}

export interface DeviceAccount extends Counters {
  readonly unlimited: boolean
  /** Use may exceed `granted`: the account is or was unlimited, and the device may report use from before the limit. */
  readonly metered: boolean
  readonly overspend: Micro
}

export const NO_DEVICE_ACCOUNT: DeviceAccount = { ...NO_COUNTERS, unlimited: false, metered: false, overspend: 0n }

export interface ReceivedEntry {
  readonly n: number
  /** `session`: moves no tokens. `burn`: has postings but no items; each account has its own amount. */
  readonly kind: 'access' | 'refund' | 'session' | 'burn'
  readonly instanceId: string
  readonly items: readonly {
    readonly total: Micro
    readonly parts: readonly { readonly lineItemId: string; readonly charged: Micro }[]
  }[]
  readonly postings: readonly Posting[]
}

export interface ReceivedSegment {
  /** Absolute values of the changed accounts. */
  readonly counters: readonly {
    readonly account: AccountId
    readonly used: Micro
    readonly refunded: Micro
    readonly returned: Micro
  }[]
  /** As the device reports: number of the first entry, and the chain head before it. */
  readonly firstEntry: number
  readonly entriesPreviousHash: string
  /** Chain head after the last entry, as reported. */
  readonly entryHead: string
  readonly entries: readonly ReceivedEntry[]
  readonly entryHashes: readonly string[]
}

export interface MergeTerms {
  readonly instances: ReadonlySet<string>
  /** Raises of `returned` count. False for a fenced epoch: tokens returned too late are kept reserved. */
  readonly returns: boolean
  /** The final segment: all unused tokens are returned, `R = G - U + F`. */
  readonly closes: boolean
  /** All later entries were decided after the device's last grant: accounts that it limits are no longer metered. */
  readonly grantTaken: boolean
  /** A restored cloud has forgotten grants: `granted` follows use. */
  readonly grantsForgotten: boolean
  /** Maximum overspend until the device's next contact, by its highest revision; `granted` follows it. Absent: 0. */
  readonly overspendCapOf?: (instanceId: string, lineItemId: string) => Micro
}

export interface AccountChange {
  readonly account: AccountId
  readonly before: DeviceAccount
  readonly after: DeviceAccount
}

export type Merge =
  | {
      readonly merged: true
      readonly changes: readonly AccountChange[]
      readonly lastEntry: number
      readonly entryHead: string
    }
  | NotMerged

export interface NotMerged {
  readonly merged: false
  readonly problem: MergeProblem
  readonly account?: AccountId
  readonly n?: number
}

/** Why a segment is invalid. Never happens with an honest device. */
export type MergeProblem =
  | 'ACCOUNT_UNKNOWN'
  | 'ACCOUNT_NAMED_TWICE'
  | 'INSTANCE_NOT_SERVED'
  | 'ENTRY_NUMBER_WRONG'
  | 'ENTRY_CHAIN_BROKEN'
  | 'ENTRY_DOES_NOT_ADD_UP'
  | 'COUNTER_FELL'
  | 'COUNTERS_DO_NOT_FIT_ENTRIES'
  | 'MORE_SPENT_THAN_GRANTED'
  | 'MORE_OVERSPEND_THAN_ALLOWED'

/**
 * The counters after a segment with outcome MERGE, or the first problem. Per account, use must rise by exactly
 * what the `access` and `burn` entries post, and refunds by what the `refund` entries post.
 *
 * @param accounts of the epoch: at least those that the segment names, all of them if it closes the epoch
 */
export function mergeSegment(
  state: EpochState,
  accounts: ReadonlyMap<AccountId, DeviceAccount>,
  segment: ReceivedSegment,
  terms: MergeTerms,
): Merge {
  const broken = checkEntries(state, segment, terms.instances)
  if (broken !== undefined) return broken

  const used = sumPostings(postingsOf(segment.entries, (kind) => kind !== 'refund'))
  const refunded = sumPostings(postingsOf(segment.entries, (kind) => kind === 'refund'))
  const after = mergeCounters(accounts, segment.counters, terms, { used, refunded })
  if (!(after instanceof Map)) return after
  for (const account of [...used.keys(), ...refunded.keys()]) {
    if (!after.has(account)) return { merged: false, problem: 'COUNTERS_DO_NOT_FIT_ENTRIES', account }
  }

  const changes: AccountChange[] = []
  for (const account of new Set([...accounts.keys(), ...after.keys()])) {
    const before = accounts.get(account) ?? NO_DEVICE_ACCOUNT
    const reported = after.get(account) ?? before
    const counted = terms.grantTaken ? { ...reported, metered: reported.unlimited } : reported
    const closed = terms.closes ? close(counted) : counted
    if (!same(before, closed)) changes.push({ account, before, after: closed })
  }
  return {
    merged: true,
    changes,
    lastEntry: state.lastEntry + segment.entries.length,
    entryHead: segment.entryHead,
  }
}

/** The counters as reported, for entries that the cloud has lost and the device no longer keeps. */
export function mergeReported(
  accounts: ReadonlyMap<AccountId, DeviceAccount>,
  counters: ReceivedSegment['counters'],
  terms: MergeTerms,
): readonly AccountChange[] | NotMerged {
  const after = mergeCounters(accounts, counters, terms, null)
  if (!(after instanceof Map)) return after
  return [...after].map(([account, merged]) => ({
    account,
    before: accounts.get(account) ?? NO_DEVICE_ACCOUNT,
    after: merged,
  }))
}

/** @param rises by entries; null: the counters alone count */
function mergeCounters(
  accounts: ReadonlyMap<AccountId, DeviceAccount>,
  counters: ReceivedSegment['counters'],
  terms: MergeTerms,
  rises: Readonly<Record<'used' | 'refunded', ReadonlyMap<AccountId, Micro>>> | null,
): Map<AccountId, DeviceAccount> | NotMerged {
  const overspend = new Overspend(terms)
  const after = new Map<AccountId, DeviceAccount>()
  for (const counter of counters) {
    const { account } = counter
    const parsed = parseAccount(account)
    if (parsed === undefined) return { merged: false, problem: 'ACCOUNT_UNKNOWN', account }
    if (!terms.instances.has(parsed.instanceId)) return { merged: false, problem: 'INSTANCE_NOT_SERVED', account }
    if (after.has(account)) return { merged: false, problem: 'ACCOUNT_NAMED_TWICE', account }
    const before = accounts.get(account) ?? NO_DEVICE_ACCOUNT
    if (counter.used < before.used || counter.refunded < before.refunded || counter.returned < before.returned) {
      return { merged: false, problem: 'COUNTER_FELL', account }
    }
    if (
      rises !== null &&
      (counter.used - before.used !== (rises.used.get(account) ?? 0n) ||
        counter.refunded - before.refunded !== (rises.refunded.get(account) ?? 0n))
    ) {
      return { merged: false, problem: 'COUNTERS_DO_NOT_FIT_ENTRIES', account }
    }
    const { used: spent, refunded: givenBack, returned } = counter
    const followed = followMeter({ ...before, used: spent, refunded: givenBack, returned })
    const reported = overspend.cover(parsed, followed)
    if (reported === undefined) return { merged: false, problem: 'MORE_OVERSPEND_THAN_ALLOWED', account }
    const isUngranted = spent > before.used && !overspend.mayExplain(parsed, reported)
    if (isUngranted || impossible(reported)) return { merged: false, problem: 'MORE_SPENT_THAN_GRANTED', account }
    after.set(account, terms.returns ? reported : { ...reported, returned: before.returned })
  }
  return after
}

function checkEntries(
  state: EpochState,
  segment: ReceivedSegment,
  instances: ReadonlySet<string>,
): NotMerged | undefined {
  const { entries, entryHashes } = segment
  if (segment.entriesPreviousHash !== state.entryHead) return { merged: false, problem: 'ENTRY_CHAIN_BROKEN' }
  if (segment.entryHead !== (entryHashes.at(-1) ?? state.entryHead)) {
    return { merged: false, problem: 'ENTRY_CHAIN_BROKEN' }
  }
  if (entries.length > 0 && segment.firstEntry !== state.lastEntry + 1) {
    return { merged: false, problem: 'ENTRY_NUMBER_WRONG', n: segment.firstEntry }
  }
  for (const [index, entry] of entries.entries()) {
    const { n } = entry
    if (n !== segment.firstEntry + index) return { merged: false, problem: 'ENTRY_NUMBER_WRONG', n }
    const problem = entryProblem(entry, instances)
    if (problem !== undefined) return { merged: false, problem, n }
  }
  return undefined
}

/** Checks a single entry: its instance is served and has its accounts, and the postings equal the billed lines. */
export function entryProblem(entry: ReceivedEntry, instances: ReadonlySet<string>): MergeProblem | undefined {
  if (!instances.has(entry.instanceId)) return 'INSTANCE_NOT_SERVED'
  if (entry.kind === 'session' && entry.items.length + entry.postings.length > 0) return 'ENTRY_DOES_NOT_ADD_UP'
  const posted = postedAmounts(entry)
  if (posted === undefined) return 'ACCOUNT_UNKNOWN'
  if (entry.kind === 'burn') return entry.items.length === 0 ? undefined : 'ENTRY_DOES_NOT_ADD_UP'
  const charged = chargedAmounts(entry.items)
  return charged !== undefined && addsUp(posted, charged) ? undefined : 'ENTRY_DOES_NOT_ADD_UP'
}

interface PostedAmounts {
  /** To the line item itself, in all its periods. */
  readonly byLineItem: ReadonlyMap<string, Micro>
  /** To each allocation and consumption limit of a line item. */
  readonly beside: readonly { readonly lineItemId: string; readonly amount: Micro }[]
}

/** Undefined: an account is one of another instance, or not well-formed. */
function postedAmounts({ instanceId, postings }: ReceivedEntry): PostedAmounts | undefined {
  const byLineItem = new Map<string, Micro>()
  const beside: { lineItemId: string; amount: Micro }[] = []
  for (const [account, amount] of sumPostings(postings)) {
    const parsed = parseAccount(account)
    if (parsed?.instanceId !== instanceId) return undefined
    const { kind, lineItemId } = parsed
    if (kind === 'line') byLineItem.set(lineItemId, (byLineItem.get(lineItemId) ?? 0n) + amount)
    else beside.push({ lineItemId, amount })
  }
  return { byLineItem, beside }
}

/** What the items charge, by line item. Undefined: the parts of an item do not add up to its total. */
function chargedAmounts(items: ReceivedEntry['items']): ReadonlyMap<string, Micro> | undefined {
  const charged = new Map<string, Micro>()
  for (const { total, parts } of items) {
    let sum = 0n
    for (const part of parts) {
      sum += part.charged
      charged.set(part.lineItemId, (charged.get(part.lineItemId) ?? 0n) + part.charged)
    }
    if (sum !== total) return undefined
  }
  return charged
}

function addsUp({ byLineItem, beside }: PostedAmounts, charged: ReadonlyMap<string, Micro>): boolean {
  const lineItemIds = new Set([...byLineItem.keys(), ...charged.keys()])
  const isPosted = [...lineItemIds].every((id) => (byLineItem.get(id) ?? 0n) === (charged.get(id) ?? 0n))
  // A charge to an allocation or limit is also a charge to the line item, which bounds the reported amounts.
  return isPosted && beside.every(({ lineItemId, amount }) => amount <= (charged.get(lineItemId) ?? 0n))
}

function* postingsOf(
  entries: readonly ReceivedEntry[],
  counts: (kind: ReceivedEntry['kind']) => boolean,
): Generator<Posting> {
  for (const entry of entries) if (counts(entry.kind)) yield* entry.postings
}

/** Use above the grants under the offline policy. The cap applies to all periods of a line item together. */
class Overspend {
  readonly #capOf: NonNullable<MergeTerms['overspendCapOf']>
  readonly #grantsForgotten: boolean
  readonly #ofLines = new Map<string, Micro>()

  constructor({ overspendCapOf, grantsForgotten }: MergeTerms) {
    this.#capOf = overspendCapOf ?? (() => 0n)
    this.#grantsForgotten = grantsForgotten
  }

  /** Whether there can be use, even if all of it was refunded. */
  mayExplain({ instanceId, lineItemId }: ParsedAccount, { granted, metered }: DeviceAccount): boolean {
    return granted > 0n || metered || this.#grantsForgotten || this.#capOf(instanceId, lineItemId) > 0n
  }

  /** Raises `granted` to cover the use. Above the cap: undefined, or a forgotten grant if grants were forgotten. */
  cover(parsed: ParsedAccount, account: DeviceAccount): DeviceAccount | undefined {
    const missing = -available(account)
    if (missing <= 0n) return account
    const cap = this.#capOf(parsed.instanceId, parsed.lineItemId)
    const key = `${parsed.instanceId}/${parsed.lineItemId}`
    const left = parsed.kind === 'line' ? cap - (this.#ofLines.get(key) ?? 0n) : cap
    const overspend = missing < left ? missing : left
    if (missing > overspend && !this.#grantsForgotten) return cap === 0n ? account : undefined
    if (parsed.kind === 'line') this.#ofLines.set(key, cap - left + overspend)
    return { ...account, granted: account.granted + missing, overspend: account.overspend + overspend }
  }
}

function followMeter(account: DeviceAccount): DeviceAccount {
  const { granted, used, refunded, returned, metered } = account
  const spent = used - refunded + returned
  return metered && spent > granted && spent <= METERED_MAX ? { ...account, granted: spent } : account
}

function close(account: DeviceAccount): DeviceAccount {
  return { ...account, returned: account.granted - account.used + account.refunded }
}

function same(a: DeviceAccount, b: DeviceAccount): boolean {
  return (
    a.granted === b.granted &&
    a.used === b.used &&
    a.refunded === b.refunded &&
    a.returned === b.returned &&
    a.unlimited === b.unlimited &&
    a.metered === b.metered &&
    a.overspend === b.overspend
  )
}
