/** Checks a segment's signature, form, and the hashes of payload and entries. Its claims are judged later. */
import type { AccountId } from '../../core/accounts/account.ts'
import type { TopUps } from '../../core/accounts/grant.ts'
import { parseDecimal } from '../../core/pricing/amount.ts'
import type { ReceivedEntry, ReceivedSegment, SegmentHeader } from '../../core/sync/receive.ts'
import {
  type EntryBody,
  SEGMENT_ACCOUNTS_MAX,
  SEGMENT_BYTES_MAX,
  SEGMENT_NEEDS_MAX,
  SEGMENT_NEED_POSTINGS_MAX,
  type Segment,
  entryBody,
  segment,
} from '../../protocol/edge/sync.ts'
import { EntryReader } from '../../protocol/edge/read-entry.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { type PublicJwk, entryHash, openDocument, sha256 } from '../../protocol/signing.ts'
import { importPublicKey } from '../devices/device-key.ts'
import type { GiveWay } from '../runtime/give-way.ts'
import type { Device, LedgerEntry } from '../storage/device-records.ts'
import { parseLists } from './parse-lists.ts'

export interface OpenedEntry extends LedgerEntry {
  readonly body: EntryBody
}

export interface OpenedSegment {
  readonly header: SegmentHeader
  readonly epoch: number
  readonly final: boolean
  readonly document: string
  readonly received: ReceivedSegment
  readonly entries: readonly OpenedEntry[]
  readonly undeliveredRange: OpenedUndelivered | null
  readonly topUps: TopUps
  readonly clock: Segment['clock']
  readonly backlog: number
  readonly grantTerm: number
  readonly policies: Segment['policies']
  readonly sessions: Segment['sessions']
}

/** Its content cannot make the segment unreadable, unless its entries name too many accounts together. */
export interface OpenedUndelivered {
  readonly epoch: number
  readonly first: number
  readonly previousHash: string
  readonly isChained: boolean
  readonly count: number
  readonly entries: readonly OpenedEntry[]
  /** Counters before the first entry, if the cloud lost earlier ones; null: it did not. */
  readonly counted: NonNullable<NonNullable<Segment['undeliveredRange']>['counted']> | null
  readonly final: boolean
}

export type Opening =
  { readonly opened: true; readonly segment: OpenedSegment } | { readonly opened: false; readonly problem: string }

const SEGMENT_LISTS = {
  counters: SEGMENT_ACCOUNTS_MAX,
  topUpRequests: SEGMENT_ACCOUNTS_MAX,
  needs: SEGMENT_NEEDS_MAX,
}
/** Bounded by the length of the segment. */
const ENTRY_LISTS = { items: Infinity, postings: Infinity }

/** Characters of a compact JWS with the longest payload, and a quarter more for a single entry above its part. */
const DOCUMENT_MAX = Math.ceil((SEGMENT_BYTES_MAX * 5) / 3)

const unreadable = (problem: string): Opening => ({ opened: false, problem })

export async function openSegment(
  device: Pick<Device, 'id'>,
  publicKey: PublicJwk,
  document: string,
  giveWay: GiveWay = () => undefined,
): Promise<Opening> {
  if (document.length > DOCUMENT_MAX) return unreadable(`The segment is longer than ${DOCUMENT_MAX} characters.`)
  const key = importPublicKey(publicKey)
  if (key === undefined) throw new Error('invariant: the key of a device was usable when it was registered')
  const text = await openDocument('segment', document, key)
  if (text === undefined) return unreadable('The segment is not signed by this device.')
  await giveWay()
  const payload = parseJson(text)
  await giveWay()
  const parsed = await parseLists(segment, payload, { lists: SEGMENT_LISTS, root: 'segment', giveWay })
  if (!parsed.parsed) return unreadable(parsed.problem)
  const { data } = parsed
  if (data.deviceId !== device.id) return unreadable('The segment is of another device.')

  const needed = data.needs.reduce((count, need) => count + need.length, 0)
  if (needed > SEGMENT_NEED_POSTINGS_MAX) {
    return unreadable(`segment.needs: has more than ${SEGMENT_NEED_POSTINGS_MAX} amounts`)
  }

  const { epoch, final, clock, backlog, grantTerm, policies, sessions } = data
  const { entries, problem } = await openEntries(data.entries, 'segment.entries', giveWay)
  if (problem !== undefined) return unreadable(problem)
  const undeliveredRange =
    data.undeliveredRange === null ? null : await openUndeliveredRange(data.undeliveredRange, giveWay)
  if (countAccounts([...entries, ...(undeliveredRange?.entries ?? [])]) > SEGMENT_ACCOUNTS_MAX) {
    return unreadable(`segment: its entries name more than ${SEGMENT_ACCOUNTS_MAX} accounts`)
  }
  return {
    opened: true,
    segment: {
      header: { seq: data.seq, hash: sha256(text), previousHash: data.previousHash },
      epoch,
      final,
      document,
      received: {
        counters: data.counters,
        firstEntry: data.entries.first,
        entriesPreviousHash: data.entries.previousHash,
        entryHead: data.entries.head,
        entries: entries.map(({ body }): ReceivedEntry => body),
        entryHashes: entries.map((entry) => entry.hash),
      },
      entries,
      undeliveredRange,
      topUps: { topUpRequests: data.topUpRequests, needs: data.needs },
      clock,
      backlog,
      grantTerm,
      policies,
      sessions,
    },
  }
}

async function openUndeliveredRange(
  { epoch, entries: range, counted, final }: NonNullable<Segment['undeliveredRange']>,
  giveWay: GiveWay,
): Promise<OpenedUndelivered> {
  const { entries, last } = await openEntries(range, 'entries', giveWay)
  const { first, previousHash, head, bodies } = range
  return {
    epoch,
    first,
    previousHash,
    isChained: last === head,
    count: bodies.length,
    entries,
    counted: counted ?? null,
    final,
  }
}

async function openEntries(
  { first, previousHash, bodies }: Segment['entries'],
  at: string,
  giveWay: GiveWay,
): Promise<{
  readonly entries: readonly OpenedEntry[]
  readonly last: string
  readonly problem: string | undefined
}> {
  const reader = new EntryReader()
  const entries: OpenedEntry[] = []
  let problem: string | undefined
  let hash = previousHash
  for (const [index, text] of bodies.entries()) {
    const pause = giveWay()
    if (pause !== undefined) await pause
    hash = entryHash(hash, text)
    const place = `${at}.bodies[${index}]`
    const body = reader.read(text) ?? (await parseEntry(text, place, giveWay))
    if (typeof body === 'string') problem ??= body
    else if (body.postings.length > SEGMENT_ACCOUNTS_MAX) problem ??= `${place}: has too many postings`
    else entries.push({ n: first + index, hash, text, body })
  }
  return { entries, last: hash, problem }
}

function countAccounts(entries: readonly OpenedEntry[]): number {
  const accounts = new Set<AccountId>()
  for (const { body } of entries) for (const { account } of body.postings) accounts.add(account)
  return accounts.size
}

async function parseEntry(text: string, at: string, giveWay: GiveWay): Promise<EntryBody | string> {
  const entry = await parseLists(entryBody, parseJson(text), { lists: ENTRY_LISTS, root: at, giveWay })
  if (!entry.parsed) return entry.problem
  for (const item of entry.data.items) {
    const count = parseDecimal(item.count)
    if (count === undefined || count.digits < 0n) return `${at}: a count is not a decimal`
  }
  return entry.data
}
