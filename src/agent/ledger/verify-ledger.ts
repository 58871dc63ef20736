/**
 * Checks a ledger against itself and the cloud's signatures. Never throws on a damaged one. Makes no decision again, so
 * it fits entries of every engine version.
 */
import { z } from 'zod'
import { engineVersion } from '../../protocol/edge/engines.ts'
import {
  type EntryBody,
  entryBody,
  segment as segmentForm,
  type Segment,
  syncAnswer,
} from '../../protocol/edge/sync.ts'
import { firstProblem } from '../../protocol/errors.ts'
import type { LedgerBundle } from '../../protocol/local/ledger-bundle.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { CHAIN_START, entryHash, sha256, unverifiedText } from '../../protocol/signing.ts'
import { parseAccount } from '../../core/accounts/account.ts'
import { type PolicyDocument, policyDocument, policyOf } from '../../protocol/edge/policy-document.ts'
import { Trust } from '../keys/trust.ts'
import { deriveState, describeEdit, openSigned, trustInAnswers } from './signed-state.ts'

export interface Finding {
  readonly kind:
    | 'ENTRY_MALFORMED'
    | 'ENTRY_MISSING'
    | 'ENTRY_CHAIN'
    | 'SEGMENT_MALFORMED'
    | 'SEGMENT_CHAIN'
    | 'RECEIPT'
    | 'COUNTERS'
    | 'OVERSPENT'
    | 'GRANT'
    | 'POLICY'
    | 'KEYS'
  /** For instance `entry 12`, `segment 3 of epoch 1`, or an account. */
  readonly where: string
  readonly problem: string
}

export interface Verification {
  readonly findings: readonly Finding[]
  readonly checked: {
    readonly entries: number
    /** Entries whose place in the chain could be checked. */
    readonly chained: number
    readonly segments: number
    readonly receipts: number
    readonly accounts: number
  }
  readonly engines: readonly { readonly engine: number; readonly entries: number }[]
}

const engineOf = z.object({ engine: engineVersion })

const FINDINGS_MAX = 1_000

type GiveWay = () => Promise<void> | undefined

type SegmentRow = LedgerBundle['segments'][number]

type EntryRow = LedgerBundle['entries'][number]

/** Entries and segments are read again each time, because memory may not suffice for all of them. */
export interface ReadableLedger extends Omit<LedgerBundle, 'entries' | 'segments'> {
  /** By id. */
  readonly entries: Iterable<EntryRow>
  /** By epoch and number. */
  readonly segments: Iterable<SegmentRow>
}

interface CheckedSegment extends Pick<SegmentRow, 'epoch' | 'seq' | 'hash' | 'state'>, Pick<Segment, 'previousHash'> {
  readonly entries: Pick<Segment['entries'], 'first' | 'previousHash' | 'head'> & { readonly count: number }
}

interface CheckedSegments {
  readonly segments: readonly CheckedSegment[]
  readonly receipts: number
  /** Of the current epoch, by account. */
  readonly newest: ReadonlyMap<string, NewestCounters>
}

interface NewestCounters {
  readonly seq: number
  readonly where: string
  readonly counters: Segment['counters'][number]
}

/** @param giveWay called for each row, and waited for: the check of a large ledger takes minutes */
export async function verifyLedger(ledger: ReadableLedger, giveWay: GiveWay = () => undefined): Promise<Verification> {
  const findings: Finding[] = []
  const find = (kind: Finding['kind'], where: string, problem: string): void => {
    if (findings.length < FINDINGS_MAX) findings.push({ kind, where, problem })
  }
  const trust = await trustOf(ledger, find)
  const { segments, receipts, newest } = await checkSegments(ledger, trust, find, giveWay)
  checkChain(segments, find)
  checkLastSegment(ledger, segments, find)
  const { entries, chained, engines, sums } = await checkEntries(ledger, segments, find, giveWay)
  const accounts = ledger.accounts.map(countedOf)
  checkCounters(accounts, sums, find)
  checkSealedCounters(accounts, ledger.state, { segments, newest }, find)
  await checkSigned(ledger, accounts, trust, find)
  return {
    findings,
    checked: { entries, chained, segments: segments.length, receipts, accounts: accounts.length },
    engines,
  }
}

type Find = (kind: Finding['kind'], where: string, problem: string) => void

async function trustOf(keys: Pick<LedgerBundle, 'trustedKeys' | 'formerKeys'>, find: Find): Promise<Trust> {
  try {
    return await trustInAnswers(keys)
  } catch {
    find('KEYS', 'the pinned keys', 'they cannot be read: no receipt can be checked')
    return Trust.of([])
  }
}

const nameOf = ({ epoch, seq }: Pick<SegmentRow, 'epoch' | 'seq'>): string => `segment ${seq} of epoch ${epoch}`

async function checkSegments(
  ledger: ReadableLedger,
  trust: Trust,
  find: Find,
  giveWay: GiveWay,
): Promise<CheckedSegments> {
  const segments: CheckedSegment[] = []
  const newest = new Map<string, NewestCounters>()
  let receipts = 0
  for (const row of ledger.segments) {
    await giveWay()
    const payload = checkedPayload(row, ledger, find)
    if (payload === undefined) continue
    const { epoch, seq, hash, state } = row
    const { previousHash, entries, counters } = payload
    const { bodies, ...range } = entries
    segments.push({ epoch, seq, hash, state, previousHash, entries: { ...range, count: bodies.length } })
    if (await hasReceipt(row, payload, trust, find)) receipts += 1
    if (epoch !== ledger.state.epoch) continue
    for (const each of counters) newest.set(each.account, { seq, where: nameOf(row), counters: each })
  }
  return { segments, receipts, newest }
}

/** Or the problem. */
function parsedPayload({ document }: SegmentRow): { readonly text: string; readonly payload: Segment } | string {
  const text = unverifiedText(document)
  const parsed = segmentForm.safeParse(text === undefined ? undefined : parseJson(text))
  if (text !== undefined && parsed.success) return { text, payload: parsed.data }
  return parsed.success ? 'it is no signed document' : firstProblem(parsed.error, 'segment')
}

function checkedPayload(row: SegmentRow, { deviceId }: ReadableLedger, find: Find): Segment | undefined {
  const where = nameOf(row)
  const parsed = parsedPayload(row)
  if (typeof parsed === 'string') {
    find('SEGMENT_MALFORMED', where, parsed)
    return undefined
  }
  const { text, payload } = parsed
  if (sha256(text) !== row.hash) find('SEGMENT_MALFORMED', where, 'its hash is not that of its content')
  if (payload.epoch !== row.epoch || payload.seq !== row.seq || payload.deviceId !== deviceId) {
    find('SEGMENT_MALFORMED', where, 'it was sealed under another number, or by another device')
  }
  const { bodies, previousHash, head } = payload.entries
  if (bodies.reduce(entryHash, previousHash) !== head)
    find('ENTRY_CHAIN', where, 'the entries in it do not make the chain that it names')
  return payload
}

function checkChain(segments: readonly CheckedSegment[], find: Find): void {
  const byPlace = new Map(segments.map((each) => [`${each.epoch} ${each.seq}`, each]))
  for (const each of segments) {
    const before = byPlace.get(`${each.epoch} ${each.seq - 1}`)
    const expected = each.seq === 1 ? CHAIN_START : before?.hash
    if (expected !== undefined && each.previousHash !== expected) {
      find('SEGMENT_CHAIN', nameOf(each), 'it does not follow the one before it')
    }
    if (before !== undefined && before.entries.head !== each.entries.previousHash) {
      find('ENTRY_CHAIN', nameOf(each), 'its entries do not follow those of the segment before it')
    }
  }
}

/** The ledger names the end of the last segment as the end of its chain. */
function checkLastSegment({ state }: ReadableLedger, segments: readonly CheckedSegment[], find: Find): void {
  const last = segments.findLast(({ epoch }) => epoch === state.epoch)
  // A full disk may have cost the last one.
  if (last === undefined || last.seq < state.lastSeq) return
  if (last.seq !== state.lastSeq || last.hash !== state.segmentHead) {
    find('SEGMENT_CHAIN', nameOf(last), 'it is not the one that the ledger names as its last')
    return
  }
  const { first, count, head, previousHash } = last.entries
  const end = { entry: first + count - 1, head }
  const acked = last.state === 'UNACKNOWLEDGED' ? { entry: first - 1, head: previousHash } : end
  if (state.sealedEntry !== end.entry || state.sealedHead !== end.head) {
    find('SEGMENT_CHAIN', nameOf(last), `it ends with entry ${end.entry}, the ledger says ${state.sealedEntry}`)
  }
  if (state.ackedEntry !== acked.entry || state.ackedHead !== acked.head) {
    find('SEGMENT_CHAIN', nameOf(last), `the cloud has entry ${acked.entry}, the ledger says ${state.ackedEntry}`)
  }
}

/** Whether the cloud has signed a receipt for it. One that does not fit is a finding. */
async function hasReceipt(row: SegmentRow, payload: Segment, trust: Trust, find: Find): Promise<boolean> {
  if (row.answer === null) return false
  const answer = await trust.read('sync-answer', row.answer, syncAnswer)
  const where = nameOf(row)
  if (answer === undefined) {
    find('RECEIPT', where, 'the answer to it is not signed by a pinned key')
    return false
  }
  if (answer.outcome !== 'MERGED' && answer.outcome !== 'FENCED') return false
  const { receipt } = answer
  if (receipt === null) return false
  const { first, bodies, head } = payload.entries
  const fits =
    answer.deviceId === payload.deviceId &&
    receipt.epoch === row.epoch &&
    receipt.seq === row.seq &&
    receipt.hash === row.hash &&
    receipt.entries.to === first + bodies.length - 1 &&
    receipt.entries.head === head
  if (!fits) find('RECEIPT', where, 'the receipt for it names other entries, or another segment')
  return fits
}

interface CheckedEntries {
  readonly entries: number
  readonly chained: number
  readonly engines: Verification['engines']
  readonly sums: EntrySums
}

interface EntrySums {
  /** Of the entries since the last segment. */
  readonly late: Sums
  /** Of all entries of the current epoch; null if not all are kept. */
  readonly all: Sums | null
}

async function checkEntries(
  ledger: ReadableLedger,
  segments: readonly CheckedSegment[],
  find: Find,
  giveWay: GiveWay,
): Promise<CheckedEntries> {
  const { state } = ledger
  const chain = new EntryChain(ledger, segments, find)
  const counts = new Map<number, number>()
  const [late, all]: [Sums, Sums] = [new Map(), new Map()]
  let entries = 0
  let isWhole = state.lastEntry === 0
  for (const entry of ledger.entries) {
    const pause = giveWay()
    if (pause !== undefined) await pause
    entries += 1
    const value = parseJson(entry.body)
    const engine = engineOf.safeParse(value).data?.engine
    if (engine !== undefined) counts.set(engine, (counts.get(engine) ?? 0) + 1)
    if (entry.id <= state.entryBase) continue
    const parsed = entryBody.safeParse(value)
    chain.add(entry, parsed)
    if (entry.n === 1) isWhole = true
    if (!parsed.success) continue
    addPostings(all, parsed.data)
    if (entry.n > state.sealedEntry) addPostings(late, parsed.data)
  }
  const engines = [...counts].map(([engine, count]) => ({ engine, entries: count }))
  return {
    entries,
    chained: chain.end(),
    engines: engines.toSorted((a, b) => a.engine - b.engine),
    sums: { late, all: isWhole ? all : null },
  }
}

/** The chain over the entries of the current epoch, in order. */
class EntryChain {
  readonly #state: ReadableLedger['state']
  readonly #find: Find
  readonly #heads: ReadonlyMap<number, string>
  readonly #sealed: (n: number) => string | undefined
  #chained = 0
  /** The last entry up to which the chain is known to be right. */
  #sure = 0
  /** Null: no entry was added. */
  #previous: number | null = null
  #head: string | undefined

  constructor(ledger: ReadableLedger, segments: readonly CheckedSegment[], find: Find) {
    this.#state = ledger.state
    this.#find = find
    this.#heads = headsOf(ledger, segments)
    this.#sealed = sealedBodies(ledger)
  }

  add({ id, n, body }: EntryRow, parsed: z.ZodSafeParseResult<EntryBody>): void {
    const where = `entry ${n}`
    if (!parsed.success) this.#find('ENTRY_MALFORMED', where, firstProblem(parsed.error, 'entry'))
    else if (parsed.data.n !== n || id !== this.#state.entryBase + n) {
      this.#find('ENTRY_MALFORMED', where, 'it says another number')
    }
    if (this.#previous === null) this.#head = this.#heads.get(n - 1)
    else if (n !== this.#previous + 1) {
      this.#find('ENTRY_MISSING', `entry ${this.#previous + 1}`, `entry ${n} follows entry ${this.#previous}`)
      this.#head = this.#heads.get(n - 1)
    }
    const asSealed = this.#sealed(n)
    const edited = asSealed !== undefined && asSealed !== body
    if (edited) this.#find('ENTRY_CHAIN', where, 'it is not the entry that was sealed under this number')
    this.#extend(n, body, edited)
    this.#previous = n
  }

  #extend(n: number, body: string, edited: boolean): void {
    const head = this.#head === undefined ? undefined : entryHash(this.#head, body)
    const known = this.#heads.get(n)
    if (head !== undefined && known !== undefined && head !== known && !edited) {
      const range = `${this.#sure + 1} to ${n}`
      this.#find('ENTRY_CHAIN', `entry ${n}`, `one of the entries ${range} was changed: the chain does not fit`)
    }
    if (known !== undefined) this.#sure = n
    this.#head = known ?? head
    if (this.#head !== undefined) this.#chained += 1
  }

  /** Returns the number of entries whose place in the chain could be checked. */
  end(): number {
    const { lastEntry, ackedEntry } = this.#state
    if (this.#previous === null) {
      if (lastEntry > ackedEntry) {
        this.#find('ENTRY_MISSING', `entry ${ackedEntry + 1}`, 'it is not acknowledged, and not there')
      }
    } else if (this.#previous !== lastEntry) {
      this.#find('ENTRY_MISSING', `entry ${this.#previous + 1}`, `the ledger says that there are ${lastEntry}`)
    }
    return this.#chained
  }
}

/** The known heads of the chain of the current epoch, by the number of the entry before. */
function headsOf({ state }: ReadableLedger, segments: readonly CheckedSegment[]): ReadonlyMap<number, string> {
  const heads = new Map<number, string>([[0, CHAIN_START]])
  for (const { epoch, entries } of segments) {
    if (epoch !== state.epoch) continue
    heads.set(entries.first - 1, entries.previousHash)
    heads.set(entries.first - 1 + entries.count, entries.head)
  }
  heads.set(state.ackedEntry, state.ackedHead)
  heads.set(state.sealedEntry, state.sealedHead)
  return heads.set(state.lastEntry, state.entryHead)
}

/** Bodies of the current epoch as they were sealed, with one segment in memory: the numbers must ascend. */
function sealedBodies({ state, segments }: ReadableLedger): (n: number) => string | undefined {
  const rows = segments[Symbol.iterator]()
  let [first, bodies]: [number, readonly string[]] = [1, []]
  return (n) => {
    while (n >= first + bodies.length) {
      const next = rows.next()
      if (next.done === true) return undefined
      if (next.value.epoch !== state.epoch) continue
      const parsed = parsedPayload(next.value)
      if (typeof parsed !== 'string') ({ first, bodies } = parsed.payload.entries)
    }
    return bodies[n - first]
  }
}

type CountedAccount = ReturnType<typeof countedOf>

function countedOf({ account, unlimited, exhausted, ...texts }: LedgerBundle['accounts'][number]) {
  const amounts = Object.entries(texts).map(([name, text]) => [name, BigInt(text)])
  return { account, unlimited, exhausted, ...(Object.fromEntries(amounts) as Record<keyof typeof texts, bigint>) }
}

/** Compares unsegmented entries with the counters, and all entries where all are kept. */
function checkCounters(accounts: readonly CountedAccount[], { late, all }: EntrySums, find: Find): void {
  const known = new Set(accounts.map(({ account }) => account))
  for (const { account, granted, used, refunded, returned, allowance, unlimited, ...sealed } of accounts) {
    const since = late.get(account) ?? NOTHING
    if (sealed.sealedUsed + since.used !== used || sealed.sealedRefunded + since.refunded !== refunded) {
      find('COUNTERS', account, 'the counters are not those of the last segment and the entries since')
    }
    const total = all?.get(account) ?? NOTHING
    if (all !== null && (total.used !== used || total.refunded !== refunded)) {
      find('COUNTERS', account, 'the counters are not the sum of the entries')
    }
    const isNegative = [granted, used, refunded, returned, allowance].some((amount) => amount < 0n)
    const isOverspent = !unlimited && used - refunded + returned > granted + allowance
    if (isNegative || isOverspent) find('OVERSPENT', account, `${used} used of ${granted} granted`)
  }
  for (const account of late.keys()) {
    if (!known.has(account)) find('COUNTERS', account, 'entries charge it, and it is not counted')
  }
}

const NOTHING = { used: 0n, refunded: 0n }

type Sums = Map<string, { used: bigint; refunded: bigint }>

function addPostings(sums: Sums, { kind, postings }: EntryBody): void {
  for (const { account, amount } of postings) {
    const sum = sums.get(account) ?? { ...NOTHING }
    sum[kind === 'refund' ? 'refunded' : 'used'] += amount
    sums.set(account, sum)
  }
}

function checkSealedCounters(
  accounts: readonly CountedAccount[],
  state: ReadableLedger['state'],
  { segments, newest }: Pick<CheckedSegments, 'segments' | 'newest'>,
  find: Find,
): void {
  // A deleted segment may have raised the counters that those before it name.
  let wholeFrom = state.lastSeq + 1
  for (const { epoch, seq } of segments.toReversed())
    if (epoch === state.epoch && seq === wholeFrom - 1) wholeFrom = seq
  for (const { account, sealedUsed, sealedRefunded, sealedReturned } of accounts) {
    const named = newest.get(account)
    if (named === undefined) continue
    const stored = { used: sealedUsed, refunded: sealedRefunded, returned: sealedReturned }
    for (const field of ['used', 'refunded', 'returned'] as const) {
      const [kept, sealed] = [stored[field], named.counters[field]]
      if (named.seq >= wholeFrom ? kept === sealed : kept >= sealed) continue
      find('COUNTERS', account, `${field} as of the last segment is ${kept}, ${named.where} says ${sealed}`)
    }
  }
}

async function checkSigned(
  { state: { epoch }, deviceId, grant, policies, pastPolicies, signedAnswers }: ReadableLedger,
  accounts: readonly CountedAccount[],
  trust: Trust,
  find: Find,
): Promise<void> {
  const signed = await openSigned(signedAnswers, trust, { deviceId: deviceId ?? '', epoch })
  const stored = { epoch, accounts: new Map(accounts.map((each) => [each.account, each])), grant, policies }
  for (const edit of deriveState(stored, signed).edits) {
    find(edit.where.startsWith('policy of') ? 'POLICY' : 'GRANT', edit.where, describeEdit(edit))
  }
  const caps = new Map<string, bigint>()
  for (const { instanceId, document } of policies) {
    const rules = await trust.read('policy', document, policyDocument)
    if (rules?.instanceId === instanceId) addCaps(rules, caps)
    else find('POLICY', `policy of ${instanceId}`, 'it is not signed by a pinned key, or is of another instance')
  }
  for (const document of pastPolicies) {
    const rules = await trust.read('policy', document, policyDocument)
    if (rules !== undefined) addCaps(rules, caps)
  }
  for (const { account, allowance, used, returned } of accounts) {
    const parsed = parseAccount(account)
    const cap = parsed === undefined ? undefined : caps.get(`${parsed.instanceId}/${parsed.lineItemId}`)
    // Of an account that was unlimited: what was used before it was limited.
    const most = [used + returned, cap ?? 0n].reduce((a, b) => (a > b ? a : b))
    if (allowance > most) find('GRANT', account, `allowance is ${allowance}, the signed rules allow ${cap ?? 0n}`)
  }
}

function addCaps(rules: PolicyDocument, caps: Map<string, bigint>): void {
  for (const { id, offline } of policyOf(rules).lineItems) {
    if (offline?.policy !== 'essential') continue
    const key = `${rules.instanceId}/${id}`
    const known = caps.get(key) ?? 0n
    caps.set(key, offline.overspendCap > known ? offline.overspendCap : known)
  }
}
