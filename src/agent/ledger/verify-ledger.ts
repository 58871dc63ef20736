/**
 * Checks a ledger against itself and the cloud's signatures. Never throws on a damaged one. Makes no decision again, so
 * it fits entries of every engine version.
 */
import { z } from 'zod'
import { engineVersion } from '../../protocol/edge/engines.ts'
import { entryBody, segment as segmentForm, type Segment, syncAnswer } from '../../protocol/edge/sync.ts'
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

type SegmentRow = LedgerBundle['segments'][number]

interface ReadSegment {
  readonly row: SegmentRow
  readonly payload: Segment
}

export async function verifyLedger(ledger: LedgerBundle): Promise<Verification> {
  const findings: Finding[] = []
  const find = (kind: Finding['kind'], where: string, problem: string): void => {
    if (findings.length < FINDINGS_MAX) findings.push({ kind, where, problem })
  }
  const trust = await trustOf(ledger, find)
  const segments = readSegments(ledger, find)
  chainSegments(ledger, segments, find)
  const receipts = await checkReceipts(segments, trust, find)
  const chained = chainEntries(ledger, segments, find)
  checkCounters(ledger, find)
  checkSealedCounters(ledger, segments, find)
  await checkSigned(ledger, trust, find)
  return {
    findings,
    checked: {
      entries: ledger.entries.length,
      chained,
      segments: segments.length,
      receipts,
      accounts: ledger.accounts.length,
    },
    engines: enginesOf(ledger),
  }
}

function enginesOf({ entries }: LedgerBundle): Verification['engines'] {
  const counts = new Map<number, number>()
  for (const { body } of entries) {
    const engine = engineOf.safeParse(parseJson(body)).data?.engine
    if (engine !== undefined) counts.set(engine, (counts.get(engine) ?? 0) + 1)
  }
  return [...counts].map(([engine, count]) => ({ engine, entries: count })).toSorted((a, b) => a.engine - b.engine)
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

function readSegments({ segments, deviceId }: LedgerBundle, find: Find): readonly ReadSegment[] {
  return segments.flatMap((row): ReadSegment[] => {
    const where = nameOf(row)
    const text = unverifiedText(row.document)
    const parsed = segmentForm.safeParse(text === undefined ? undefined : parseJson(text))
    if (text === undefined || !parsed.success) {
      find(
        'SEGMENT_MALFORMED',
        where,
        parsed.success ? 'it is no signed document' : firstProblem(parsed.error, 'segment'),
      )
      return []
    }
    const { data: payload } = parsed
    if (sha256(text) !== row.hash) find('SEGMENT_MALFORMED', where, 'its hash is not that of its content')
    if (payload.epoch !== row.epoch || payload.seq !== row.seq || payload.deviceId !== deviceId) {
      find('SEGMENT_MALFORMED', where, 'it was sealed under another number, or by another device')
    }
    let head = payload.entries.previousHash
    for (const body of payload.entries.bodies) head = entryHash(head, body)
    if (head !== payload.entries.head)
      find('ENTRY_CHAIN', where, 'the entries in it do not make the chain that it names')
    return [{ row, payload }]
  })
}

function chainSegments({ state }: LedgerBundle, segments: readonly ReadSegment[], find: Find): void {
  const byPlace = new Map(segments.map((each) => [`${each.row.epoch} ${each.row.seq}`, each]))
  for (const { row, payload } of segments) {
    const before = byPlace.get(`${row.epoch} ${row.seq - 1}`)
    const expected = row.seq === 1 ? CHAIN_START : before?.row.hash
    if (expected !== undefined && payload.previousHash !== expected) {
      find('SEGMENT_CHAIN', nameOf(row), 'it does not follow the one before it')
    }
    if (before !== undefined && before.payload.entries.head !== payload.entries.previousHash) {
      find('ENTRY_CHAIN', nameOf(row), 'its entries do not follow those of the segment before it')
    }
  }
  const last = segments.findLast(({ row }) => row.epoch === state.epoch)
  // A full disk may have cost the last one.
  if (last === undefined || last.row.seq < state.lastSeq) return
  if (last.row.seq !== state.lastSeq || last.row.hash !== state.segmentHead) {
    find('SEGMENT_CHAIN', nameOf(last.row), 'it is not the one that the ledger names as its last')
    return
  }
  const { first, bodies, head, previousHash } = last.payload.entries
  const end = { entry: first + bodies.length - 1, head }
  const acked = last.row.state === 'UNACKNOWLEDGED' ? { entry: first - 1, head: previousHash } : end
  if (state.sealedEntry !== end.entry || state.sealedHead !== end.head) {
    find('SEGMENT_CHAIN', nameOf(last.row), `it ends with entry ${end.entry}, the ledger says ${state.sealedEntry}`)
  }
  if (state.ackedEntry !== acked.entry || state.ackedHead !== acked.head) {
    find('SEGMENT_CHAIN', nameOf(last.row), `the cloud has entry ${acked.entry}, the ledger says ${state.ackedEntry}`)
  }
}

async function checkReceipts(segments: readonly ReadSegment[], trust: Trust, find: Find): Promise<number> {
  let sound = 0
  for (const { row, payload } of segments) {
    if (row.answer === null) continue
    const answer = await trust.read('sync-answer', row.answer, syncAnswer)
    const where = nameOf(row)
    if (answer === undefined) {
      find('RECEIPT', where, 'the answer to it is not signed by a pinned key')
      continue
    }
    if (answer.outcome !== 'MERGED' && answer.outcome !== 'FENCED') continue
    const { receipt } = answer
    if (receipt === null) continue
    const { first, bodies, head } = payload.entries
    const fits =
      answer.deviceId === payload.deviceId &&
      receipt.epoch === row.epoch &&
      receipt.seq === row.seq &&
      receipt.hash === row.hash &&
      receipt.entries.to === first + bodies.length - 1 &&
      receipt.entries.head === head
    if (fits) sound += 1
    else find('RECEIPT', where, 'the receipt for it names other entries, or another segment')
  }
  return sound
}

/** @returns the number of entries of the current epoch whose place in the chain could be checked */
function chainEntries({ state, entries }: LedgerBundle, segments: readonly ReadSegment[], find: Find): number {
  const own = entries.filter(({ id }) => id > state.entryBase).sort((a, b) => a.id - b.id)
  const heads = new Map<number, string>([[0, CHAIN_START]])
  const sealed = new Map<number, string>()
  for (const { row, payload } of segments) {
    if (row.epoch !== state.epoch) continue
    const { first, previousHash, head, bodies } = payload.entries
    heads.set(first - 1, previousHash)
    heads.set(first - 1 + bodies.length, head)
    for (const [index, body] of bodies.entries()) sealed.set(first + index, body)
  }
  heads.set(state.ackedEntry, state.ackedHead)
  heads.set(state.sealedEntry, state.sealedHead)
  heads.set(state.lastEntry, state.entryHead)

  let [chained, sure, previous] = [0, 0, own[0] === undefined ? 0 : own[0].n - 1]
  let head = heads.get(previous)
  if (own.length === 0 && state.lastEntry > state.ackedEntry) {
    find('ENTRY_MISSING', `entry ${state.ackedEntry + 1}`, 'it is not acknowledged, and not there')
  }
  for (const { id, n, body } of own) {
    const where = `entry ${n}`
    const parsed = entryBody.safeParse(parseJson(body))
    if (!parsed.success) find('ENTRY_MALFORMED', where, firstProblem(parsed.error, 'entry'))
    else if (parsed.data.n !== n || id !== state.entryBase + n) find('ENTRY_MALFORMED', where, 'it says another number')
    if (n !== previous + 1) {
      find('ENTRY_MISSING', `entry ${previous + 1}`, `entry ${n} follows entry ${previous}`)
      head = heads.get(n - 1)
    }
    const asSealed = sealed.get(n)
    const edited = asSealed !== undefined && asSealed !== body
    if (edited) find('ENTRY_CHAIN', where, 'it is not the entry that was sealed under this number')
    head = head === undefined ? undefined : entryHash(head, body)
    const known = heads.get(n)
    if (head !== undefined && known !== undefined && head !== known) {
      if (!edited)
        find('ENTRY_CHAIN', where, `one of the entries ${sure + 1} to ${n} was changed: the chain does not fit`)
      head = known
    }
    if (known !== undefined) {
      head = known
      sure = n
    }
    if (head !== undefined) chained += 1
    previous = n
  }
  if (own.length > 0 && previous !== state.lastEntry) {
    find('ENTRY_MISSING', `entry ${previous + 1}`, `the ledger says that there are ${state.lastEntry}`)
  }
  return chained
}

/** Compares unsegmented entries with the counters, and all entries where all are kept. */
function checkCounters({ state, accounts, entries }: LedgerBundle, find: Find): void {
  const own = entries.filter(({ id }) => id > state.entryBase)
  const whole = own.some(({ n }) => n === 1) || state.lastEntry === 0
  const late = sumOf(own.filter(({ n }) => n > state.sealedEntry))
  const all = whole ? sumOf(own) : undefined
  const known = new Set(accounts.map(({ account }) => account))
  for (const {
    account,
    granted,
    used,
    refunded,
    returned,
    allowance,
    unlimited,
    sealedUsed,
    sealedRefunded,
  } of accounts) {
    const since = late.get(account) ?? NOTHING
    if (
      BigInt(sealedUsed) + since.used !== BigInt(used) ||
      BigInt(sealedRefunded) + since.refunded !== BigInt(refunded)
    ) {
      find('COUNTERS', account, 'the counters are not those of the last segment and the entries since')
    }
    const total = all?.get(account) ?? NOTHING
    if (all !== undefined && (total.used !== BigInt(used) || total.refunded !== BigInt(refunded))) {
      find('COUNTERS', account, 'the counters are not the sum of the entries')
    }
    const balance = BigInt(granted) + BigInt(allowance) - BigInt(returned) - BigInt(used) + BigInt(refunded)
    const negative = [granted, used, refunded, returned, allowance].some((value) => value.startsWith('-'))
    if (negative || (!unlimited && balance < 0n)) find('OVERSPENT', account, `${used} used of ${granted} granted`)
  }
  for (const account of late.keys()) {
    if (!known.has(account)) find('COUNTERS', account, 'entries charge it, and it is not counted')
  }
}

const NOTHING = { used: 0n, refunded: 0n }

function sumOf(entries: LedgerBundle['entries']): Map<string, { used: bigint; refunded: bigint }> {
  const sums = new Map<string, { used: bigint; refunded: bigint }>()
  for (const { body } of entries) {
    const parsed = entryBody.safeParse(parseJson(body))
    if (!parsed.success) continue
    for (const { account, amount } of parsed.data.postings) {
      const sum = sums.get(account) ?? { ...NOTHING }
      sum[parsed.data.kind === 'refund' ? 'refunded' : 'used'] += amount
      sums.set(account, sum)
    }
  }
  return sums
}

function checkSealedCounters({ state, accounts }: LedgerBundle, segments: readonly ReadSegment[], find: Find): void {
  const newest = new Map<string, { readonly row: SegmentRow; readonly counters: Segment['counters'][number] }>()
  for (const { row, payload } of segments) {
    if (row.epoch !== state.epoch) continue
    for (const counters of payload.counters) newest.set(counters.account, { row, counters })
  }
  for (const { account, sealedUsed, sealedRefunded, sealedReturned } of accounts) {
    const named = newest.get(account)
    if (named === undefined) continue
    const stored = { used: sealedUsed, refunded: sealedRefunded, returned: sealedReturned }
    for (const field of ['used', 'refunded', 'returned'] as const) {
      const { counters, row } = named
      if (BigInt(stored[field]) === counters[field]) continue
      find(
        'COUNTERS',
        account,
        `${field} as of the last segment is ${stored[field]}, ${nameOf(row)} says ${counters[field]}`,
      )
    }
  }
}

async function checkSigned(ledger: LedgerBundle, trust: Trust, find: Find): Promise<void> {
  const { state, deviceId, grant, policies, signedAnswers } = ledger
  const { epoch } = state
  const accounts = new Map(
    ledger.accounts.map(({ account, granted, used, refunded, returned, overdraft, unlimited, exhausted }) => [
      account,
      {
        granted: BigInt(granted),
        used: BigInt(used),
        refunded: BigInt(refunded),
        returned: BigInt(returned),
        overdraft: BigInt(overdraft),
        unlimited,
        exhausted,
      },
    ]),
  )
  const signed = await openSigned(signedAnswers, trust, { deviceId: deviceId ?? '', epoch })
  for (const edit of deriveState({ epoch, accounts, grant, policies }, signed).edits) {
    find(edit.where.startsWith('policy of') ? 'POLICY' : 'GRANT', edit.where, describeEdit(edit))
  }
  const caps = new Map<string, bigint>()
  for (const { instanceId, document } of policies) {
    const rules = await trust.read('policy', document, policyDocument)
    if (rules?.instanceId === instanceId) addCaps(rules, caps)
    else find('POLICY', `policy of ${instanceId}`, 'it is not signed by a pinned key, or is of another instance')
  }
  for (const document of ledger.pastPolicies) {
    const rules = await trust.read('policy', document, policyDocument)
    if (rules !== undefined) addCaps(rules, caps)
  }
  for (const { account, allowance, used, returned } of ledger.accounts) {
    const parsed = parseAccount(account)
    const cap = parsed === undefined ? undefined : caps.get(`${parsed.instanceId}/${parsed.lineItemId}`)
    // Of an account that was unlimited: what was used before it was limited.
    const most = [BigInt(used) + BigInt(returned), cap ?? 0n].reduce((a, b) => (a > b ? a : b))
    if (BigInt(allowance) > most)
      find('GRANT', account, `allowance is ${allowance}, the signed rules allow ${cap ?? 0n}`)
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
