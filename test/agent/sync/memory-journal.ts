// A journal that lives as long as the test: the durable part outlives the process that wrote it, and a crash can be ordered
// to come right after a commit. It seals real segments, signed with the device's key.
import type { AccountId } from '../../../src/core/accounts/account.ts'
import { available } from '../../../src/core/accounts/grant.ts'
import { SEGMENT_ENTRIES_MAX, type SegmentWire } from '../../../src/protocol/edge/sync.ts'
import type { SessionSnapshot } from '../../../src/protocol/edge/sessions.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { CHAIN_START, entryHash, sha256, signDocument, type Signer } from '../../../src/protocol/signing.ts'
import {
  type AccountState,
  type ClockStamp,
  type Confirmation,
  type Identity,
  type Journal,
  NOTHING_TO_SAY,
  type PendingEntry,
  type SealedSegment,
  type SealRequest,
  type SegmentPlace,
  type Snapshot,
  type StoredAnswer,
  type StoredClock,
  type StoredGrant,
  type StoredPolicy,
  type StoredSession,
} from '../../../src/agent/ledger/journal.ts'
import type { LedgerDeps } from '../../../src/agent/ledger/ledger.ts'
import type { LinkJournal } from '../../../src/agent/sync/ports.ts'

interface KeptSegment extends SealedSegment {
  readonly first: number
  readonly last: number
  /** Entries of an earlier epoch in it; null where it brings none. */
  readonly undeliveredRange: number | null
}

/** One line of everything that ever became durable, over all epochs. */
export interface DurableEntry {
  readonly epoch: number
  readonly n: number
  readonly body: string
  readonly moves: PendingEntry['moves']
  readonly postings: PendingEntry['postings']
}

interface UndeliveredRange {
  readonly epoch: number
  readonly isWhole: boolean
  readonly first: number
  readonly previousHash: string
  readonly entries: readonly { readonly body: string; readonly hash: string }[]
}

/** What is on the disk. */
export class Disk {
  identity: Identity | null = null
  epoch = 0
  fenced = false
  accounts = new Map<AccountId, AccountState>()
  /** Accounts whose counters no segment holds yet. */
  changed = new Set<AccountId>()
  /** What the sealed segments say of `returned`. */
  reportedReturns = new Map<AccountId, bigint>()
  grant: StoredGrant | null = null
  policies = new Map<string, StoredPolicy>()
  sessions = new Map<string, StoredSession & { readonly unsealed: boolean }>()
  entries: { readonly body: string; readonly hash: string }[] = []
  segments: KeptSegment[] = []
  /** Acknowledged ones of earlier epochs. */
  earlierSegments: KeptSegment[] = []
  acknowledged = 0
  /** Of earlier epochs, what the cloud does not have. */
  undeliveredRanges: UndeliveredRange[] = []
  resendsEarlier = false
  clock: StoredClock | null = null
  /** Everything that was ever recorded; an acknowledged answer to an application stands in here. */
  readonly history: DurableEntry[] = []
  /** Commits that have taken place. */
  commits = 0
  /** So many commits from now on, the process ends right after one; Infinity for never. */
  commitsUntilCrash = Infinity
  /** Most entries of one segment. */
  segmentEntriesMax = SEGMENT_ENTRIES_MAX

  /** Something became durable: the process may end here. */
  committed(): void {
    this.commits += 1
    this.commitsUntilCrash -= 1
    if (this.commitsUntilCrash > 0) return
    this.commitsUntilCrash = Infinity
    throw new PowerCut()
  }

  /** A copy of all of it, as a backup would take it. */
  copy(): Disk {
    return Object.assign(new Disk(), structuredClone(Object.fromEntries(Object.entries(this))))
  }
}

const NOTHING: AccountState = {
  granted: 0n,
  used: 0n,
  refunded: 0n,
  returned: 0n,
  exhausted: false,
  unlimited: false,
}

class PowerCut extends Error {
  constructor() {
    super('the power was cut after the commit')
  }
}

/** The part of the journal that the link and the ledger of a device use, and what opens and closes it. */
export type DeviceJournal = LinkJournal & LedgerDeps['journal'] & Pick<Journal, 'read' | 'close'>

export class MemoryJournal implements DeviceJournal {
  readonly disk: Disk
  readonly #signer: Signer
  /** The next writes are refused, as by a full disk. */
  refusals = 0
  #dead = false
  readonly #end = Promise.withResolvers<undefined>()
  #queue: Promise<unknown> = Promise.resolve()

  constructor(disk: Disk, signer: Signer) {
    this.disk = disk
    this.#signer = signer
  }

  /** The process is gone: nothing that it still does has an effect. */
  kill(): void {
    this.#dead = true
    this.#end.resolve(undefined)
  }

  /** Resolves when nothing that is not answered yet ever will be. */
  get died(): Promise<undefined> {
    return this.#end.promise
  }

  async read(): Promise<Snapshot> {
    const { disk } = this
    const last = disk.segments.at(-1)
    return {
      identity: disk.identity,
      epoch: disk.epoch,
      fenced: disk.fenced,
      accounts: new Map(disk.accounts),
      grant: disk.grant,
      policies: [...disk.policies.values()],
      signedAnswers: await this.proofs(),
      lastEntry: disk.entries.length,
      entryHead: disk.entries.at(-1)?.hash ?? CHAIN_START,
      openReservations: new Map(),
      burned: new Map(),
      lastSealedEntry: last?.last ?? 0,
      resendsEarlier: disk.resendsEarlier,
      undeliveredRanges: disk.undeliveredRanges.reduce((sum, { entries }) => sum + entries.length, 0),
      idempotencyCache: [],
      sessions: [...disk.sessions.values()].map(({ unsealed: _, ...session }) => session),
      unacknowledged: last !== undefined && last.seq > disk.acknowledged ? last : null,
      lastSeq: last?.seq ?? 0,
      highestEpoch: disk.epoch,
      clock: disk.clock,
    }
  }

  append(entries: readonly PendingEntry[], stamp: ClockStamp): Promise<void> {
    return this.#commit(async () => {
      const { disk } = this
      for (const { n, body, moves, postings, allowances, session } of entries) {
        if (n !== disk.entries.length + 1) throw new Error('invariant: entries are numbered without gaps')
        disk.entries.push({ body, hash: entryHash(disk.entries.at(-1)?.hash ?? CHAIN_START, body) })
        const counter = moves === 'refunded' ? 'refunded' : 'used'
        for (const { account, amount } of postings) {
          const before = disk.accounts.get(account) ?? NOTHING
          const after = { ...before, [counter]: before[counter] + amount }
          const allowance = allowances?.get(account) ?? 0n
          disk.accounts.set(account, allowance > (before.allowance ?? 0n) ? { ...after, allowance } : after)
          disk.changed.add(account)
        }
        disk.history.push({ epoch: disk.epoch, n, body, moves, postings })
        if (session !== undefined) disk.sessions.set(session.id, { ...session, unsealed: true })
      }
      disk.clock = stamp.clock
    })
  }

  seal(order: SealRequest): Promise<SealedSegment> {
    return this.#commit(async () => {
      const { disk } = this
      const before = disk.segments.at(-1)
      if (before !== undefined && before.seq > disk.acknowledged) throw new Error('invariant: one segment in flight')
      for (const { account, amount } of order.returns) {
        const held = disk.accounts.get(account) ?? NOTHING
        if (amount > available(held)) throw new Error('invariant: only room is returned')
        disk.accounts.set(account, { ...held, returned: held.returned + amount })
        disk.changed.add(account)
      }
      const first = (before?.last ?? 0) + 1
      const [owed] = disk.undeliveredRanges
      const late = owed?.entries.slice(0, disk.segmentEntriesMax) ?? []
      const lateLeft = disk.undeliveredRanges.reduce((sum, { entries }) => sum + entries.length, 0) - late.length
      const bodies = owed === undefined ? disk.entries.slice(first - 1, first - 1 + disk.segmentEntriesMax) : []
      const last = first - 1 + bodies.length
      const backlog = disk.entries.length - last + lateLeft
      const isLastOwed = disk.undeliveredRanges.length <= 1 && late.length === (owed?.entries.length ?? 0)
      const final = order.final && backlog === 0 && isLastOwed
      const payload: SegmentWire = {
        deviceId: disk.identity?.deviceId ?? '',
        epoch: disk.epoch,
        seq: (before?.seq ?? 0) + 1,
        previousHash: before?.hash ?? CHAIN_START,
        salt: order.salt,
        bootId: order.bootId,
        clock: order.clock,
        counters: this.#countersAt(last),
        entries: {
          first,
          previousHash: disk.entries[first - 2]?.hash ?? CHAIN_START,
          head: disk.entries[last - 1]?.hash ?? CHAIN_START,
          bodies: bodies.map(({ body }) => body),
        },
        undeliveredRange:
          owed === undefined
            ? null
            : {
                epoch: owed.epoch,
                entries: {
                  first: owed.first,
                  previousHash: owed.previousHash,
                  head: late.at(-1)?.hash ?? owed.previousHash,
                  bodies: late.map(({ body }) => body),
                },
                final: owed.isWhole && late.length === owed.entries.length,
              },
        backlog,
        grantTerm: order.grant !== null && last >= order.grant.lastEntry ? order.grant.term : 0,
        topUpRequests: order.topUpRequests.map(({ account, wanted }) => ({ account, wanted: String(wanted) })),
        needs: order.needs.map((need) => need.map(({ account, amount }) => ({ account, amount: String(amount) }))),
        policies: [...order.policies],
        sessions: [...disk.sessions.values()]
          .filter(({ unsealed }) => unsealed)
          .map(({ snapshot }) => JSON.parse(snapshot) as SessionSnapshot),
        final,
      }
      const text = JSON.stringify(payload)
      const document = await signDocument('segment', text, this.#signer)
      const sealed = {
        epoch: disk.epoch,
        seq: payload.seq,
        hash: sha256(text),
        document,
        final,
        answer: null as string | null,
        first,
        last,
        undeliveredRange: owed === undefined ? null : late.length,
      }
      disk.segments.push(sealed)
      for (const [id, session] of disk.sessions) disk.sessions.set(id, { ...session, unsealed: false })
      disk.changed.clear()
      for (const { postings } of this.#entriesOf(last + 1))
        for (const { account } of postings) disk.changed.add(account)
      return sealed
    })
  }

  acknowledge(
    seq: number,
    grant: Parameters<Journal['acknowledge']>[1],
    confirmation: Confirmation | null,
    answer: StoredAnswer | null = null,
  ): Promise<void> {
    return this.#commit(async () => {
      const { disk } = this
      if (disk.segments.at(-1)?.seq !== seq) throw new Error('invariant: the last segment is acknowledged')
      disk.acknowledged = seq
      disk.resendsEarlier = answer?.resendsEarlier === true
      const sealed = disk.segments.at(-1)
      if (sealed !== undefined)
        disk.segments[disk.segments.length - 1] = { ...sealed, answer: answer?.document ?? null }
      const taken = disk.segments.at(-1)?.undeliveredRange
      const [owed] = disk.undeliveredRanges
      if (owed !== undefined && taken !== null && taken !== undefined) {
        disk.undeliveredRanges[0] = {
          ...owed,
          first: owed.first + taken,
          previousHash: owed.entries[taken - 1]?.hash ?? '',
          entries: owed.entries.slice(taken),
        }
        if (taken === owed.entries.length) disk.undeliveredRanges.shift()
      }
      if (grant !== null) {
        if (disk.grant !== null && grant.term <= disk.grant.term) throw new Error('invariant: terms rise')
        const { term, lifetimeMs, expiresAt, agedMs } = grant
        disk.grant = { term, lifetimeMs, expiresAt, agedMs }
        for (const { account, granted, exhausted, unlimited, overdraft = 0n } of grant.accounts) {
          const { overdraft: _before, ...held } = disk.accounts.get(account) ?? NOTHING
          const more = granted > held.granted ? granted : held.granted
          const beyond = overdraft > 0n ? { overdraft } : {}
          disk.accounts.set(account, { ...held, granted: more, exhausted, unlimited, ...beyond })
        }
        for (const [account, { allowance = 0n, ...held }] of disk.accounts) {
          if (allowance > 0n && available(held) >= 0n) disk.accounts.set(account, held)
        }
      }
      for (const { instanceId, revision } of confirmation?.policies ?? []) {
        const policy = disk.policies.get(instanceId)
        if (policy?.revision !== revision) continue
        disk.policies.set(instanceId, { ...policy, confirmedAt: confirmation?.time ?? 0 })
      }
    })
  }

  async sealed(seq: number): Promise<SealedSegment | null> {
    return this.disk.segments.find((segment) => segment.seq === seq) ?? null
  }

  async sealedEarlier(after: SegmentPlace): Promise<SealedSegment | null> {
    const kept = this.disk.earlierSegments.find(
      ({ epoch, seq }) => epoch > after.epoch || (epoch === after.epoch && seq > after.seq),
    )
    return kept ?? null
  }

  async proofs(): Promise<readonly string[]> {
    return this.disk.segments.flatMap(({ answer }) => (answer === null ? [] : [answer]))
  }

  fence(): Promise<void> {
    return this.#commit(async () => {
      this.disk.fenced = true
    })
  }

  attach(epoch: number, { isWhole, cloudEnd } = NOTHING_TO_SAY): Promise<void> {
    return this.#commit(async () => {
      const { disk } = this
      if (epoch <= disk.epoch) throw new Error('invariant: epochs rise')
      const acknowledged = disk.segments.findLast(({ seq }) => seq <= disk.acknowledged)?.last ?? 0
      const done = Math.min(acknowledged, cloudEnd?.entry ?? acknowledged)
      if (isWhole || done < disk.entries.length) {
        disk.undeliveredRanges.push({
          isWhole,
          epoch: disk.epoch,
          first: done + 1,
          previousHash: disk.entries[done - 1]?.hash ?? CHAIN_START,
          entries: disk.entries.slice(done),
        })
      }
      for (const [id, session] of disk.sessions) disk.sessions.set(id, { ...session, unsealed: true })
      disk.earlierSegments.push(...disk.segments.filter(({ seq }) => seq <= disk.acknowledged))
      Object.assign(disk, {
        epoch,
        resendsEarlier: cloudEnd !== null,
        fenced: false,
        accounts: new Map(),
        changed: new Set(),
        reportedReturns: new Map(),
        grant: null,
        entries: [],
        segments: [],
        acknowledged: 0,
      })
    })
  }

  limit(accounts: readonly AccountId[]): Promise<void> {
    return this.#commit(async () => {
      for (const account of accounts) {
        const held = this.disk.accounts.get(account) ?? NOTHING
        const above = -available(held)
        const allowance = above > (held.allowance ?? 0n) ? above : (held.allowance ?? 0n)
        this.disk.accounts.set(account, { ...held, unlimited: false, ...(allowance > 0n ? { allowance } : {}) })
      }
    })
  }

  saveIdentity(identity: Identity): Promise<void> {
    return this.#commit(async () => {
      this.disk.identity = identity
    })
  }

  savePolicy(...[policy, keys]: Parameters<Journal['savePolicy']>): Promise<void> {
    return this.#commit(async () => {
      const { disk } = this
      disk.policies.set(policy.instanceId, { ...policy, confirmedAt: 0 })
      if (disk.identity !== null && keys !== null) disk.identity = { ...disk.identity, ...keys }
    })
  }

  saveClock(stamp: ClockStamp): Promise<void> {
    return this.#commit(async () => {
      this.disk.clock = stamp.clock
    })
  }

  async close(): Promise<void> {
    this.kill()
  }

  /** One after another, in the order of the calls. */
  #commit<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#queue.then(async () => {
      if (this.#dead) return new Promise<never>(() => undefined)
      if (this.refusals > 0) {
        this.refusals -= 1
        throw new CodedError('NOT_RECORDED', 'the disk is full')
      }
      const result = await work()
      try {
        this.disk.committed()
      } catch (error) {
        this.kill()
        throw error
      }
      return result
    })
    this.#queue = done.catch(() => undefined)
    return done
  }

  /**
   * Absolute counters as of entry `last`, of every account that changed since the segment before. What was given up may come
   * from refunds in entries that are still to come: only a segment that leaves nothing behind can say so.
   */
  #countersAt(last: number): SegmentWire['counters'] {
    const { disk } = this
    const values = new Map([...disk.accounts].map(([account, state]) => [account, { ...state }]))
    const isComplete = last === disk.entries.length
    if (isComplete) for (const [account, { returned }] of values) disk.reportedReturns.set(account, returned)
    else for (const [account, value] of values) value.returned = disk.reportedReturns.get(account) ?? 0n
    for (const { moves, postings } of this.#entriesOf(last + 1)) {
      for (const { account, amount } of postings) {
        const value = values.get(account)
        if (value !== undefined) value[moves === 'refunded' ? 'refunded' : 'used'] -= amount
      }
    }
    return [...disk.changed].map((account) => {
      const { used, refunded, returned } = values.get(account) ?? NOTHING
      return { account, used: String(used), refunded: String(refunded), returned: String(returned) }
    })
  }

  #entriesOf(first: number): readonly DurableEntry[] {
    const { history, epoch } = this.disk
    return history.filter((entry) => entry.epoch === epoch && entry.n >= first)
  }
}
